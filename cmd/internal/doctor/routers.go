package doctor

import (
	"context"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/state/switches"
)

// routers reports links whose default route came with a router advertisement, and that take no more of these,
// because the host forwards: the route ends with its lifetime.
func (h *Host) routers() (findings []Finding, err error) {
	routes, err := retry.List(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{Protocol: unix.RTPROT_RA}, netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var seen []int
	for _, r := range routes {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() || slices.Contains(seen, r.LinkIndex) {
			continue
		}
		seen = append(seen, r.LinkIndex)
		link, err := netlink.LinkByIndex(r.LinkIndex)
		if err != nil { // it is gone
			continue
		}
		name := "ipv6/conf/" + link.Attrs().Name + "/accept_ra"
		accepts, err := sysctl(name)
		forwards, forwardsErr := sysctl("ipv6/conf/" + link.Attrs().Name + "/forwarding")
		if err != nil || forwardsErr != nil || accepts != "1" || forwards != "1" {
			continue
		}
		findings = append(findings, find("routers-ignored", link.Attrs().Name,
			fmt.Sprintf("%s is 1 and the host forwards, so %s ignores the router from which it has the default route via %s", dotted(name), link.Attrs().Name, r.Gw),
			set(name, "2")).withFix(setter(name, "2")))
	}
	return findings, nil
}

// forwarder enables forwarding of a family as plugins do, so that no link loses the routes that it has learnt.
func (h *Host) forwarder(v4, v6 bool) func(context.Context) error {
	return func(context.Context) error { return switches.In(h.StateDir).Forward(v4, v6) }
}
