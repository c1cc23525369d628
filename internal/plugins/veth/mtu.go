package veth

import (
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

const (
	usualMTU    = 1500 // which the kernel gives a veth
	smallest    = 68   // of IPv4 (RFC 791), and of a veth
	smallestIP6 = 1280 // of IPv6 (RFC 8200): below, the kernel takes IPv6 off a link
)

// MTU is that of an attachment with the addresses of a result: the configured one,
// else that of the host's default route of the addresses' families, if it is below
// the kernel's usual. 0 leaves it to the kernel. Without addresses, both families
// count, as either may be added later.
//
// What the host can send on only in smaller packets comes back as well: peers learn
// the size from the MSS that the sandbox announces, and need not wait for an ICMP
// message, which clouds often drop.
func MTU(host *rtnl.Host, configured int, r *types100.Result) (int, error) {
	v4, v6 := families(r)
	if configured != 0 {
		if v6 && len(r.IPs) > 0 && configured < smallestIP6 {
			return 0, types.NewError(types.ErrInvalidNetworkConfig,
				fmt.Sprintf("mtu %d is too small for an IPv6 address: IPv6 needs at least %d", configured, smallestIP6), "")
		}
		return configured, nil
	}
	out, err := host.WayOut()
	if err != nil {
		return 0, err
	}
	mtu := usualMTU
	if v4 && out.IPv4 != 0 {
		mtu = min(mtu, max(out.IPv4, smallest))
	}
	if v6 && out.IPv6 != 0 {
		mtu = min(mtu, out.IPv6)
	}
	if v6 { // the host tells the sandbox of what it cannot send on
		mtu = max(mtu, smallestIP6)
	}
	if mtu == usualMTU {
		return 0, nil
	}
	return mtu, nil
}

// families are those of a result's addresses; without any, both.
func families(r *types100.Result) (v4, v6 bool) {
	for _, ip := range r.IPs {
		is4 := ip.Address.IP.To4() != nil
		v4, v6 = v4 || is4, v6 || !is4
	}
	return v4 || len(r.IPs) == 0, v6 || len(r.IPs) == 0
}
