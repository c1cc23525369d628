package veth

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/sandbox"
)

// deleteLink deletes the veth of an attachment. If the host has no link of the name that ADD
// gave it, the veth is gone with the namespace of its peer; if that namespace exists, another
// program may have renamed the veth, or moved it. found reports whether the host had the link.
func deleteLink(ctx context.Context, c *sdk.CmdArgs, network string, previous *types100.Result) (found bool, err error) {
	owner := c.Owner(network)
	found, err = c.Host.Kernel.DeleteLink(ctx, owner.Veth())
	if found || err != nil {
		return found, err
	}
	name, err := renamed(c, owner.String())
	if err != nil {
		return false, err
	}
	if name != "" {
		return c.Host.Kernel.DeleteLink(ctx, name)
	}
	return false, deleteMoved(c, owner.Veth(), previous)
}

// setDown takes the host's end of the veth of an attachment down, also under another name.
func setDown(c *sdk.CmdArgs, network string) error {
	owner := c.Owner(network)
	found, err := c.Host.Kernel.SetDown(owner.Veth())
	if found || err != nil {
		return err
	}
	name, err := renamed(c, owner.String())
	if err != nil || name == "" {
		return err
	}
	_, err = c.Host.Kernel.SetDown(name)
	return err
}

// renamed returns the name of the host's link with an alias whose peer is in the namespace of
// the attachment; "" if there is none, or if the namespace is gone. Unlike a search among the
// links of the host, it does not take longer with more allocations.
func renamed(c *sdk.CmdArgs, alias string) (string, error) {
	h, err := inside(c)
	if h == nil || err != nil {
		return "", err
	}
	links, err := retry.List(h.LinkList)
	if err != nil {
		return "", fmt.Errorf("list the interfaces of the sandbox: %w", err)
	}
	for _, peer := range links {
		end, err := hostEnd(c, peer)
		if err != nil {
			return "", err
		}
		if end != nil && end.Attrs().Alias == alias {
			return end.Attrs().Name, nil
		}
	}
	return "", nil
}

// deleteMoved deletes the container's end of a veth whose other end is in a third namespace.
// There it has no name that is known, but the MAC of the container's end is that of the result.
func deleteMoved(c *sdk.CmdArgs, name string, previous *types100.Result) error {
	h, err := inside(c)
	if h == nil || err != nil || previous == nil || !has(previous, name, "") {
		return err
	}
	peer, err := h.LinkByName(c.IfName)
	if rtnl.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find interface %q in the sandbox: %w", c.IfName, err)
	}
	end, err := hostEnd(c, peer)
	if err != nil || end != nil || peer.Type() != "veth" { // it is that of another attachment
		return err
	}
	for _, itf := range previous.Interfaces {
		if itf.Name == c.IfName && itf.Sandbox != "" && itf.Mac == peer.Attrs().HardwareAddr.String() {
			if err := h.LinkDel(peer); err != nil && !rtnl.IsNotFound(err) {
				return fmt.Errorf("delete interface %q of the sandbox: %w", c.IfName, err)
			}
		}
	}
	return nil
}

// inside returns rtnetlink in the namespace of the attachment: see sandboxOf.
func inside(c *sdk.CmdArgs) (*netlink.Handle, error) {
	s, err := sandboxOf(c)
	if s == nil || err != nil {
		return nil, err
	}
	return s.Handle()
}

// sandboxOf returns the namespace of the attachment; nil if that is gone, or if the path leads to
// the host's by now.
func sandboxOf(c *sdk.CmdArgs) (*rtnl.Sandbox, error) {
	if c.Netns == "" {
		return nil, nil
	}
	s, err := c.Sandbox()
	for _, gone := range []error{sandbox.ErrNotExist, sandbox.ErrNotNamespace, sandbox.ErrHostNamespace} {
		if errors.Is(err, gone) {
			return nil, nil
		}
	}
	return s, err
}

// hostEnd returns the link of the host that is the other end of a link of the sandbox; nil if
// there is none.
func hostEnd(c *sdk.CmdArgs, peer netlink.Link) (netlink.Link, error) {
	index := peer.Attrs().ParentIndex
	if peer.Type() != "veth" || index <= 0 {
		return nil, nil
	}
	end, err := c.Host.Kernel.LinkByIndex(index)
	if rtnl.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the other end of interface %q of the sandbox: %w", peer.Attrs().Name, err)
	}
	// The other end may be in a third namespace. Then the index belongs to another link here.
	if end.Type() != "veth" || end.Attrs().ParentIndex != peer.Attrs().Index {
		return nil, nil
	}
	return end, nil
}
