package bandwidth

import (
	"context"
	"fmt"
	"net"

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
	return checkEgress(c.Host.Kernel, veth, ifbName(b.Name, c.ContainerID), egress)
}

// checkEgress compares the ifb, its bucket, and the redirection of the veth to it.
func checkEgress(h *rtnl.Host, veth netlink.Link, name string, egress *bucket) error {
	ifb, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find ifb %q: %w", name, err)
	}
	if ifb.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("ifb %q is down", name)
	}
	if err := checkRoot(h, ifb, egress); err != nil {
		return err
	}
	filters, err := retry.List(func() ([]netlink.Filter, error) { return h.FilterList(veth, ingressHandle) })
	if err != nil {
		return fmt.Errorf("list filters of veth %q: %w", veth.Attrs().Name, err)
	}
	if !redirects(filters, ifb.Attrs().Index) {
		return fmt.Errorf("veth %q does not redirect to ifb %q", veth.Attrs().Name, name)
	}
	return nil
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
