package veth

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// Options select how the container's end gets its addresses.
type Options struct {
	// DAD enables duplicate address detection for IPv6 addresses, and waits for
	// it.
	DAD bool
	// ViaGateway routes all traffic through the gateway, including that to the
	// address's own network.
	ViaGateway bool
	// NotifyLater leaves it to NotifyIPv6 to make the interface announce IPv6 addresses. The
	// kernel would announce the link-local one when the link comes up.
	NotifyLater bool
	// Behind keeps the routes of other interfaces in use: those of the result come after
	// them.
	Behind bool
}

// Configure brings up the container's end and adds the addresses and routes of
// a result. In the result it sets the priorities that routes get because of others.
func Configure(ctx context.Context, s *rtnl.Sandbox, v *rtnl.Veth, r *types100.Result, o Options) error {
	index := v.PeerIndex
	v6 := HasIPv6(r)
	if v6 {
		if err := enableIPv6(s, v.PeerName, o); err != nil {
			return err
		}
	}
	var changes rtnl.Batch
	changes.SetUp(index)
	for _, ip := range r.IPs {
		addAddress(&changes, index, ip, o)
	}
	if v6 && o.DAD {
		if err := s.Apply(&changes); err != nil {
			return err
		}
		if err := awaitDAD(ctx, s, index); err != nil {
			return err
		}
		changes = rtnl.Batch{}
	}
	routes := newRoutes(v.PeerName, index, r, o)
	routes.add(&changes)
	if err := s.Apply(&changes); err != nil {
		return err
	}
	return routes.finish(s)
}

// HasIPv6 reports whether a result has an IPv6 address.
func HasIPv6(r *types100.Result) bool {
	for _, ip := range r.IPs {
		if ip.Address.IP.To4() == nil {
			return true
		}
	}
	return false
}

// IPs returns the addresses of a result.
func IPs(r *types100.Result) []net.IP {
	var ips []net.IP
	for _, ip := range r.IPs {
		ips = append(ips, ip.Address.IP)
	}
	return ips
}

// enableIPv6 enables IPv6 on the interface and on loopback, and makes the
// interface keep its addresses while it is down, and announce them as IPv4 ones: see
// rtnl.Batch.SetUp.
func enableIPv6(s *rtnl.Sandbox, name string, o Options) error {
	return s.Do(func() error {
		conf := "net/ipv6/conf/"
		err := errors.Join(
			rtnl.SetSysctl(conf+"lo/disable_ipv6", "0"),
			rtnl.SetSysctl(conf+name+"/disable_ipv6", "0"),
			rtnl.SetSysctl(conf+name+"/keep_addr_on_down", "1"),
		)
		if !o.NotifyLater {
			err = errors.Join(err, setNDISCNotify(name))
		}
		if o.DAD {
			return errors.Join(err, rtnl.SetSysctl(conf+name+"/enhanced_dad", "1"), rtnl.SetSysctl(conf+name+"/accept_dad", "1"))
		}
		return errors.Join(err, rtnl.SetSysctl(conf+name+"/accept_dad", "0"))
	})
}

func setNDISCNotify(name string) error {
	return rtnl.SetSysctl("net/ipv6/conf/"+name+"/ndisc_notify", "1")
}

// NotifyIPv6 makes the interface announce its IPv6 addresses whenever its link gets another MAC, or goes
// down and up. It does nothing without such addresses.
func NotifyIPv6(s *rtnl.Sandbox, name string, r *types100.Result) error {
	if !HasIPv6(r) {
		return nil
	}
	return s.Do(func() error { return setNDISCNotify(name) })
}

// addAddress adds one address. With ViaGateway it replaces the kernel's prefix
// route by two routes: see networkRoutes.
func addAddress(b *rtnl.Batch, index int, ip *types100.IPConfig, o Options) {
	b.AddAddress(index, &ip.Address, addressFlags(ip, o))
	if !o.ViaGateway {
		return
	}
	for _, route := range networkRoutes(index, ip, o) {
		b.AddRoute(route)
	}
}

func addressFlags(ip *types100.IPConfig, o Options) (flags int) {
	if ip.Address.IP.To4() == nil && !o.DAD {
		flags |= rtnl.NoDAD
	}
	if o.ViaGateway {
		flags |= rtnl.NoPrefixRoute
	}
	return flags
}

