package cleanup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/plugins/spoofcheck"
	"github.com/allocnet/allocnet/internal/retry"
)

// spoofFinder finds the objects of the bridge plugin's option macspoofchk: two chains
// for each interface, and a rule in a shared chain that jumps to the first one.
type spoofFinder struct {
	*search
	rules  []nftRule
	chains []*nftables.Chain // the first chains before the second ones, to which they jump
}

var (
	spoofTable = &nftables.Table{Family: nftables.TableFamilyBridge, Name: spoofcheck.TableName}
	spoofBase  = nftChain{family: spoofTable.Family, table: spoofTable.Name, chain: spoofcheck.BaseChainName}
)

func (f *spoofFinder) find(ctx context.Context) ([]Leftover, error) {
	f.rules, f.chains = nil, nil
	if !f.within(func(s scope) bool { return s.spoofcheck }) {
		return nil, nil
	}
	err := netfilter.Look(ctx, f.look)
	if err != nil {
		return nil, fmt.Errorf("list nftables chains of family bridge: %w", err)
	}
	return f.leftovers(), nil
}

// look finds the chains of the allocation and the rules that jump to them.
func (f *spoofFinder) look(conn *nftables.Conn) error {
	f.rules, f.chains = nil, nil
	chains, err := conn.ListChainsOfTableFamily(spoofTable.Family)
	if netfilter.IsUnsupported(err) {
		return nil // a kernel without that family
	}
	if err != nil {
		return err
	}
	foreign := map[string]bool{}
	for _, chain := range chains {
		if chain.Table.Name != spoofTable.Name || !f.isOurs(chain.Name) {
			continue
		}
		f.chains = append(f.chains, chain)
		if first, last := strings.CutSuffix(chain.Name, spoofcheck.MACSuffix); last {
			rules, err := conn.GetRules(spoofTable, chain)
			if err != nil {
				return err
			}
			owner, noted := spoofcheck.OwnerOf(rules)
			foreign[first] = noted && !f.isOwner(owner)
		}
	}
	f.chains = slices.DeleteFunc(f.chains, func(c *nftables.Chain) bool {
		return foreign[strings.TrimSuffix(c.Name, spoofcheck.MACSuffix)]
	})
	if len(f.chains) == 0 {
		return nil // without chains, no rule can jump to one
	}
	slices.SortFunc(f.chains, func(a, b *nftables.Chain) int { return len(a.Name) - len(b.Name) })
	rules, err := conn.GetRules(spoofTable, &nftables.Chain{Name: spoofBase.chain, Table: spoofTable})
	for _, rule := range rules {
		if slices.ContainsFunc(f.chains, func(c *nftables.Chain) bool { return spoofcheck.LeadsTo(rule, c.Name) }) {
			f.rules = append(f.rules, nftRule{Rule: rule, where: spoofBase, comment: netfilter.Comment(rule.UserData)})
		}
	}
	return err
}

// isOurs reports whether a chain belongs to an interface of the allocation. If the
// interfaces are not known, it accepts all names without a dash; with one, the name of
// the chain would be ambiguous.
func (f *spoofFinder) isOurs(chain string) bool {
	ifName, found := strings.CutPrefix(chain, spoofcheck.ChainPrefix+f.target.ID+"-")
	if !found {
		return false
	}
	ifName = strings.TrimSuffix(ifName, spoofcheck.MACSuffix)
	if len(f.attachments) == 0 {
		return f.hasInterface(ifName) && ifName != "" && !strings.Contains(ifName, "-")
	}
	return slices.ContainsFunc(f.attachments, func(a *attachment) bool { return a.IfName == ifName })
}

func (f *spoofFinder) leftovers() []Leftover {
	var list []Leftover
	for _, rule := range f.rules {
		list = append(list, rule.leftover())
	}
	for _, chain := range f.chains {
		list = append(list, Leftover{Kind: KindNFTablesChain, Where: "bridge " + spoofTable.Name, Object: chain.Name})
	}
	return list
}

// remove deletes all rules and chains in one transaction. A chain can be deleted only
// if no rule jumps to it.
func (f *spoofFinder) remove(ctx context.Context) ([]Leftover, error) {
	err := retry.Do(ctx, func() error {
		err := f.delete()
		if !errors.Is(err, unix.ENOENT) {
			return err
		}
		// Another program has removed one of the objects, so the transaction failed.
		// Delete the remaining ones.
		if err := netfilter.Look(ctx, f.look); err != nil {
			return err
		}
		return retry.ErrChanged
	})
	if err != nil {
		return nil, fmt.Errorf("delete rules of macspoofchk: %w", err)
	}
	return f.leftovers(), nil
}

func (f *spoofFinder) delete() error {
	if len(f.chains) == 0 {
		return nil
	}
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	for _, rule := range f.rules {
		if err := conn.DelRule(rule.Rule); err != nil {
			return err
		}
	}
	for _, chain := range f.chains {
		conn.DelChain(chain)
	}
	return conn.Flush()
}
