package trace

import (
	"net/netip"

	"github.com/vishvananda/netlink"
)

// netlinkRoute returns the link over which the network namespace of the calling thread
// reaches an address.
func netlinkRoute(to netip.Addr) (link string, err error) {
	routes, err := netlink.RouteGet(to.AsSlice())
	if err != nil || len(routes) == 0 {
		return "", err
	}
	l, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return "", err
	}
	return l.Attrs().Name, nil
}
