package ptp

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/veth"
)

// The source guard is a rule that all links of one group share, so that no packet passes
// more rules for every container. See ruleset.Ruleset.Guard.

func (p *ptp) guardsSources() bool { return p.SourceGuard == nil || *p.SourceGuard }

// group is the group of the host's end.
func (p *ptp) group() uint32 {
	if p.guardsSources() {
		return names.GuardedGroup
	}
	return 0
}

func (a *addition) guard(ctx context.Context) error {
	if !a.guardsSources() {
		return nil
	}
	return a.args.Host.Guard(ctx, GuardedFamilies()...)
}

func (p *ptp) dropsFragments() bool { return p.Fragments != nil && !*p.Fragments }

// dropFragments adds the element before the link exists.
func (a *addition) dropFragments(ctx context.Context) error {
	if !a.dropsFragments() {
		return nil
	}
	return a.args.AddElements(ctx, sdk.Addition{Elements: a.unfragmented(), Now: true})
}

func (a *addition) passFragments(ctx context.Context) error {
	if !a.dropsFragments() {
		return nil
	}
	return a.args.Host.Rules.Del(ctx, a.unfragmented())
}

func (a *addition) unfragmented() *ruleset.Elements {
	return &ruleset.Elements{Owner: a.args.Owner(a.Name), Unfragmented: []string{a.veth.Name}}
}

// GuardedFamilies returns the families of the source guard: all that the kernel has. A workload
// can send packets of each, whichever addresses its network has.
func GuardedFamilies() []ruleset.Family {
	if !rtnl.HasIPv6() {
		return []ruleset.Family{ruleset.IPv4}
	}
	return []ruleset.Family{ruleset.IPv4, ruleset.IPv6}
}

func (p *ptp) checkGuard(ctx context.Context, c *sdk.CmdArgs, link netlink.Link, r *types100.Result) error {
	if sdk.AddedByReference(c, p.Name, r) {
		return nil
	}
	if !p.guardsSources() {
		return veth.CheckRouters(link.Attrs().Name)
	}
	var groupErr error
	// Links of other groups that are guarded lead to a network policy.
	if group := link.Attrs().Group; !names.IsGuarded(group) {
		groupErr = fmt.Errorf("interface %q of the host is in group %d instead of %d, so packets from the container may have any source", link.Attrs().Name, group, names.GuardedGroup)
	}
	return errors.Join(groupErr, c.Host.Rules.CheckGuard(ctx, GuardedFamilies()...))
}

// restoreGuard restores the group of the host's end, and the rules. Wanted has the rules
// alone: the kernel needs long to describe a link on a host with many namespaces.
func (p *ptp) restoreGuard(ctx context.Context, c *sdk.CmdArgs, r *types100.Result) error {
	if !p.guardsSources() {
		return nil
	}
	_, err := c.Host.RestoreGuard(ctx, GuardedFamilies()...)
	link := c.Owner(p.Name).Veth()
	if port, portErr := c.Host.Kernel.Port(link); portErr == nil && names.IsGuarded(port.Group) {
		return err // a group of a network policy is guarded, too
	}
	return errors.Join(err, c.Host.Kernel.EnsureGroup(link, names.GuardedGroup))
}
