package cleanup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/retry"
)

// tables is the subset of an iptables command that cleanup uses. iptables.IsMissing and
// iptables.IsBusy classify its errors.
type tables interface {
	List(ctx context.Context, table string, chain ...string) ([]string, error)
	Delete(ctx context.Context, table, chain string, spec ...string) error
	ClearAndDeleteChain(ctx context.Context, table, chain string) error
}

// iptablesFinder finds chains and rules of the iptables backends of the reference
// plugins.
type iptablesFinder struct {
	*search
	open   func(family) (tables, error)
	kernel func(family, string) kernelTable
	rules  []iptRule
	chains []iptChain
}

type iptRule struct {
	iptables.Rule
	family  family
	table   string
	network string
}

func (r iptRule) leftover() Leftover {
	where := fmt.Sprintf("%s %s %s", r.family, r.table, r.Chain)
	return Leftover{Kind: KindIPTablesRule, Network: r.network, Where: where, Object: r.String()}
}

// iptChain is a chain of the allocation in the nat table. It is removed together with
// its rules.
type iptChain struct {
	family  family
	name    string
	network string
}

func (c iptChain) leftover() Leftover {
	return Leftover{Kind: KindIPTablesChain, Network: c.network, Where: string(c.family) + " nat", Object: c.name}
}

func (f *iptablesFinder) find(ctx context.Context) ([]Leftover, error) {
	var errs []error
	f.rules, f.chains = nil, nil
	for _, fam := range f.families() {
		if err := f.inFamily(ctx, fam); err != nil {
			f.addresses.incomplete = true
			errs = append(errs, fmt.Errorf("list %s iptables rules: %w", fam, err))
		}
	}
	var list []Leftover
	for _, rule := range f.rules {
		list = append(list, rule.leftover())
	}
	for _, chain := range f.chains {
		list = append(list, chain.leftover())
	}
	return list, errors.Join(errs...)
}

// inFamily searches the tables of one family in which the allocation can have rules. If
// the kernel shows that they have none, it does not run the command, which takes longer
// than all other searches.
func (f *iptablesFinder) inFamily(ctx context.Context, fam family) error {
	nat, filter := f.within(func(s scope) bool { return s.nat }), f.within(func(s scope) bool { return s.filter })
	if !nat && !filter {
		return nil
	}
	if f.empty(ctx, fam, nat) {
		return nil
	}
	err := f.listed(ctx, fam, nat, filter)
	if ctx.Err() != nil {
		return err
	}
	if err == nil {
		return f.requireListed(ctx, fam, nat, filter)
	}
	return f.requireAbsent(ctx, fam, nat, filter, err)
}

// listed searches with the command of the family. Rules of the filter table contain
// only addresses, so that table is searched second, and only if there are addresses.
func (f *iptablesFinder) listed(ctx context.Context, fam family, nat, filter bool) error {
	ipt, err := f.open(fam)
	if err == nil && nat {
		err = f.inNat(ctx, ipt, fam)
	}
	if err != nil || !filter || len(f.addresses.own) == 0 || ctx.Err() != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	accepts, err := f.inFilter(ctx, ipt, fam)
	if len(accepts) > 0 && !nat {
		// Only the nat table shows the current holders of these addresses.
		err = f.inNat(ctx, ipt, fam)
	}
	if err != nil {
		return err
	}
	for _, rule := range accepts {
		if f.addresses.isOurs(acceptedAddress(rule.Rule)) {
			f.rules = append(f.rules, rule)
		}
	}
	return nil
}

// inFilter returns the accept rules of the firewall plugin for the addresses of the
// allocation.
func (f *iptablesFinder) inFilter(ctx context.Context, ipt tables, fam family) ([]iptRule, error) {
	listing, err := list(ctx, ipt, "filter")
	var accepts []iptRule
	for _, rule := range listing.Rules {
		if rule.Chain != forwardChain {
			continue
		}
		if network, own := f.addresses.own[acceptedAddress(rule)]; own {
			accepts = append(accepts, iptRule{Rule: rule, family: fam, table: "filter", network: network})
		}
	}
	return accepts, err
}

// acceptedAddress returns the address of a rule that the firewall plugin has created.
// It returns the zero address for any other rule.
func acceptedAddress(rule iptables.Rule) netip.Addr {
	from := []string{"-s", rule.Value("-s"), "-j", "ACCEPT"}
	to := []string{"-d", rule.Value("-d"), "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"}
	switch {
	case slices.Equal(rule.Spec, from):
		return singleAddress(from[1])
	case slices.Equal(rule.Spec, to):
		return singleAddress(to[1])
	}
	return netip.Addr{}
}

// singleAddress returns the address of a prefix that contains only one.
func singleAddress(text string) netip.Addr {
	prefix, err := netip.ParsePrefix(text)
	if err != nil || !prefix.IsSingleIP() {
		return netip.Addr{}
	}
	return prefix.Addr()
}

// list lists a whole table.
func list(ctx context.Context, ipt tables, table string) (iptables.Listing, error) {
	lines, err := ipt.List(ctx, table)
	if err != nil {
		return iptables.Listing{}, err
	}
	return iptables.Parse(lines)
}

func (f *iptablesFinder) remove(ctx context.Context) ([]Leftover, error) {
	var (
		removed []Leftover
		errs    []error
	)
	act := func(l Leftover, fam family, act func(tables) error) {
		err := f.change(ctx, fam, act)
		switch {
		case err == nil:
			removed = append(removed, l)
		case !iptables.IsMissing(err):
			errs = append(errs, fmt.Errorf("delete %s: %w", l, err))
		}
	}
	// A chain can be deleted only if no rule jumps to it.
	for _, rule := range f.rules {
		act(rule.leftover(), rule.family, func(ipt tables) error {
			return ipt.Delete(ctx, rule.table, rule.Chain, rule.Spec...)
		})
	}
	for _, chain := range f.chains {
		act(chain.leftover(), chain.family, func(ipt tables) error {
			return ipt.ClearAndDeleteChain(ctx, "nat", chain.name)
		})
	}
	return removed, errors.Join(errs...)
}

// change makes one change. It retries if a concurrent change of another program
// interferes.
func (f *iptablesFinder) change(ctx context.Context, fam family, act func(tables) error) error {
	ipt, err := f.open(fam)
	if err != nil {
		return err
	}
	return retry.Do(ctx, func() error {
		err := act(ipt)
		if iptables.IsBusy(err) {
			return fmt.Errorf("%w: %w", retry.ErrChanged, err)
		}
		return err
	})
}

// openTables returns the iptables command of a family.
func openTables(fam family) (tables, error) {
	number := iptables.IPv4
	if fam == ipv6 {
		number = iptables.IPv6
	}
	command, err := iptables.Open(number)
	if err != nil {
		return nil, err
	}
	return command, nil
}
