package veth

import (
	"bytes"
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Ends are both ends of the veth of an attachment, as its ADD has made them.
type Ends struct {
	Args   *sdk.CmdArgs
	Common *sdk.Common
	Result *types100.Result
	MTU    int // the configured one; 0 for none
	Options
}

// byReference reports whether a reference plugin has made the veth.
func (e *Ends) byReference() bool { return sdk.AddedByReference(e.Args, e.Common.Name, e.Result) }

// knowsInside reports whether it is known what the chain has made of the container's end.
func (e *Ends) knowsInside() bool { return e.Args.Later != nil && !e.byReference() }

// mtuOf returns the MTU of an end; 0 if it is not known. A result has none if that is the kernel's default, or if the
// result was converted to a version before 1.0.0, as runtimes keep it.
func (e *Ends) mtuOf(itf *types100.Interface) int {
	inside := itf.Sandbox != ""
	converted := func() bool {
		since, err := version.GreaterThanOrEqualTo(e.Common.CNIVersion, "1.0.0")
		return e.Args.DropIn() && (err != nil || !since)
	}
	switch {
	case e.byReference() || inside && !e.knowsInside():
		return 0
	case inside && e.Args.Later.MTU != 0:
		return e.Args.Later.MTU
	case itf.Mtu != 0:
		return itf.Mtu
	case e.MTU != 0:
		return e.MTU
	case converted():
		return 0
	}
	return UsualMTU
}

// HostMTU returns the MTU of the host's end; 0 if it is not known.
func (e *Ends) HostMTU() int {
	if itf := e.hostEnd(); itf != nil {
		return e.mtuOf(itf)
	}
	return 0
}

// hostEnd returns the host's end in the result; nil if it is not there.
func (e *Ends) hostEnd() *types100.Interface {
	i := slices.IndexFunc(e.Result.Interfaces, func(itf *types100.Interface) bool {
		return itf.Sandbox == "" && itf.Name == e.Args.Owner(e.Common.Name).Veth()
	})
	if i < 0 {
		return nil
	}
	return e.Result.Interfaces[i]
}

// RestoreHost adds to the changes what gives the host's end its MTU, MAC and alias again, and reports whether that is
// anything.
func (e *Ends) RestoreHost(changes *rtnl.Batch, port rtnl.Port) (changed bool) {
	itf := e.hostEnd()
	if itf == nil {
		return false
	}
	if mtu := e.mtuOf(itf); mtu != 0 && mtu != port.MTU {
		changes.SetMTU(port.Index, mtu)
		changed = true
	}
	if mac, err := net.ParseMAC(itf.Mac); err == nil && !bytes.Equal(mac, port.MAC) {
		changes.SetMAC(port.Index, mac)
		changed = true
	}
	if alias := e.Args.Owner(e.Common.Name).String(); alias != port.Alias {
		changes.SetAlias(port.Index, alias)
		changed = true
	}
	return changed
}

// inside returns the number of the container's end in the result, and its sandbox.
func (e *Ends) inside() (i int, s *rtnl.Sandbox, err error) {
	i = slices.IndexFunc(e.Result.Interfaces, func(itf *types100.Interface) bool {
		return itf.Name == e.Args.IfName && itf.Sandbox == e.Args.Netns
	})
	if i < 0 || e.Args.Netns == "" {
		return 0, nil, fmt.Errorf("prevResult has no interface %q in %q", e.Args.IfName, e.Args.Netns)
	}
	s, err = e.Args.Sandbox()
	return i, s, err
}

// addresses returns the addresses of interface i of the result.
func (e *Ends) addresses(i int) (list []*types100.IPConfig) {
	for _, ip := range e.Result.IPs {
		if ip.Interface == nil || *ip.Interface == i {
			list = append(list, ip)
		}
	}
	return list
}

// insideRoute is a route of the container: what CHECK looks for, and what ADD has added.
type insideRoute struct {
	want  *types.Route
	added *rtnl.Route
}

// routes returns the routes over the container's end, in an order in which they can be added: those to the networks of
// the addresses of interface i of the result, if it is known that no later plugin has removed them, and those of
// the result.
func (e *Ends) routes(index, i int) (list []insideRoute) {
	if e.knowsInside() {
		for _, ip := range e.addresses(i) {
			for _, route := range networkRoutes(index, ip, e.Options) {
				list = append(list, insideRoute{&types.Route{Dst: *route.Dst}, route})
			}
		}
	}
	for n, route := range resultRoutes(index, e.Result, e.Options) {
		list = append(list, insideRoute{e.Result.Routes[n], route})
	}
	return list
}

// missingRoutes returns those of the routes that the sandbox lacks.
func missingRoutes(s *rtnl.Sandbox, routes []insideRoute) ([]insideRoute, error) {
	want := make([]*types.Route, len(routes))
	for i, r := range routes {
		want[i] = r.want
	}
	missing, err := s.MissingRoutes(want)
	return slices.DeleteFunc(slices.Clone(routes), func(r insideRoute) bool { return !slices.Contains(missing, r.want) }), err
}

// resultRoutes returns the routes of a result as the kernel has got them, in their order.
func resultRoutes(index int, r *types100.Result, o Options) []*rtnl.Route {
	x, list := &routes{index: index, result: r, options: o, gateways: gatewaysOf(r)}, make([]*rtnl.Route, len(r.Routes))
	for i := range list {
		list[i] = x.kernel(i)
	}
	return list
}

// kernelMetric is the metric of the routes that the kernel makes for IPv6 addresses.
const kernelMetric = 256

// ConnectedRoute returns the route to a network as the kernel makes it for a link with an address in it.
func ConnectedRoute(index int, network *net.IPNet, address net.IP) *rtnl.Route {
	route := &rtnl.Route{
		Index: index, Dst: &net.IPNet{IP: network.IP.Mask(network.Mask), Mask: network.Mask},
		Priority: kernelMetric, Protocol: unix.RTPROT_KERNEL,
	}
	if address.To4() != nil {
		route.Priority, route.Scope, route.Src = 0, unix.RT_SCOPE_LINK, address
	}
	return route
}
