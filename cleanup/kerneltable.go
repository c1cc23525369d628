package cleanup

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/allocnet/allocnet/internal/netlink/netfilter"
)

// kernelTable is a table of iptables as read from the kernel, without the command.
// There are two variants of iptables, legacy and nft; the command shows the tables of
// only one of them, and those of the other one are hidden.
type kernelTable interface {
	Chains(context.Context) ([]string, error)
	Addresses(ctx context.Context, chain string) ([]netip.Addr, error)
	Held(cause error, what string) error
	HiddenChains(context.Context) ([]string, error)
	HiddenAddresses(ctx context.Context, chain string) ([]netip.Addr, error)
	HiddenComments(context.Context) ([]string, error)
	HeldByOther(what string) error
}

func inKernel(fam family, table string) kernelTable {
	return netfilter.Table{IPv6: fam == ipv6, Name: table}
}

// requireAbsent returns nil if the kernel shows that the tables of a family have no
// rules of the allocation. In that case the error of the command, cause, does not
// matter.
func (f *iptablesFinder) requireAbsent(ctx context.Context, fam family, nat, filter bool, cause error) error {
	if nat {
		if err := f.requireAbsentInNat(ctx, f.kernel(fam, "nat"), cause); err != nil {
			return err
		}
	}
	if filter {
		return f.requireAbsentInFilter(ctx, f.kernel(fam, "filter"), cause)
	}
	return nil
}

// empty reports whether the kernel shows that a family has no rules of the allocation:
// no address of the allocation is known, and none of its chains exists in either
// variant of iptables.
func (f *iptablesFinder) empty(ctx context.Context, fam family, nat bool) bool {
	if len(f.addresses.own) > 0 {
		return false
	}
	if !nat {
		return true
	}
	own, _, err := f.chainsInNat(ctx, f.kernel(fam, "nat"))
	return err == nil && len(own) == 0
}

// chainsInNat returns the chains of the allocation, and those of all allocations. Every
// rule of the allocation is in one of its chains or jumps to one. If no network is
// known, every chain may belong to the allocation.
func (f *iptablesFinder) chainsInNat(ctx context.Context, nat kernelTable) (own, all []string, err error) {
	chains, err := nat.Chains(ctx)
	var names []string
	for _, a := range f.attachments {
		names = append(names, chainNames(a.Network, f.target.ID)...)
	}
	for _, chain := range chains {
		if !ownChain.MatchString(chain) {
			continue
		}
		all = append(all, chain)
		if f.anyNetwork() || slices.Contains(names, chain) {
			own = append(own, chain)
		}
	}
	return own, all, err
}

// requireAbsentInNat returns an error if chains of the allocation exist.
func (f *iptablesFinder) requireAbsentInNat(ctx context.Context, nat kernelTable, cause error) error {
	own, all, err := f.chainsInNat(ctx, nat)
	if err != nil {
		return fmt.Errorf("%w; without it: %w", cause, err)
	}
	if len(all) > 0 {
		f.addresses.incomplete = true // the rules that jump to them contain addresses
	}
	if len(own) > 0 {
		return nat.Held(cause, "chain "+own[0])
	}
	return nil
}

// requireAbsentInFilter returns an error if accept rules for addresses of the
// allocation exist.
func (f *iptablesFinder) requireAbsentInFilter(ctx context.Context, filter kernelTable, cause error) error {
	if len(f.addresses.own) == 0 {
		return nil
	}
	accepted, err := filter.Addresses(ctx, forwardChain)
	if err != nil {
		return fmt.Errorf("%w; without it: %w", cause, err)
	}
	for _, addr := range accepted {
		if _, own := f.addresses.own[addr]; own && !f.addresses.foreign[addr] {
			return filter.Held(cause, fmt.Sprintf("rule of chain %s for %s", forwardChain, addr))
		}
	}
	return nil
}

// requireListed returns an error if the kernel has rules of the allocation that the
// command does not list because they belong to the other variant of iptables.
func (f *iptablesFinder) requireListed(ctx context.Context, fam family, nat, filter bool) error {
	if nat {
		if err := f.requireListedInNat(ctx, f.kernel(fam, "nat"), fam); err != nil {
			return err
		}
	}
	if filter && len(f.addresses.own) > 0 {
		return f.requireListedInFilter(ctx, f.kernel(fam, "filter"), fam)
	}
	return nil
}

func (f *iptablesFinder) requireListedInNat(ctx context.Context, nat kernelTable, fam family) error {
	if f.anyNetwork() {
		return f.requireListedByComment(ctx, nat, fam)
	}
	chains, err := nat.HiddenChains(ctx)
	if err != nil {
		return err
	}
	for _, a := range f.attachments {
		for _, own := range chainNames(a.Network, f.target.ID) {
			listed := slices.ContainsFunc(f.chains, func(c iptChain) bool { return c.family == fam && c.name == own })
			if !listed && slices.Contains(chains, own) {
				return nat.HeldByOther("chain " + own)
			}
		}
	}
	return nil
}

// requireListedByComment uses the comments with the ID. If no network is known, only
// comments identify the rules.
func (f *iptablesFinder) requireListedByComment(ctx context.Context, nat kernelTable, fam family) error {
	comments, err := nat.HiddenComments(ctx)
	if err != nil {
		return err
	}
	for _, comment := range comments {
		listed := slices.ContainsFunc(f.rules, func(r iptRule) bool { return r.family == fam && r.Value("--comment") == comment })
		if !listed && commentHasID(comment, f.target.ID) {
			return nat.HeldByOther(fmt.Sprintf("rule with the comment %q", comment))
		}
	}
	return nil
}

func (f *iptablesFinder) requireListedInFilter(ctx context.Context, filter kernelTable, fam family) error {
	accepted, err := filter.HiddenAddresses(ctx, forwardChain)
	accepted = slices.DeleteFunc(accepted, func(addr netip.Addr) bool {
		_, own := f.addresses.own[addr]
		return !own || f.addresses.foreign[addr]
	})
	if err != nil || len(accepted) == 0 {
		return err
	}
	// Rules that the command lists are not hidden: they were found, or belong to the
	// next holder of an address.
	ipt, err := f.open(fam)
	if err != nil {
		return err
	}
	listed, err := f.inFilter(ctx, ipt, fam)
	if err != nil {
		return err
	}
	for _, addr := range accepted {
		if !slices.ContainsFunc(listed, func(r iptRule) bool { return acceptedAddress(r.Rule) == addr }) {
			return filter.HeldByOther(fmt.Sprintf("rule of chain %s for %s", forwardChain, addr))
		}
	}
	return nil
}
