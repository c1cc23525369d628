package veth

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/object"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
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
// the attachment; "" if there is none, or if the namespace is gone.
func renamed(c *sdk.CmdArgs, alias string) (string, error) {
	s, err := sandboxOf(c)
	if s == nil || err != nil {
		return "", err
	}
	end, err := object.Renamed(c.Host.Kernel, s, alias)
	if end == nil || err != nil {
		return "", err
	}
	return end.Name, nil
}

// deleteMoved deletes the container's end of a veth whose other end is in a third namespace.
// There it has no name that is known, but the MAC of the container's end is that of the result.
func deleteMoved(c *sdk.CmdArgs, name string, previous *types100.Result) error {
	s, err := sandboxOf(c)
	if s == nil || err != nil || previous == nil || !has(previous, name, "") {
		return err
	}
	peer, err := s.LinkState(c.IfName)
	if rtnl.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find interface %q in the sandbox: %w", c.IfName, err)
	}
	end, err := object.OtherEnd(c.Host.Kernel, peer)
	if err != nil || end != nil || peer.Kind != "veth" { // it is that of another attachment
		return err
	}
	h, err := s.Handle()
	if err != nil {
		return err
	}
	for _, itf := range previous.Interfaces {
		if itf.Name == c.IfName && itf.Sandbox != "" && itf.Mac == peer.MAC.String() {
			err := h.LinkDel(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: peer.Index}})
			if err != nil && !rtnl.IsNotFound(err) {
				return fmt.Errorf("delete interface %q of the sandbox: %w", c.IfName, err)
			}
		}
	}
	return nil
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
