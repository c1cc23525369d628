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

// tables is what is needed of an iptables command. iptables.IsMissing and IsBusy know its errors.
type tables interface {
	List(table, chain string) ([]string, error)
	Delete(table, chain string, spec ...string) error
	ClearAndDeleteChain(table, chain string) error
}

// iptablesFinder looks for chains and rules of the reference plugins' iptables backends.
type iptablesFinder struct {
	*search
	open   func(family) (tables, error)
	kernel func(family, string) unlisted
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

// iptChain is a chain of the allocation's own in the nat table. It goes with the rules in it.
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
			f.addresses.unsure = true
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

// inFamily looks at the tables of one family that the allocation can have something in. Where the kernel shows that
// they have nothing, the command is not run: that takes longer than everything else.
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
		return f.unhidden(ctx, fam, nat, filter)
	}
	return f.absent(ctx, fam, nat, filter, err)
}

// listed looks with the family's command. The filter table knows nothing but addresses, so it comes second, and is
// read only when there are any.
func (f *iptablesFinder) listed(ctx context.Context, fam family, nat, filter bool) error {
	ipt, err := f.open(fam)
	if err == nil && nat {
		err = f.inNat(ipt, fam)
	}
	if err != nil || !filter || len(f.addresses.own) == 0 || ctx.Err() != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	accepts, err := f.inFilter(ipt, fam)
	if len(accepts) > 0 && !nat {
		// Who holds these addresses now can be read only there.
		err = f.inNat(ipt, fam)
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

// inFilter finds the accepts of the firewall plugin for addresses that the allocation has or had.
func (f *iptablesFinder) inFilter(ipt tables, fam family) ([]iptRule, error) {
	listing, err := list(ipt, "filter")
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

// acceptedAddress is the address that a rule exactly as the firewall plugin makes it is for.
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

// singleAddress is the address of a prefix that holds only one.
func singleAddress(text string) netip.Addr {
	prefix, err := netip.ParsePrefix(text)
	if err != nil || !prefix.IsSingleIP() {
		return netip.Addr{}
	}
	return prefix.Addr()
}

// list reads a whole table at once: go-iptables lists the chain that it is given, or all where the place of the
// chain is taken by an option that it gives anyway.
func list(ipt tables, table string) (iptables.Listing, error) {
	lines, err := ipt.List(table, "--wait")
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
	// A chain can go only when nothing leads to it any more.
	for _, rule := range f.rules {
		act(rule.leftover(), rule.family, func(ipt tables) error {
			return ipt.Delete(rule.table, rule.Chain, rule.Spec...)
		})
	}
	for _, chain := range f.chains {
		act(chain.leftover(), chain.family, func(ipt tables) error {
			return ipt.ClearAndDeleteChain("nat", chain.name)
		})
	}
	return removed, errors.Join(errs...)
}

// change makes one change, and makes it again when somebody else's got in the way.
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
