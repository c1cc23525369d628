package veth

import (
	"context"
	"fmt"
	"net"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/object"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
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

// Ends are both ends of the veth of an attachment. What they have follows from the result of ADD.
type Ends struct {
	Args   *sdk.CmdArgs
	Common *sdk.Common
	Result *types100.Result
	MTU    int // the configured one; 0 for none
	Options
}

// Views returns the views of the network namespaces of both ends. Without that of the container, inside is nil.
func (e *Ends) Views() (host, inside *object.View, err error) {
	host = e.Args.Host.View()
	s, err := e.Args.Sandbox()
	if err != nil {
		return host, nil, err
	}
	inside = object.OfSandbox(s)
	object.Connect(host, inside)
	return host, inside, nil
}

// ByReference reports whether a reference plugin has made the veth.
func (e *Ends) ByReference() bool { return sdk.AddedByReference(e.Args, e.Common.Name, e.Result) }

// knowsInside reports whether it is known what the chain has made of the container's end.
func (e *Ends) knowsInside() bool { return e.Args.Later != nil && !e.ByReference() }

// mtuOf returns the MTU of an end; 0 if it is not known. A result has none if that is the kernel's default, or if the
// result was converted to a version before 1.0.0, as runtimes keep it.
func (e *Ends) mtuOf(itf *types100.Interface) int {
	inside := itf.Sandbox != ""
	converted := func() bool {
		since, err := version.GreaterThanOrEqualTo(e.Common.CNIVersion, "1.0.0")
		return e.Args.DropIn() && (err != nil || !since)
	}
	switch {
	case e.ByReference() || inside && !e.knowsInside():
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
	return object.UsualMTU
}

// HostMTU returns the MTU of the host's end; 0 if it is not known.
func (e *Ends) HostMTU() int {
	if itf := e.ofHost(e.Args.Owner(e.Common.Name).Veth()); itf != nil {
		return e.mtuOf(itf)
	}
	return 0
}

// ofHost returns an interface of the host in the result; nil if it is not there.
func (e *Ends) ofHost(name string) *types100.Interface {
	i := slices.IndexFunc(e.Result.Interfaces, func(itf *types100.Interface) bool { return itf.Sandbox == "" && itf.Name == name })
	if i < 0 {
		return nil
	}
	return e.Result.Interfaces[i]
}

// HostEnd returns the host's end, which is the interface of the result with a name.
func (e *Ends) HostEnd(name string) *object.End {
	end := &object.End{Name: name, Peer: e.Args.IfName}
	if itf := e.ofHost(name); itf != nil {
		end.MAC, end.MTU = macOf(itf), e.mtuOf(itf)
	}
	if !e.ByReference() {
		end.Alias = e.Args.Owner(e.Common.Name).String()
	}
	return end
}

func macOf(itf *types100.Interface) net.HardwareAddr {
	mac, err := net.ParseMAC(itf.Mac)
	if err != nil {
		return nil
	}
	return mac
}

// number returns the number of the container's end in the result; -1 if it is not there.
func (e *Ends) number() int {
	if e.Args.Netns == "" {
		return -1
	}
	return slices.IndexFunc(e.Result.Interfaces, func(itf *types100.Interface) bool {
		return itf.Name == e.Args.IfName && itf.Sandbox == e.Args.Netns
	})
}

// InsideObjects returns what the container's end has: settings, addresses, routes and source rules. If it is not known what later
// plugins of the chain have made of it, only the source rules are changed by a repair.
func (e *Ends) InsideObjects() ([]object.Object, error) {
	i := e.number()
	if i < 0 {
		return nil, fmt.Errorf("prevResult has no interface %q in %q", e.Args.IfName, e.Args.Netns)
	}
	name, itf := e.Args.IfName, e.Result.Interfaces[i]
	list := []object.Object{
		&object.End{Name: name, Peer: e.Args.Owner(e.Common.Name).Veth(), MAC: macOf(itf), MTU: e.mtuOf(itf)},
		&object.Up{Link: name, Notifies: true},
	}
	if v4, _ := familiesOf(e.Result); v4 && e.knowsInside() && !e.Args.Later.Sysctls {
		list = append(list, &object.AnswersARP{Link: name, InSubnet: true})
	}
	list = append(list, e.insideAddresses(i), &object.Routes{Link: name, List: e.routes(i)})
	if !e.knowsInside() {
		list = object.Required(list...)
	}
	if rules := e.sourceRules(); rules != nil && e.ByReference() {
		list = append(list, object.Required(rules)...)
	} else if rules != nil {
		list = append(list, rules)
	}
	return list, nil
}

// insideAddresses returns the addresses of interface i of the result.
func (e *Ends) insideAddresses(i int) *object.Addresses {
	a := &object.Addresses{Link: e.Args.IfName, IPv6: e.ipv6Settings(), Detect: e.DAD}
	for _, ip := range e.addressesOf(i) {
		a.List = append(a.List, object.Address{IPNet: &ip.Address, Flags: addressFlags(ip, e.Options)})
	}
	return a
}

// addressesOf returns the addresses of interface i of the result.
func (e *Ends) addressesOf(i int) (list []*types100.IPConfig) {
	for _, ip := range e.Result.IPs {
		if ip.Interface == nil || *ip.Interface == i {
			list = append(list, ip)
		}
	}
	return list
}

// ipv6Settings returns what enables IPv6 on the interface and on loopback, and makes the
// interface keep its addresses while it is down, and announce them as IPv4 ones: see
// rtnl.Batch.SetUp.
func (e *Ends) ipv6Settings() []object.Sysctl {
	const conf = "net/ipv6/conf/"
	own := conf + e.Args.IfName + "/"
	list := []object.Sysctl{{Name: conf + "lo/disable_ipv6", Value: "0"}, {Name: own + "disable_ipv6", Value: "0"}, {Name: own + "keep_addr_on_down", Value: "1"}}
	if !e.NotifyLater {
		list = append(list, object.Sysctl{Name: own + "ndisc_notify", Value: "1"})
	}
	if e.DAD {
		return append(list, object.Sysctl{Name: own + "enhanced_dad", Value: "1"}, object.Sysctl{Name: own + "accept_dad", Value: "1"})
	}
	return append(list, object.Sysctl{Name: own + "accept_dad", Value: "0"})
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

// NotifyIPv6 makes the interface announce its IPv6 addresses whenever its link gets another MAC, or goes
// down and up. It does nothing without such addresses.
func NotifyIPv6(s *rtnl.Sandbox, name string, r *types100.Result) error {
	if !HasIPv6(r) {
		return nil
	}
	return s.Do(func() error { return rtnl.SetSysctl("net/ipv6/conf/"+name+"/ndisc_notify", "1") })
}

// BringUp brings up the host's end of a veth that was made down, and that ignores routers before.
func BringUp(ctx context.Context, host *object.View, name string) error {
	return object.Make(ctx, host, &object.IgnoresRouters{Link: name}, &object.Up{Link: name})
}

// MadeInside returns the view of a sandbox with the new end of a veth.
func MadeInside(s *rtnl.Sandbox, v *rtnl.Veth) *object.View {
	inside := object.OfSandbox(s)
	inside.Made(&rtnl.LinkState{Name: v.PeerName, Index: v.PeerIndex})
	return inside
}

// Configure makes the first objects of the container's end, brings it up, and adds the addresses, routes and source rules of the
// result. In the result it sets the priorities that routes get because of others.
func (e *Ends) Configure(ctx context.Context, s *rtnl.Sandbox, v *rtnl.Veth, first ...object.Object) error {
	inside := MadeInside(s, v)
	now, then := e.madeRoutes(v.PeerIndex)
	objects := append(first, &object.Up{Link: v.PeerName, Notifies: true}, e.insideAddresses(e.number()), now)
	if err := object.Make(ctx, inside, objects...); err != nil {
		return err
	}
	list := []object.Object{then(now.Yielded)}
	if rules := e.sourceRules(); rules != nil {
		list = append(list, rules)
	}
	return object.Make(ctx, inside, list...)
}
