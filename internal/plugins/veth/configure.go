package veth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Options are how the sandbox's end gets its addresses.
type Options struct {
	// DAD looks for another owner of each IPv6 address first, and waits for it.
	DAD bool
	// ViaGateway sends everything, the own network too, through the gateway.
	ViaGateway bool
}

// Configure brings the sandbox's end up and gives it the addresses and routes of
// a result.
func Configure(ctx context.Context, s *rtnl.Sandbox, v *rtnl.Veth, r *types100.Result, o Options) error {
	index := v.PeerIndex
	v6 := HasIPv6(r)
	if v6 {
		if err := enableIPv6(s, v.PeerName, o.DAD); err != nil {
			return err
		}
	}
	var changes rtnl.Batch
	changes.SetUp(index)
	for _, ip := range r.IPs {
		addAddress(&changes, index, ip, o)
	}
	if !v6 || !o.DAD {
		addRoutes(&changes, index, r)
		return s.Apply(&changes)
	}
	if err := s.Apply(&changes); err != nil {
		return err
	}
	if err := settle(ctx, s, index); err != nil {
		return err
	}
	var routes rtnl.Batch
	addRoutes(&routes, index, r)
	return s.Apply(&routes)
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

// enableIPv6 lets the interface and loopback have IPv6 addresses, and the
// interface keep its own while it is down.
func enableIPv6(s *rtnl.Sandbox, name string, dad bool) error {
	return s.Do(func() error {
		conf := "net/ipv6/conf/"
		err := errors.Join(
			rtnl.SetSysctl(conf+"lo/disable_ipv6", "0"),
			rtnl.SetSysctl(conf+name+"/disable_ipv6", "0"),
			rtnl.SetSysctl(conf+name+"/keep_addr_on_down", "1"),
		)
		if dad {
			return errors.Join(err, rtnl.SetSysctl(conf+name+"/enhanced_dad", "1"), rtnl.SetSysctl(conf+name+"/accept_dad", "1"))
		}
		return errors.Join(err, rtnl.SetSysctl(conf+name+"/accept_dad", "0"))
	})
}

// addAddress adds one address. Where everything goes through the gateway, the
// routes that the kernel would make for the network are made the other way: to
// the gateway directly, and to the network through it.
func addAddress(b *rtnl.Batch, index int, ip *types100.IPConfig, o Options) {
	flags := 0
	if ip.Address.IP.To4() == nil && !o.DAD {
		flags |= rtnl.NoDAD
	}
	if !o.ViaGateway {
		b.AddAddress(index, &ip.Address, flags)
		return
	}
	b.AddAddress(index, &ip.Address, flags|rtnl.NoPrefixRoute)
	network := &net.IPNet{IP: ip.Address.IP.Mask(ip.Address.Mask), Mask: ip.Address.Mask}
	b.AddRoute(&rtnl.Route{Index: index, Dst: HostPrefix(ip.Gateway), Src: ip.Address.IP, Scope: unix.RT_SCOPE_LINK, Exclusive: true})
	b.AddRoute(&rtnl.Route{Index: index, Dst: network, Via: ip.Gateway, Src: ip.Address.IP, Exclusive: true})
}

// HostPrefix is the prefix of one address alone.
func HostPrefix(ip net.IP) *net.IPNet {
	if v4 := ip.To4(); v4 != nil {
		return &net.IPNet{IP: v4, Mask: net.CIDRMask(32, 32)}
	}
	return &net.IPNet{IP: ip, Mask: net.CIDRMask(128, 128)}
}

// addRoutes adds the routes of a result. Those without a gateway get the first
// one of their family.
func addRoutes(b *rtnl.Batch, index int, r *types100.Result) {
	var v4, v6 net.IP
	for _, ip := range r.IPs {
		if ip.Gateway.To4() != nil && v4 == nil {
			v4 = ip.Gateway
		} else if ip.Gateway.To4() == nil && v6 == nil {
			v6 = ip.Gateway
		}
	}
	for _, route := range r.Routes {
		gateway := route.GW
		if gateway == nil {
			gateway = v6
			if route.Dst.IP.To4() != nil {
				gateway = v4
			}
		}
		b.AddRoute(kernelRoute(route, index, gateway))
	}
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
	settleTime = 5 * time.Second
	settlePoll = 10 * time.Millisecond
)

// settle waits until no address of the link is tentative any more.
func settle(ctx context.Context, s *rtnl.Sandbox, index int) error {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for {
		addresses, err := s.Addresses(index)
		if err != nil {
			return err
		}
		tentative := ""
		for _, a := range addresses {
			if a.Flags&unix.IFA_F_DADFAILED != 0 {
				return fmt.Errorf("address %s: somebody else has it", a.IPNet)
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
			return fmt.Errorf("wait until nobody else has address %s: %w", tentative, ctx.Err())
		case <-time.After(settlePoll):
		}
	}
}

// Forward lets the host forward packets of the families of a result, unless it was
// seen to do so a moment ago.
func Forward(lately *sdk.Lately, r *types100.Result) error {
	for _, ip := range r.IPs {
		v4 := ip.Address.IP.To4() != nil
		key := "forward IPv6"
		if v4 {
			key = "forward IPv4"
		}
		if err := lately.Unless(key, func() error { return rtnl.EnableForwarding(v4, !v4) }); err != nil {
			return err
		}
	}
	return nil
}
