package hostsnap

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
)

// nftables collects all rules of the host. The tables that iptables can list
// are shown in the syntax of iptables, because it is better known.
func (c *collector) nftables() error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	covered, err := c.iptables(tables)
	if err != nil {
		return err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	for _, table := range tables {
		name := tableTitle(table)
		// A process owns the held guard, which the kernel removes when the
		// process ends.
		if covered[name] || table.Name == names.HeldGuardTable {
			continue
		}
		c.add(true, "nft table", name, labelled("flags", nonZero(table.Flags)))
		if err := c.table(conn, table, chains); err != nil {
			return fmt.Errorf("table %q: %w", name, err)
		}
	}
	return nil
}

// table collects the content of a table. chains are the chains of all tables.
func (c *collector) table(conn *nftables.Conn, table *nftables.Table, chains []*nftables.Chain) error {
	for _, chain := range chains {
		if chain.Table.Name != table.Name || chain.Table.Family != table.Family {
			continue
		}
		if err := c.chain(conn, table, chain); err != nil {
			return fmt.Errorf("chain %q: %w", chain.Name, err)
		}
	}
	sets, err := conn.GetSets(table)
	if err != nil {
		return fmt.Errorf("list sets: %w", err)
	}
	for _, set := range sets {
		if err := c.set(conn, table, set); err != nil {
			return fmt.Errorf("set %q: %w", set.Name, err)
		}
	}
	return c.objects(conn, table)
}

func (c *collector) chain(conn *nftables.Conn, table *nftables.Table, chain *nftables.Chain) error {
	rules, err := conn.GetRules(table, chain)
	if err != nil { // the library does not read the direction of connection tracking
		rules, err = netfilter.Rules(context.Background(), chain)
	}
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	accepts := chain.Policy == nil || *chain.Policy == nftables.ChainPolicyAccept
	dispatches := dispatchers[tableTitle(table)][chain.Name] || names.IsOwnTable(table.Name) && !ofPolicy(table, chain.Name)
	c.add(accepts && (len(rules) == 0 || dispatches), "nft chain", tableTitle(table), chain.Name, chainHook(chain))
	for _, rule := range rules {
		c.add(dispatches, "nft rule", tableTitle(table), chain.Name, describeExprs(rule.Exprs),
			labelled("comment", ruleComment(rule)))
	}
	return nil
}

// ofPolicy reports whether a chain or set belongs to a network policy, which is removed with the
// last allocation that has it.
func ofPolicy(table *nftables.Table, name string) bool {
	_, selection := names.ParseSelectionSet(name)
	return table.Name == names.PolicyTable && (selection || names.PolicyID(name) != "")
}

// ruleComment returns a rule's comment. If its owner stored other user data, it
// returns that.
func ruleComment(rule *nftables.Rule) string {
	comment, ok := userdata.GetString(rule.UserData, userdata.TypeComment)
	if !ok {
		comment = string(rule.UserData)
	}
	if comment == "" {
		return ""
	}
	return strconv.Quote(comment)
}

// chainHook describes how a base chain is attached.
func chainHook(chain *nftables.Chain) string {
	if chain.Hooknum == nil {
		return ""
	}
	words := []string{string(chain.Type), "hook", strconv.Itoa(int(*chain.Hooknum))}
	if chain.Priority != nil {
		words = append(words, "priority", strconv.Itoa(int(*chain.Priority)))
	}
	if chain.Policy != nil && *chain.Policy == nftables.ChainPolicyDrop {
		words = append(words, "policy drop")
	}
	return strings.Join(words, " ")
}

func (c *collector) set(conn *nftables.Conn, table *nftables.Table, set *nftables.Set) error {
	if table.Name == names.Table && strings.HasPrefix(set.Name, "contacted") {
		return nil // depends on received packets, and any operation may flush it
	}
	elements, err := conn.GetSetElements(set)
	if err != nil {
		return fmt.Errorf("list elements: %w", err)
	}
	kind, name := "set", stableName(set.Name)
	if set.IsMap {
		kind = "map"
	}
	// The rule that refers to an anonymous set already shows that the set
	// exists.
	shared := set.Anonymous || table.Name == names.PolicyTable && names.IsConstantSet(set.Name) || table.Name == names.Table && (sharedSets[set.Name] || set.Name == "standby_ports" && unowned(elements))
	c.add((len(elements) == 0 || shared) && !ofPolicy(table, set.Name), "nft", kind, tableTitle(table), name, labelled("type", set.KeyType.Name))
	for _, element := range elements {
		c.add(shared, "nft element", tableTitle(table), name, describeElement(element))
	}
	return nil
}

// sharedSets are the sets in allocnet's tables whose elements belong to
// networks, bridges and the host, not to attachments.
var sharedSets = map[string]bool{"networks": true, "exempt": true, "guarded": true, "guards": true, "service_addresses": true}

// unowned reports whether no element names an owner.
func unowned(elements []nftables.SetElement) bool {
	return !slices.ContainsFunc(elements, func(e nftables.SetElement) bool { return e.Comment != "" })
}

// objects collects stateful objects, such as named counters, and flow tables.
func (c *collector) objects(conn *nftables.Conn, table *nftables.Table) error {
	objects, err := conn.GetNamedObjects(table)
	if err != nil {
		return fmt.Errorf("list objects: %w", err)
	}
	for _, object := range objects {
		if named, ok := object.(*nftables.NamedObj); ok {
			c.add(false, "nft object", tableTitle(table), named.Name, "type", strconv.Itoa(int(named.Type)))
		}
	}
	flowtables, err := conn.ListFlowtables(table)
	if err != nil {
		return fmt.Errorf("list flow tables: %w", err)
	}
	for _, flowtable := range flowtables {
		c.add(false, "nft flowtable", tableTitle(table), flowtable.Name)
	}
	return nil
}

// tableTitle returns a table's name as nft shows it.
func tableTitle(table *nftables.Table) string {
	families := map[nftables.TableFamily]string{
		nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
		nftables.TableFamilyARP: "arp", nftables.TableFamilyNetdev: "netdev", nftables.TableFamilyBridge: "bridge",
	}
	return families[table.Family] + " " + table.Name
}

func nonZero(flags uint32) string {
	if flags == 0 {
		return ""
	}
	return fmt.Sprintf("0x%x", flags)
}

// dispatchers are the chains of the reference plugins whose rules serve all
// attachments.
var dispatchers = map[string]map[string]bool{
	"ip cni_hostport":             {"prerouting": true, "output": true, "hostports_all": true},
	"ip6 cni_hostport":            {"prerouting": true, "output": true, "hostports_all": true},
	"inet cni_plugins_masquerade": {"postrouting": true},
}
