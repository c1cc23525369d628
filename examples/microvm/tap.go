package main

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tapName is the name of the tap in the network namespace.
const tapName = "tap0"

// addTap adds a tap to the network namespace of the thread, and redirects all frames
// between it and an interface. The kernel then answers nothing that arrives at the
// interface: the guest does, with the interface's addresses. addTap returns the MTU.
func addTap(interfaceName string) (int, error) {
	nic, err := netlink.LinkByName(interfaceName)
	if err != nil {
		return 0, fmt.Errorf("find interface %q: %w", interfaceName, err)
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = tapName
	tap := &netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI}
	if err := netlink.LinkAdd(tap); err != nil {
		return 0, fmt.Errorf("add tap: %w", err)
	}
	// Frames longer than the interface can send would be dropped.
	if err := netlink.LinkSetMTU(tap, nic.Attrs().MTU); err != nil {
		return 0, fmt.Errorf("set MTU of tap: %w", err)
	}
	if err := netlink.LinkSetUp(tap); err != nil {
		return 0, fmt.Errorf("bring up tap: %w", err)
	}
	if err := redirect(nic, tap); err != nil {
		return 0, err
	}
	return nic.Attrs().MTU, redirect(tap, nic)
}

// redirect sends every frame that arrives at one link out of another.
func redirect(from, to netlink.Link) error {
	ingress := &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: from.Attrs().Index, Parent: netlink.HANDLE_INGRESS, Handle: netlink.MakeHandle(0xffff, 0),
	}}
	if err := netlink.QdiscAdd(ingress); err != nil {
		return fmt.Errorf("add ingress qdisc to %q: %w", from.Attrs().Name, err)
	}
	filter := &netlink.U32{ // without a selector: all frames
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: from.Attrs().Index, Parent: ingress.Handle, Priority: 1, Protocol: unix.ETH_P_ALL,
		},
		Actions: []netlink.Action{netlink.NewMirredAction(to.Attrs().Index)},
	}
	if err := netlink.FilterAdd(filter); err != nil {
		return fmt.Errorf("redirect from %q to %q: %w", from.Attrs().Name, to.Attrs().Name, err)
	}
	return nil
}
