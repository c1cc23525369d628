package bandwidth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/retry"
)

// CanLimit implements sdk.Limiter. Limits in the configuration of the network take
// precedence over those of the runtime.
func (b *bandwidth) CanLimit(c *sdk.CmdArgs) error {
	if b.Limits != nil {
		return fmt.Errorf("the configuration of the network has limits of its own: %w", sdk.ErrCannotLimit)
	}
	if err := b.checkVersion(); err != nil {
		return fmt.Errorf("%w: %w", sdk.ErrCannotLimit, err)
	}
	if _, _, err := b.limit.buckets(); err != nil {
		return fmt.Errorf("%w: %w", sdk.ErrInvalidLimits, err)
	}
	_, _, err := b.limited(c)
	return err
}

// limited returns the links that limits of an attachment use, and the result of its ADD.
func (b *bandwidth) limited(c *sdk.CmdArgs) (*addition, *types100.Result, error) {
	result, err := c.Previous(&b.Common)
	if err != nil {
		return nil, nil, err
	}
	veth, err := hostEnd(c, result)
	if err != nil {
		return nil, nil, err
	}
	a := &addition{host: c.Host.Kernel, owner: c.Owner(b.Name), veth: veth, ifbName: ifbName(b.Name, c.ContainerID)}
	a.ifbMAC = macOf(result, a.ifbName)
	return a, result, a.findIfb()
}

// macOf returns the MAC of a link of the host in a result; nil if it has none.
func macOf(result *types100.Result, name string) net.HardwareAddr {
	i := slices.IndexFunc(result.Interfaces, func(i *types100.Interface) bool { return i.Name == name && i.Sandbox == "" })
	if i < 0 {
		return nil
	}
	mac, err := net.ParseMAC(result.Interfaces[i].Mac)
	if err != nil {
		return nil
	}
	return mac
}

// Limit implements sdk.Limiter. Token buckets are changed where they are, so packets that
// wait in them stay.
func (b *bandwidth) Limit(ctx context.Context, c *sdk.CmdArgs) (*types100.Result, error) {
	a, result, err := b.setLimits(ctx, c)
	if err != nil {
		return nil, err
	}
	setInterface(result, a.ifbName, a.ifb)
	return result, nil
}

// setLimits is Limit without a change of the result.
func (b *bandwidth) setLimits(ctx context.Context, c *sdk.CmdArgs) (*addition, *types100.Result, error) {
	ingress, egress, err := b.limit.buckets()
	if err != nil {
		return nil, nil, err
	}
	a, result, err := b.limited(c)
	if err != nil {
		return nil, nil, err
	}
	if err := a.setBucket(a.veth, ingress); err != nil {
		return nil, nil, fmt.Errorf("limit what the container receives on veth %q: %w", a.veth.Attrs().Name, err)
	}
	if egress == nil {
		err = a.removeEgress(ctx)
	} else {
		err = a.setEgress(ctx, egress)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("limit what the container sends on veth %q: %w", a.veth.Attrs().Name, err)
	}
	return a, result, nil
}

// findIfb finds the ifb of the attachment, if there is one. The error tells that another
// attachment has it.
func (a *addition) findIfb() error {
	link, err := a.host.LinkByName(a.ifbName)
	if rtnl.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find ifb %q: %w", a.ifbName, err)
	}
	alias := link.Attrs().Alias
	if _, owned := names.ParseOwner(alias); owned && alias != a.owner.String() || link.Type() != "ifb" {
		return fmt.Errorf("link %q (%s) belongs to %q", a.ifbName, link.Type(), alias)
	}
	a.ifb = link
	return nil
}

// setBucket makes a bucket the root discipline of a link; nil removes the bucket that the
// link has. It changes a bucket in place, and replaces a discipline of another program.
func (a *addition) setBucket(link netlink.Link, want *bucket) error {
	root, err := a.root(link)
	if err != nil {
		return err
	}
	tbf, has := root.(*netlink.Tbf)
	has = has && tbf.Handle == rootHandle
	switch {
	case want == nil && has:
		return a.host.QdiscDel(root)
	case want == nil || has && want.differs(tbf) == nil:
		return nil
	case has:
		return a.host.QdiscChange(want.qdisc(link.Attrs().Index))
	case root != nil && root.Attrs().Handle != 0: // not the kernel's default
		if err := a.host.QdiscDel(root); err != nil {
			return err
		}
	}
	return a.host.QdiscAdd(want.qdisc(link.Attrs().Index))
}

// root returns the root discipline of a link, nil if there is none.
func (a *addition) root(link netlink.Link) (netlink.Qdisc, error) {
	qdiscs, err := a.disciplines(link)
	i := slices.IndexFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Attrs().Parent == netlink.HANDLE_ROOT })
	if err != nil || i < 0 {
		return nil, err
	}
	return qdiscs[i], nil
}

