package veth

import (
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/object"
)

const (
	smallest = 68 // of IPv4 (RFC 791), and of a veth
	largest  = 65535
)

// ValidateMTU returns an error if a veth cannot have the configured MTU; 0 means none.
func ValidateMTU(configured int) error {
	if configured != 0 && (configured < smallest || configured > largest) {
		return fmt.Errorf("mtu %d is not between %d and %d", configured, smallest, largest)
	}
	return nil
}

// MTU returns the MTU for an attachment with the addresses of a result. It is
// the configured one; otherwise that of the host's default routes of the
// addresses' families, if that is below the kernel's default; otherwise 0,
// which selects the kernel's default. Without addresses, both families count,
// because either may be added later.
//
// If the host can forward only smaller packets, packets to the container have
// to be smaller as well. The container's MTU makes peers learn that size from
// the MSS of a connection, instead of from ICMP messages, which clouds often
// drop.
func MTU(host *rtnl.Host, configured int, r *types100.Result) (int, error) {
	v4, v6 := families(r)
	if configured != 0 {
		if v6 && len(r.IPs) > 0 && configured < object.SmallestMTU6 {
			return 0, types.NewError(types.ErrInvalidNetworkConfig,
				fmt.Sprintf("mtu %d is too small for an IPv6 address: IPv6 needs at least %d", configured, object.SmallestMTU6), "")
		}
		return configured, nil
	}
	out, err := host.DefaultRouteMTUs()
	if err != nil {
		return 0, err
	}
	mtu := object.UsualMTU
	if v4 && out.IPv4 != 0 {
		mtu = min(mtu, max(out.IPv4, smallest))
	}
	if v6 && out.IPv6 != 0 {
		mtu = min(mtu, out.IPv6)
	}
	if v6 { // the host sends ICMPv6 Packet Too Big to the container
		mtu = max(mtu, object.SmallestMTU6)
	}
	if mtu == object.UsualMTU {
		return 0, nil
	}
	return mtu, nil
}

// families returns the families of a result's addresses, or both if there are
// none.
func families(r *types100.Result) (v4, v6 bool) {
	for _, ip := range r.IPs {
		is4 := ip.Address.IP.To4() != nil
		v4, v6 = v4 || is4, v6 || !is4
	}
	return v4 || len(r.IPs) == 0, v6 || len(r.IPs) == 0
}

// RequireMTU returns an error unless the container of a result has the MTU that an ADD would
// give it now.
func RequireMTU(host *rtnl.Host, configured int, r *types100.Result) error {
	now, err := MTU(host, configured, r)
	if err != nil {
		return err
	}
	for _, itf := range r.Interfaces {
		if itf.Sandbox != "" && itf.Mtu != now {
			return fmt.Errorf("interface %q has the MTU %d, which is now to be %d", itf.Name, itf.Mtu, now)
		}
	}
	return nil
}
