package ui

import (
	"cmp"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/retry"
)

// uplink is a link of the host with a default route.
type uplink struct {
	Name      string   `json:"name"`
	Gateways  []string `json:"gateways"` // may be empty, as on a tunnel
	Addresses []string `json:"addresses"`
}

// uplinks returns the links of the host's default routes, sorted by name.
func uplinks() ([]uplink, error) {
	found := map[int]*uplink{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := retry.List(func() ([]netlink.Route, error) { return netlink.RouteList(nil, family) })
		if err != nil {
			return []uplink{}, err
		}
		for _, r := range routes {
			if ones, _ := maskOf(r); ones == 0 && r.Type <= 1 { // unicast
				for _, hop := range hops(r) {
					if found[hop.LinkIndex] == nil {
						found[hop.LinkIndex] = &uplink{Gateways: []string{}, Addresses: []string{}}
					}
					if hop.Gw != nil && !slices.Contains(found[hop.LinkIndex].Gateways, hop.Gw.String()) {
						found[hop.LinkIndex].Gateways = append(found[hop.LinkIndex].Gateways, hop.Gw.String())
					}
				}
			}
		}
	}
	list := []uplink{}
	for index, u := range found {
		link, err := netlink.LinkByIndex(index)
		if err != nil { // removed meanwhile
			continue
		}
		u.Name = link.Attrs().Name
		addrs, err := retry.List(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
		if err != nil {
			return list, err
		}
		for _, a := range addrs {
			if a.IP.IsGlobalUnicast() {
				u.Addresses = append(u.Addresses, a.IPNet.String())
			}
		}
		list = append(list, *u)
	}
	slices.SortFunc(list, func(a, b uplink) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}

// maskOf returns the prefix length of a route's destination; 0 for a default route.
func maskOf(r netlink.Route) (ones, bits int) {
	if r.Dst == nil {
		return 0, 0
	}
	return r.Dst.Mask.Size()
}

// hops returns the next hops of a route.
func hops(r netlink.Route) []*netlink.NexthopInfo {
	if len(r.MultiPath) > 0 {
		return r.MultiPath
	}
	return []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw}}
}
