package trace

import (
	"context"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/cmd/internal/trace/probe"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/sandbox"
)

// While the kernel runs duplicate address detection for an IPv6 address, the address is
// tentative: the host sends nothing from it, not even to find a neighbour, and does not
// answer neighbours that look for it. detectionTime bounds the wait for that: the detection
// begins within a second and takes another one.
var detectionTime = 3 * time.Second

// detectionPause is the time between two looks.
const detectionPause = 20 * time.Millisecond

// tentative returns an IPv6 address of a link that is tentative, and whether it stays so
// because another node has it. only selects one address; the zero Addr stands for all.
func tentative(link netlink.Link, only netip.Addr) (addr netip.Addr, failed bool, err error) {
	addrs, err := retry.List(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_V6) })
	for _, a := range addrs {
		found, _ := netip.AddrFromSlice(a.IP)
		isTentative := a.Flags&unix.IFA_F_TENTATIVE != 0 && a.Flags&unix.IFA_F_OPTIMISTIC == 0
		if isTentative && (found == only || !only.IsValid()) {
			return found, a.Flags&unix.IFA_F_DADFAILED != 0, err
		}
	}
	return addr, false, err
}

// detected ends the path at a link with a tentative address, unless the probe has arrived.
func (f *tracer) detected(step string, link netlink.Link, only netip.Addr) error {
	if _, came := passed(f.result.Inside, probe.Request, probe.Prerouting); came || f.early || f.Address.Is4() {
		return nil
	}
	addr, failed, err := tentative(link, only)
	switch {
	case err != nil:
		return err
	case failed:
		return f.ends(step, "find the other node: allocnet inspect "+f.Record.ID+" shows the MAC addresses of this one",
			"%s of %s cannot be used: duplicate address detection has found another node with it", addr, link.Attrs().Name)
	case addr.IsValid():
		return f.ends(step, "run allocnet trace again in a few seconds",
			"%s of %s is tentative: duplicate address detection is running", addr, link.Attrs().Name)
	}
	return nil
}

// settled waits until duplicate address detection has ended on the host's link to the
// allocation and for the address of the allocation, and reports whether it has. Otherwise
// the steps on the links say where it runs.
func (f *tracer) settled(ctx context.Context, inside *sandbox.Sandbox) bool {
	if f.Address.Is4() {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, detectionTime)
	defer cancel()
	pause := time.NewTicker(detectionPause)
	defer pause.Stop()
	for f.isDetecting(inside) {
		select {
		case <-ctx.Done():
			return false
		case <-pause.C:
		}
	}
	return true
}

// isDetecting reports whether duplicate address detection is running. It does not run on a
// link without a carrier, and has ended if it has failed.
func (f *tracer) isDetecting(inside *sandbox.Sandbox) (is bool) {
	look := func(link netlink.Link, only netip.Addr) {
		addr, failed, _ := tentative(link, only)
		is = is || addr.IsValid() && !failed && link.Attrs().RawFlags&unix.IFF_RUNNING != 0
	}
	if _, name, err := routeTo(f.Address); err == nil {
		if link, err := netlink.LinkByName(name); err == nil {
			look(link, netip.Addr{})
		}
	}
	_ = inside.Do(func() error { // what fails is reported by the steps that follow
		links, err := netlink.LinkList()
		for _, link := range links {
			look(link, f.Address)
		}
		return err
	})
	return is
}
