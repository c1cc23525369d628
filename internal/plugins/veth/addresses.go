package veth

import (
	"net"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// familiesOf reports which families the addresses of a result have.
func familiesOf(r *types100.Result) (v4, v6 bool) {
	for _, ip := range r.IPs {
		if ip.Address.IP.To4() != nil {
			v4 = true
		} else {
			v6 = true
		}
	}
	return v4, v6
}

// HasIPv6 reports whether a result has an IPv6 address.
func HasIPv6(r *types100.Result) bool {
	_, v6 := familiesOf(r)
	return v6
}

// IPs returns the addresses of a result.
func IPs(r *types100.Result) []net.IP {
	var ips []net.IP
	for _, ip := range r.IPs {
		ips = append(ips, ip.Address.IP)
	}
	return ips
}

// HostPrefix returns the prefix that contains only one address: /32 or /128.
func HostPrefix(ip net.IP) *net.IPNet {
	if v4 := ip.To4(); v4 != nil {
		return &net.IPNet{IP: v4, Mask: net.CIDRMask(32, 32)}
	}
	return &net.IPNet{IP: ip, Mask: net.CIDRMask(128, 128)}
}