func (a *addition) disciplines(link netlink.Link) ([]netlink.Qdisc, error) {
	qdiscs, err := retry.List(func() ([]netlink.Qdisc, error) { return a.host.QdiscList(link) })
	if err != nil {
		return nil, fmt.Errorf("list disciplines of link %q: %w", link.Attrs().Name, err)
	}
	return qdiscs, nil
}

// setEgress creates what is missing of the ifb and the redirection to it, and sets its bucket.
// As in ADD, no frame is redirected to an ifb that is not ready.
func (a *addition) setEgress(ctx context.Context, egress *bucket) error {
	if a.ifb == nil {
		if err := a.createIfb(ctx); err != nil {
			return fmt.Errorf("create ifb %q: %w", a.ifbName, err)
		}
	}
	if err := a.prepareIfb(ctx); err != nil {
		return fmt.Errorf("prepare ifb %q: %w", a.ifbName, err)
	}
	if err := a.host.LinkSetUp(a.ifb); err != nil {
		return fmt.Errorf("bring up ifb %q: %w", a.ifbName, err)
	}
	if err := a.setBucket(a.ifb, egress); err != nil {
		return fmt.Errorf("ifb %q: %w", a.ifbName, err)
	}
	has, err := a.hasIngress()
	if err == nil && !has {
		err = a.host.QdiscAdd(newIngress(a.veth.Attrs().Index))
	}
	if err != nil {
		return fmt.Errorf("add the ingress discipline: %w", err)
	}
	own, _, err := a.redirections()
	if err == nil && !redirects(own, a.ifb.Attrs().Index) {
		if err = a.deleteFilters(own); err == nil {
			err = a.host.FilterAdd(redirect(a.veth.Attrs().Index, a.ifb.Attrs().Index))
		}
	}
	if err != nil {
		return fmt.Errorf("redirect to ifb %q: %w", a.ifbName, err)
	}
	return nil
}

// removeEgress removes the redirection and then the ifb, so that no frame is redirected to an
// ifb that is gone. Filters of other programs stay, with the ingress discipline.
func (a *addition) removeEgress(ctx context.Context) error {
	has, err := a.hasIngress()
	if err != nil {
		return err
	}
	if has {
		own, others, err := a.redirections()
		switch {
		case err != nil:
		case others:
			err = a.deleteFilters(own)
		case a.ifb != nil || len(own) > 0:
			err = a.host.QdiscDel(newIngress(a.veth.Attrs().Index))
		}
		if err != nil {
			return fmt.Errorf("end the redirection to ifb %q: %w", a.ifbName, err)
		}
	}
	if a.ifb == nil {
		return nil
	}
	a.ifb = nil
	if err := a.deleteIfb(ctx); err != nil {
		return fmt.Errorf("delete ifb %q: %w", a.ifbName, err)
	}
	return nil
}

// hasIngress reports whether the veth has the ingress discipline.
func (a *addition) hasIngress() (bool, error) {
	qdiscs, err := a.disciplines(a.veth)
	return slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool {
		return q.Type() == "ingress" && q.Attrs().Handle == ingressHandle
	}), err
}

// redirections returns the filters of the veth that redirect to the ifb, or to a link that is
// gone, and whether there are others.
func (a *addition) redirections() (own []netlink.Filter, others bool, err error) {
	filters, err := retry.List(func() ([]netlink.Filter, error) { return a.host.FilterList(a.veth, ingressHandle) })
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return nil, false, fmt.Errorf("list filters: %w", err)
	}
	for _, f := range filters {
		one := []netlink.Filter{f}
		if redirects(one, 0) || a.ifb != nil && redirects(one, a.ifb.Attrs().Index) {
			own = append(own, f)
		} else {
			others = true
		}
	}
	return own, others, nil
}

func (a *addition) deleteFilters(filters []netlink.Filter) error {
	for _, f := range filters {
		if err := a.host.FilterDel(f); err != nil {
			return err
		}
	}
	return nil
}

// setInterface adds a link of the host to a result, or removes it if link is nil.
func setInterface(result *types100.Result, name string, link netlink.Link) {
	at := slices.IndexFunc(result.Interfaces, func(i *types100.Interface) bool { return i.Name == name && i.Sandbox == "" })
	switch {
	case link == nil && at >= 0:
		result.Interfaces = slices.Delete(result.Interfaces, at, at+1)
		for _, ip := range result.IPs {
			if ip.Interface != nil && *ip.Interface > at {
				ip.Interface = types100.Int(*ip.Interface - 1)
			}
		}
	case link != nil && at >= 0:
		result.Interfaces[at].Mac = link.Attrs().HardwareAddr.String()
	case link != nil:
		result.Interfaces = append(result.Interfaces, &types100.Interface{Name: name, Mac: link.Attrs().HardwareAddr.String()})
	}
}
