package bandwidth

import (
	"context"
	"fmt"
	"net"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/retry"
)

// Check implements sdk.Plugin. Unlike the reference plugin's CHECK, it reports
// a missing bucket or redirection.
func (b *bandwidth) Check(_ context.Context, c *sdk.CmdArgs) error {
	ingress, egress, err := b.limit.buckets()
	if err != nil {
		return err
	}
	result, err := c.Previous(&b.Common)
	if err != nil {
		return err
	}
	veth, err := hostEnd(c, result)
	if err != nil {
		return err
	}
	if ingress != nil {
		if err := checkRoot(c.Host.Kernel, veth, ingress); err != nil {
			return err
		}
	}
	if egress == nil {
		return nil
	}
	ifb, err := checkEgress(c.Host.Kernel, veth, ifbName(b.Name, c.ContainerID), egress)
	if err != nil {
		return err
	}
	if alias := c.Owner(b.Name).String(); ifb.Alias != alias && !b.mayBeReference(c, result) {
		return fmt.Errorf("ifb %q has the alias %q, not %q", ifb.Name, ifb.Alias, alias)
	}
	return nil
}

// mayBeReference reports whether the reference plugin may have made the ifb, which has no alias then.
func (b *bandwidth) mayBeReference(c *sdk.CmdArgs, r *types100.Result) bool {
	return c.DropIn() || slices.Contains(c.Binaries, b.Type) || sdk.AddedByReference(c, b.Name, r)
}

// checkEgress compares the ifb, which it returns, its bucket, and the redirection of the veth to it.
func checkEgress(h *rtnl.Host, veth netlink.Link, name string, egress *bucket) (*netlink.LinkAttrs, error) {
	ifb, err := h.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("find ifb %q: %w", name, err)
	}
	if ifb.Attrs().Flags&net.FlagUp == 0 {
		return nil, fmt.Errorf("ifb %q is down", name)
	}
	if err := checkRoot(h, ifb, egress); err != nil {
		return nil, err
	}
	filters, err := retry.List(func() ([]netlink.Filter, error) { return h.FilterList(veth, ingressHandle) })
	if err != nil {
		return nil, fmt.Errorf("list filters of veth %q: %w", veth.Attrs().Name, err)
	}
	if !redirects(filters, ifb.Attrs().Index) {
		return nil, fmt.Errorf("veth %q does not redirect to ifb %q", veth.Attrs().Name, name)
	}
	return ifb.Attrs(), nil
}

func checkRoot(h *rtnl.Host, link netlink.Link, want *bucket) error {
	qdiscs, err := retry.List(func() ([]netlink.Qdisc, error) { return h.QdiscList(link) })
	if err != nil {
		return fmt.Errorf("list disciplines of link %q: %w", link.Attrs().Name, err)
	}
	if err := want.findRoot(qdiscs); err != nil {
		return fmt.Errorf("link %q: %w", link.Attrs().Name, err)
	}
	return nil
}
