package cleanup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/retry"
)

// nftablesFinder finds rules of the nftables backends of the reference plugins. Their
// tables and chains are shared.
type nftablesFinder struct {
	*search
	found []nftRule
}

// nftChain is a chain that contains rules of several allocations.
type nftChain struct {
	family nftables.TableFamily
	table  string
	chain  string
	// holder is the field of the IP header that a rule compares with the address of the
	// allocation.
	holder nftField
}

// nftField is the offset of a header field in IPv4 and IPv6.
type nftField struct{ offset4, offset6 uint32 }

var (
	sourceAddress      = nftField{12, 8}
	destinationAddress = nftField{16, 24}
	noField            = nftField{}
)

var masqChecks = nftChain{nftables.TableFamilyINet, "cni_plugins_masquerade", "masq_checks", sourceAddress}

var nftChains = []nftChain{
	masqChecks,
	{nftables.TableFamilyIPv4, "cni_hostport", "hostports", noField},
	{nftables.TableFamilyIPv4, "cni_hostport", "hostip_hostports", noField},
	{nftables.TableFamilyIPv4, "cni_hostport", "masquerading", destinationAddress},
	{nftables.TableFamilyIPv6, "cni_hostport", "hostports", noField},
	{nftables.TableFamilyIPv6, "cni_hostport", "hostip_hostports", noField},
	{nftables.TableFamilyIPv6, "cni_hostport", "masquerading", destinationAddress},
}

// String returns the chain in the syntax of nft.
func (c nftChain) String() string {
	names := map[nftables.TableFamily]string{
		nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6",
		nftables.TableFamilyBridge: "bridge",
	}
	return names[c.family] + " " + c.table + " " + c.chain
}

// nftRule is a rule in one of the chains.
type nftRule struct {
	*nftables.Rule
	where   nftChain
	comment string
	network string
}

func (r nftRule) leftover() Leftover {
	return Leftover{
		Kind:    KindNFTablesRule,
		Network: r.network,
		Where:   r.where.String(),
		Object:  fmt.Sprintf("handle %d comment %q", r.Handle, r.comment),
	}
}

func (f *nftablesFinder) find(ctx context.Context) ([]Leftover, error) {
	f.found = nil
	if !f.within(func(s scope) bool { return s.nftables }) {
		return nil, nil
	}
	rules, err := listNFTables(ctx)
	if err != nil {
		f.addresses.incomplete = true
		return nil, err
	}
	var list []Leftover
	for _, rule := range f.own(rules) {
		f.found = append(f.found, rule)
		list = append(list, rule.leftover())
	}
	return list, nil
}

// own returns the rules of the allocation, and records the holders of addresses from
// all rules.
func (f *nftablesFinder) own(rules []nftRule) []nftRule {
	var own []nftRule
	for _, rule := range rules {
		network, ours := f.owner(rule)
		if ours {
			rule.network = network
			own = append(own, rule)
			f.addresses.addOwn(rule.holder(), network)
		} else if rule.where == masqChecks {
			f.addresses.addForeign(rule.holder())
		}
	}
	return own
}

// owner reports whether a rule belongs to the allocation. It returns the network if the
// rule names it.
func (f *nftablesFinder) owner(rule nftRule) (network string, ours bool) {
	if rule.where != masqChecks {
		return "", rule.comment == f.target.ID && (len(f.attachments) > 0 || f.anyNetwork())
	}
	hash, _, _ := strings.Cut(rule.comment, ",")
	for _, a := range f.attachments {
		if hash == masqHash(a.Network, a.IfName, f.target.ID) {
			return a.Network, true
		}
	}
	return "", f.anyNetwork() && masqHashHasID(rule.comment, f.target.ID)
}

// holder returns the address with which a rule compares the holder field, or the zero
// address.
func (r nftRule) holder() netip.Addr {
	for i := 1; i < len(r.Exprs); i++ {
		load, _ := r.Exprs[i-1].(*expr.Payload)
		compare, _ := r.Exprs[i].(*expr.Cmp)
		if load == nil || compare == nil || load.Base != expr.PayloadBaseNetworkHeader || compare.Op != expr.CmpOpEq {
			continue
		}
		addr, ok := netip.AddrFromSlice(compare.Data)
		if ok && (addr.Is4() && load.Offset == r.where.holder.offset4 || addr.Is6() && load.Offset == r.where.holder.offset6) {
			return addr
		}
	}
	return netip.Addr{}
}

// listNFTables returns the rules of all chains in a consistent state.
func listNFTables(ctx context.Context) (rules []nftRule, err error) {
	var chains []netfilter.Chain
	for _, c := range nftChains {
		chains = append(chains, netfilter.Chain{Family: byte(c.family), Table: c.table, Name: c.chain})
	}
	if exists, err := netfilter.AnyExists(ctx, chains...); err == nil && !exists {
		return nil, nil // the usual case, and much faster than listing the rules
	}
	err = netfilter.Look(ctx, func(conn *nftables.Conn) (err error) {
		rules, err = listChains(conn)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list nftables rules: %w", err)
	}
	return rules, nil
}

// listChains returns the rules of all chains. A missing chain has none.
func listChains(conn *nftables.Conn) ([]nftRule, error) {
	var rules []nftRule
	for _, where := range nftChains {
		table := &nftables.Table{Family: where.family, Name: where.table}
		list, err := conn.GetRules(table, &nftables.Chain{Name: where.chain, Table: table})
		if netfilter.IsUnsupported(err) {
			continue // a kernel without that family
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		for _, rule := range list {
			rules = append(rules, nftRule{Rule: rule, where: where, comment: netfilter.Comment(rule.UserData)})
		}
	}
	return rules, nil
}

func (f *nftablesFinder) remove(ctx context.Context) ([]Leftover, error) {
	err := retry.Do(ctx, func() error {
		err := deleteRules(f.found)
		if !errors.Is(err, unix.ENOENT) {
			return err
		}
		// Another program has removed one of the rules, so the transaction failed.
		// Remove the remaining ones.
		rules, err := listNFTables(ctx)
		if err != nil {
			return err
		}
		f.found = f.own(rules)
		return retry.ErrChanged
	})
	if err != nil {
		return nil, fmt.Errorf("delete nftables rules: %w", err)
	}
	var list []Leftover
	for _, rule := range f.found {
		list = append(list, rule.leftover())
	}
	return list, nil
}

// deleteRules deletes rules by handle in one transaction.
func deleteRules(rules []nftRule) error {
	if len(rules) == 0 {
		return nil
	}
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	for _, rule := range rules {
		if err := conn.DelRule(rule.Rule); err != nil {
			return err
		}
	}
	return conn.Flush()
}