// networkRoutes returns the routes to the network of an address. With ViaGateway, one leads to the gateway on the link,
// and one to the network via the gateway. Routes via the gateway are on-link, so that a plugin can make them in
// another table in any order, as vrf does. Otherwise it is the one that the kernel makes for the address.
func networkRoutes(index int, ip *types100.IPConfig, o Options) []*rtnl.Route {
	network := &net.IPNet{IP: ip.Address.IP.Mask(ip.Address.Mask), Mask: ip.Address.Mask}
	if o.ViaGateway {
		return []*rtnl.Route{
			{Index: index, Dst: HostPrefix(ip.Gateway), Src: ip.Address.IP, Scope: unix.RT_SCOPE_LINK, Exclusive: true},
			{Index: index, Dst: network, Via: ip.Gateway, Src: ip.Address.IP, OnLink: true, Exclusive: true},
		}
	}
	if ones, bits := network.Mask.Size(); ones == bits {
		return nil
	}
	return []*rtnl.Route{ConnectedRoute(index, network, ip.Address.IP)}
}

// HostPrefix returns the prefix that contains only one address: /32 or /128.
func HostPrefix(ip net.IP) *net.IPNet {
	if v4 := ip.To4(); v4 != nil {
		return &net.IPNet{IP: v4, Mask: net.CIDRMask(32, 32)}
	}
	return &net.IPNet{IP: ip, Mask: net.CIDRMask(128, 128)}
}

// gatewaysOf returns the gateway of each route: the first one of its family, if it has none.
func gatewaysOf(r *types100.Result) []net.IP {
	var v4, v6 net.IP
	for _, ip := range r.IPs {
		if ip.Gateway.To4() != nil && v4 == nil {
			v4 = ip.Gateway
		} else if ip.Gateway.To4() == nil && v6 == nil {
			v6 = ip.Gateway
		}
	}
	gateways := make([]net.IP, len(r.Routes))
	for i, route := range r.Routes {
		switch {
		case route.GW != nil:
			gateways[i] = route.GW
		case route.Dst.IP.To4() != nil:
			gateways[i] = v4
		default:
			gateways[i] = v6
		}
	}
	return gateways
}

// DistinctRoutes returns an error for two equal routes of a result: the kernel refuses the second one.
func DistinctRoutes(r *types100.Result) error {
	if len(r.Routes) < 2 {
		return nil
	}
	seen := map[string]bool{}
	for i, gateway := range gatewaysOf(r) {
		route := kernelRoute(r.Routes[i], 0, gateway)
		text := fmt.Sprintln(route.Dst, route.Via, route.Priority, route.MTU, route.AdvMSS, cmp.Or(route.Table, unix.RT_TABLE_MAIN), route.Scope)
		if seen[text] {
			via := ""
			if gateway != nil {
				via = " via " + gateway.String()
			}
			return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("two routes lead to %s%s", route.Dst, via),
				"remove one of the IPAM plugin's, or isDefaultGateway")
		}
		seen[text] = true
	}
	return nil
}

// isNeighbour reports whether a gateway is in the network of an address of the result. With ViaGateway, no route
// says so.
func isNeighbour(r *types100.Result, gateway net.IP) bool {
	return slices.ContainsFunc(r.IPs, func(ip *types100.IPConfig) bool { return ip.Address.Contains(gateway) })
}

func kernelRoute(r *types.Route, index int, gateway net.IP) *rtnl.Route {
	route := &rtnl.Route{
		Index: index, Dst: &r.Dst, Via: gateway, Priority: r.Priority, MTU: r.MTU, AdvMSS: r.AdvMSS,
	}
	if r.Table != nil {
		route.Table = *r.Table
	}
	if r.Scope != nil {
		route.Scope = uint8(*r.Scope)
	}
	return route
}

const (
	dadTime = 5 * time.Second
	dadPoll = 10 * time.Millisecond
)

// awaitDAD waits until duplicate address detection has finished for all
// addresses of the link.
func awaitDAD(ctx context.Context, s *rtnl.Sandbox, index int) error {
	ctx, cancel := context.WithTimeout(ctx, dadTime)
	defer cancel()
	for {
		addresses, err := s.Addresses(index)
		if err != nil {
			return err
		}
		tentative := ""
		for _, a := range addresses {
			if a.Flags&unix.IFA_F_DADFAILED != 0 {
				return fmt.Errorf("address %s: duplicate address detected", a.IPNet)
			}
			if a.Flags&unix.IFA_F_TENTATIVE != 0 {
				tentative = a.IPNet.String()
			}
		}
		if tentative == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for duplicate address detection of %s: %w", tentative, ctx.Err())
		case <-time.After(dadPoll):
		}
	}
}

// LinkLocal returns the address from which the host sends neighbour discovery
// over a link with a MAC (RFC 4291, appendix A).
func LinkLocal(mac net.HardwareAddr) net.IP {
	return net.IP{0xfe, 0x80, 0, 0, 0, 0, 0, 0, mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]}
}
