package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/portmap"
)

// networkResult is the result of ADD for one network.
type networkResult struct {
	network string
	ifName  string // CNI_IFNAME
	netns   string // CNI_NETNS
	result  *types100.Result
}

// newStatus builds the Status from the results of all networks. The published interface
// is the first that exists of: an interface of the first network that has one with an
// address, an interface in the network namespace, any interface with an address. The loopback
// interface is used only as a last resort.
func newStatus(results []networkResult, ports []portmap.Mapping) (*allocnet.Status, error) {
	s := &allocnet.Status{Ports: ports, Interfaces: []allocnet.Interface{}}
	var netns string // the same in all results
	for _, r := range results {
		netns = r.netns
		if err := engine.Validate(r.result); err != nil {
			return nil, fmt.Errorf("network %q: %w", r.network, err)
		}
		interfaces := r.interfaces()
		s.Interfaces = append(s.Interfaces, interfaces...)
		s.Routes = append(s.Routes, r.routes()...)
		if s.DNS == nil {
			s.DNS = r.dns()
		}
		if s.InterfaceName == "" {
			setPrimary(s, primary(others(interfaces), netns, addressed))
		}
	}
	if s.InterfaceName == "" {
		setPrimary(s, primary(others(s.Interfaces), netns, inSandbox))
	}
	if s.InterfaceName == "" {
		setPrimary(s, primary(s.Interfaces, netns, addressed))
	}
	return s, nil
}

// others returns the interfaces other than the loopback interface.
func others(interfaces []allocnet.Interface) []allocnet.Interface {
	return slices.DeleteFunc(slices.Clone(interfaces), func(i allocnet.Interface) bool { return i.Name == rtnl.LoopbackName })
}

// interfaces returns the interfaces of the result with their addresses. An address
// without an interface index belongs to the requested interface (CNI specification,
// "ips"), which is added if the result does not list it.
func (r networkResult) interfaces() []allocnet.Interface {
	var list []allocnet.Interface
	for _, i := range r.result.Interfaces {
		list = append(list, allocnet.Interface{Network: r.network, Name: i.Name, MAC: i.Mac, MTU: i.Mtu, Sandbox: i.Sandbox})
	}
	for _, ip := range r.result.IPs {
		var at int
		if ip.Interface != nil {
			at = *ip.Interface
		} else {
			list, at = r.requested(list)
		}
		a := allocnet.Address{Address: ip.Address.String()}
		if len(ip.Gateway) > 0 {
			a.Gateway = ip.Gateway.String()
		}
		list[at].Addresses = append(list[at].Addresses, a)
	}
	return list
}

// requested returns the index of the requested interface, and the list, to which it
// adds the interface if necessary.
func (r networkResult) requested(list []allocnet.Interface) ([]allocnet.Interface, int) {
	at := slices.IndexFunc(list, func(i allocnet.Interface) bool { return i.Name == r.ifName && IsNetns(i.Sandbox, r.netns) })
	if at >= 0 {
		return list, at
	}
	return append(list, allocnet.Interface{Network: r.network, Name: r.ifName, Sandbox: r.netns}), len(list)
}

func (r networkResult) routes() []allocnet.Route {
	var routes []allocnet.Route
	for _, x := range r.result.Routes {
		if x == nil {
			continue
		}
		route := allocnet.Route{Network: r.network, Destination: x.Dst.String(), MTU: x.MTU}
		if len(x.GW) > 0 {
			route.Gateway = x.GW.String()
		}
		routes = append(routes, route)
	}
	return routes
}

// dns returns nil if the result has no name server.
func (r networkResult) dns() *allocnet.DNS {
	d := r.result.DNS
	if len(d.Nameservers) == 0 {
		return nil
	}
	return &allocnet.DNS{Servers: d.Nameservers, Domain: d.Domain, Searches: d.Search, Options: d.Options}
}

func addressed(i allocnet.Interface) bool { return len(i.Addresses) > 0 }

func inSandbox(i allocnet.Interface) bool { return i.Sandbox != "" }

// IsNetns reports whether the sandbox of an interface is the network namespace at a path. Besides the host,
// it can be something else, such as the ID of a virtual machine (CNI specification, "interfaces").
func IsNetns(sandbox, netns string) bool {
	return sandbox != "" && filepath.Clean(sandbox) == filepath.Clean(netns)
}

// primary returns, by name, the first eligible interface in the network namespace, else in another
// sandbox, else on the host, else nil.
func primary(interfaces []allocnet.Interface, netns string, eligible func(allocnet.Interface) bool) *allocnet.Interface {
	rank := func(i allocnet.Interface) int {
		switch {
		case IsNetns(i.Sandbox, netns):
			return 0
		case inSandbox(i):
			return 1
		}
		return 2
	}
	candidates := slices.DeleteFunc(slices.Clone(interfaces), func(i allocnet.Interface) bool { return !eligible(i) })
	slices.SortStableFunc(candidates, func(a, b allocnet.Interface) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a.Name, b.Name))
	})
	if len(candidates) == 0 {
		return nil
	}
	return &candidates[0]
}

// setPrimary sets the interface name and the first address of each family from i. It does
// nothing if i is nil.
func setPrimary(s *allocnet.Status, i *allocnet.Interface) {
	if i == nil {
		return
	}
	s.InterfaceName = i.Name
	for _, a := range i.Addresses {
		p, err := netip.ParsePrefix(a.Address)
		if err != nil {
			continue
		}
		if addr := p.Addr().Unmap(); addr.Is4() && s.Address == "" {
			s.Address = addr.String()
		} else if addr.Is6() && s.AddressIPv6 == "" {
			s.AddressIPv6 = addr.String()
		}
	}
	if s.Address == "" {
		s.Address = s.AddressIPv6
	}
}
