package rtnl

import (
	"fmt"
	"net"
	"net/netip"
)

// ServiceLinks are the names of the links on which IPVS keeps the addresses of services: with kube-proxy and with
// kube-router. For the kernel they are addresses of the host, but connections to them are not for the host.
var ServiceLinks = []string{"kube-ipvs0", "kube-dummy-if"}

// ServiceAddresses returns the addresses of the ServiceLinks in the network namespace of the thread.
func ServiceAddresses() (list []netip.Addr, err error) {
	for _, name := range ServiceLinks {
		link, err := LinkByName(name)
		if IsNotFound(err) {
			continue
		}
		var on []net.Addr
		if err == nil {
			on, err = (&net.Interface{Index: link.Attrs().Index}).Addrs()
		}
		if err != nil {
			return nil, fmt.Errorf("list the addresses of services on %q: %w", name, err)
		}
		for _, a := range on {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				list = append(list, p.Addr())
			}
		}
	}
	return list, nil
}
