package cleanup

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/allocnet/allocnet/internal/netlink/netfilter"
)

// unlisted is one of iptables' tables as the kernel shows it where the command cannot list it.
type unlisted interface {
	Chains(context.Context) ([]string, error)
	Addresses(ctx context.Context, chain string) ([]netip.Addr, error)
	Held(cause error, what string) error
	HiddenChains(context.Context) ([]string, error)
	HiddenAddresses(ctx context.Context, chain string) ([]netip.Addr, error)
	HiddenComments(context.Context) ([]string, error)
	HeldByOther(what string) error
}

func inKernel(fam family, table string) unlisted {
	return netfilter.Table{IPv6: fam == ipv6, Name: table}
}

// absent is nil if the kernel shows that the tables of a family have no rules of the allocation. Then the command is
// not needed, and its error is dropped.
func (f *iptablesFinder) absent(ctx context.Context, fam family, nat, filter bool, cause error) error {
	if nat {
		if err := f.absentInNat(ctx, f.kernel(fam, "nat"), cause); err != nil {
			return err
		}
	}
	if filter {
		return f.absentInFilter(ctx, f.kernel(fam, "filter"), cause)
	}
	return nil
}

// empty reports whether the kernel shows that a family has no rules of the allocation: it has no address that a rule
// could be for, and there is no chain of its own. The tables are of both kinds of iptables.
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

// chainsInNat finds the chains of the allocation, through which all of its rules go, and those of any. With no network
// known any allocation's may be its own.
func (f *iptablesFinder) chainsInNat(ctx context.Context, nat unlisted) (own, all []string, err error) {
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
		if len(f.attachments) == 0 || slices.Contains(names, chain) {
			own = append(own, chain)
		}
	}
	return own, all, err
}

// absentInNat looks for chains of the allocation.
func (f *iptablesFinder) absentInNat(ctx context.Context, nat unlisted, cause error) error {
	own, all, err := f.chainsInNat(ctx, nat)
	if err != nil {
		return fmt.Errorf("%w; without it: %w", cause, err)
	}
	if len(all) > 0 {
		f.addresses.unsure = true // the jumps to them would tell who holds their addresses
	}
	if len(own) > 0 {
		return nat.Held(cause, "chain "+own[0])
	}
	return nil
}

// absentInFilter looks for accepts of the allocation's addresses.
func (f *iptablesFinder) absentInFilter(ctx context.Context, filter unlisted, cause error) error {
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

// unhidden is nil if the command, which works, has listed all rules of the allocation that the kernel has in the
// tables of a family. The two kinds of iptables do not see each other's rules.
func (f *iptablesFinder) unhidden(ctx context.Context, fam family, nat, filter bool) error {
	if nat {
		if err := f.unhiddenInNat(ctx, f.kernel(fam, "nat"), fam); err != nil {
			return err
		}
	}
	if filter && len(f.addresses.own) > 0 {
		return f.unhiddenInFilter(ctx, f.kernel(fam, "filter"), fam)
	}
	return nil
}

func (f *iptablesFinder) unhiddenInNat(ctx context.Context, nat unlisted, fam family) error {
	if len(f.attachments) == 0 {
		return f.unhiddenByComment(ctx, nat, fam)
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

// unhiddenByComment goes by the comments that name the ID: with no network known, nothing else tells whose rules are.
func (f *iptablesFinder) unhiddenByComment(ctx context.Context, nat unlisted, fam family) error {
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

func (f *iptablesFinder) unhiddenInFilter(ctx context.Context, filter unlisted, fam family) error {
	accepted, err := filter.HiddenAddresses(ctx, forwardChain)
	accepted = slices.DeleteFunc(accepted, func(addr netip.Addr) bool {
		_, own := f.addresses.own[addr]
		return !own || f.addresses.foreign[addr]
	})
	if err != nil || len(accepted) == 0 {
		return err
	}
	// What is listed now is of this kind: found already, or of the next holder of an address.
	ipt, err := f.open(fam)
	if err != nil {
		return err
	}
	listed, err := f.inFilter(ipt, fam)
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
