package veth

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/sandbox"
)

// Detach removes an attachment: its rules, its link, its tracked connections, and at
// last its addresses, which another attachment may get from then on. If an earlier step
// fails, Detach keeps the addresses, because rules, links or connections may still refer
// to them.
func Detach(ctx context.Context, c *sdk.CmdArgs, common *sdk.Common, ipam IPAM, rules Rules) error {
	previous := c.PreviousOfDel(common)
	if previous != nil && ipam != "" && len(previous.IPs) == 0 {
		previous = nil // it does not tell what ADD has made: that has addresses
	}
	rulesErr := rules.Del(ctx, c, previous)
	found, linkErr := deleteLink(ctx, c, common.Name, previous)
	sourceErr := DelSourceRules(c, previous)
	zoneErr := c.LeaveZones(ctx, common.Name, sdk.Addresses(previous))
	err := errors.Join(rulesErr, linkErr, sourceErr, zoneErr, detachReference(ctx, c, common, previous, rules.Masquerade))
	if err == nil {
		err = disconnect(ctx, c, previous, ipam)
	}
	if err == nil {
		err = release(ctx, c, ipam, previous, found)
	}
	return err
}

var errNoIPAM = errors.New("ADD has returned addresses, and the configuration names no IPAM plugin")

// release releases the addresses of an attachment. Of one that was never made, as neither a result nor a link
// shows, there are none, wherever they would be. A record has the configuration of ADD, so if that names no
// IPAM plugin, another one has added the addresses. The configuration that a runtime hands down may be another.
func release(ctx context.Context, c *sdk.CmdArgs, ipam IPAM, previous *types100.Result, linked bool) error {
	addressed := previous != nil && len(previous.IPs) > 0
	if ipam == "" && addressed && c.DropIn() {
		return &sdk.UnplacedError{What: "the lease", Err: errNoIPAM}
	}
	err := ipam.Release(ctx, c)
	var unplaced *sdk.UnplacedError
	if errors.As(err, &unplaced) && !addressed && !linked {
		c.Host.Log.Warn("DEL finds no sign of an ADD, and does not look for a lease", "container", c.ContainerID, "because", err)
		return nil
	}
	return err
}

// Disconnect removes the rules and the tracked connections of an attachment, and takes its link
// down unless the link passes nothing without its rules: see sdk.Disconnecter. It is for attachments
// whose result and link are those of allocnet's plugins.
func Disconnect(ctx context.Context, c *sdk.CmdArgs, common *sdk.Common, rules Rules, closedByRules bool) error {
	previous, name := c.PreviousOfDel(common), c.Owner(common.Name).Veth()
	if previous == nil || !has(previous, name, "") || rules.Masquerade.hasBackend() {
		return sdk.ErrNeedsDel
	}
	err := rules.Del(ctx, c, previous)
	if err == nil && !closedByRules {
		err = setDown(c, common.Name)
	}
	if err != nil {
		return err
	}
	return c.FlushAddresses(ctx, sdk.Addresses(previous)...)
}

// disconnect flushes the connections of the addresses. The native host-local plugin
// does that itself, because only its leases show which addresses still belong to the
// attachment.
func disconnect(ctx context.Context, c *sdk.CmdArgs, previous *types100.Result, ipam IPAM) error {
	if previous == nil || ipam == "" || ipam == hostLocal && c.InProcess(hostLocal) {
		return nil
	}
	addrs := make([]netip.Addr, len(previous.IPs))
	for i, ip := range previous.IPs {
		addrs[i] = prefix(ip.Address).Addr()
	}
	return c.Host.Conntrack.FlushAddresses(ctx, addrs...)
}

// detachReference removes what a reference plugin created, if no interface of
// the result has a name of allocnet's. Without a result it does nothing,
// because an interface in the container may belong to any plugin.
func detachReference(ctx context.Context, c *sdk.CmdArgs, common *sdk.Common, previous *types100.Result, m Masquerade) error {
	if previous == nil || has(previous, c.Owner(common.Name).Veth(), "") {
		return nil
	}
	i := slices.IndexFunc(previous.Interfaces, func(itf *types100.Interface) bool {
		return itf.Name == c.IfName && itf.Sandbox != ""
	})
	if i < 0 {
		return nil
	}
	return errors.Join(deleteContainerEnd(c, previous.Interfaces[i]), deleteHostEnd(ctx, c, previous), m.delReference(ctx, c))
}

// deleteContainerEnd deletes the container's end of the veth. The path of the namespace
// may lead to another container by now, whose interface has the same name. So the
// MAC must be that of the result.
func deleteContainerEnd(c *sdk.CmdArgs, want *types100.Interface) error {
	if c.Netns == "" {
		return nil
	}
	s, err := c.Sandbox()
	if errors.Is(err, sandbox.ErrNotExist) || errors.Is(err, sandbox.ErrNotNamespace) {
		return nil // the interface is gone with its namespace
	}
	if err != nil {
		return err
	}
	h, err := s.Handle()
	if err != nil {
		return err
	}
	link, err := h.LinkByName(c.IfName)
	if err == nil && want.Mac != "" && strings.EqualFold(want.Mac, link.Attrs().HardwareAddr.String()) {
		err = h.LinkDel(link)
	}
	if rtnl.IsNotFound(err) {
		return nil
	}
	return err
}

// deleteHostEnd deletes the host's end of the veth. It still exists if a
// process keeps the namespace alive without its path. A veth with both ends on the
// host is the interface of a VLAN of the bridge, which other attachments use.
func deleteHostEnd(ctx context.Context, c *sdk.CmdArgs, previous *types100.Result) error {
	for _, itf := range previous.Interfaces {
		if itf.Sandbox != "" || itf.Mac == "" {
			continue
		}
		link, err := c.Host.Kernel.LinkByName(itf.Name)
		if err == nil && link.Type() == "veth" && link.Attrs().NetNsID >= 0 && link.Attrs().HardwareAddr.String() == itf.Mac {
			_, err = c.Host.Kernel.DeleteLink(ctx, itf.Name)
		}
		if err != nil && !rtnl.IsNotFound(err) {
			return err
		}
	}
	return nil
}

func has(r *types100.Result, name, sandbox string) bool {
	return slices.ContainsFunc(r.Interfaces, func(itf *types100.Interface) bool {
		return itf.Name == name && itf.Sandbox == sandbox
	})
}

// Collect implements GC: it removes links and elements of the network whose
// owner is not among the valid attachments, and releases their addresses.
func Collect(ctx context.Context, c *sdk.CmdArgs, common *sdk.Common, ipam IPAM, rules Rules) error {
	stale := c.Stale(common.Name)
	err := errors.Join(c.Host.DelOwned(ctx, stale), rules.Masquerade.collect(ctx, common.Name, c.Valid), collectLinks(ctx, c, stale))
	if err != nil {
		return err // the addresses are still in use
	}
	return ipam.GC(ctx, c)
}

// collectLinks deletes the links concurrently, so that the kernel deletes them
// in one batch.
func collectLinks(ctx context.Context, c *sdk.CmdArgs, stale func(names.Owner) bool) error {
	owned, err := c.Host.Kernel.OwnedLinks(stale)
	if err != nil {
		return err
	}
	errs := make([]error, len(owned))
	var running sync.WaitGroup
	for i, name := range owned {
		running.Go(func() { _, errs[i] = c.Host.Kernel.DeleteLink(ctx, name) })
	}
	running.Wait()
	return errors.Join(errs...)
}
