package bridge

import (
	"fmt"
	"net"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/object"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/veth"
)

// compile returns what an attachment has.
func (b *bridge) compile(c *sdk.CmdArgs, r *types100.Result) *veth.Attachment {
	a := b.attachment(c, r)
	all := &veth.Attachment{Ends: a.Ends, Shared: a.bridgeObjects(), Own: a.portObjects(), Last: a.lastObjects()}
	all.Reach = all.Own
	all.Key = fmt.Sprintf("bridge %s %d", b.Bridge, b.Vlan)
	for _, ip := range r.IPs {
		all.Key += " " + ip.Gateway.String()
	}
	if b.guardsSources() && !a.ByReference() {
		all.Guard = []ruleset.Family{ruleset.Bridge}
	}
	all.Inside, all.Unclear = a.inside()
	switch {
	case a.macOfBridge() == nil && !slices.ContainsFunc(r.Interfaces, func(itf *types100.Interface) bool { return itf.Name == b.Bridge && itf.Sandbox == "" }):
		all.Unclear = fmt.Errorf("prevResult has no bridge %q", b.Bridge)
	case a.port == "":
		all.Unclear = fmt.Errorf("bridge %q has no port for %q", b.Bridge, c.IfName)
	}
	return all
}

// attachment is an attachment with its parts.
type attachment struct {
	veth.Ends
	*bridge
	port string           // name of the host's end; "" if the result does not have it
	pin  net.HardwareAddr // the MAC that the bridge keeps with its first address; nil for that which it has then
}

func (b *bridge) attachment(c *sdk.CmdArgs, r *types100.Result) *attachment {
	options := veth.Options{DAD: b.EnableDAD, Behind: c.Secondary}
	a := &attachment{bridge: b, port: c.Owner(b.Name).Veth(), Ends: veth.Ends{Args: c, Common: &b.Common, Result: r, MTU: b.MTU, Options: options}}
	if a.ByReference() {
		a.port = ""
		i := slices.IndexFunc(r.Interfaces, func(itf *types100.Interface) bool {
			return itf.Sandbox == "" && itf.Name != b.Bridge && itf.Name != b.gatewayName()
		})
		if i >= 0 {
			a.port = r.Interfaces[i].Name
		}
	}
	return a
}

// bridgeObjects returns the bridge, and what makes it the gateway of the addresses.
func (a *attachment) bridgeObjects() []object.Object {
	br := &object.Bridge{
		Name: a.Bridge, Pinned: a.IsGateway, MAC: a.macOfBridge(), NewMTU: a.config.MTU,
		Promiscuous: a.PromiscMode, Resolves: a.IsGateway && a.Vlan == 0, Answers: a.answersARP(), Filters: a.filters(),
	}
	list := []object.Object{br, &object.BridgeMTU{Bridge: a.Bridge, Port: a.HostMTU()}}
	return append(append(list, a.gateway()...), a.routesToNetworks()...)
}

// macOfBridge returns the MAC of the bridge in the result; nil if it has none.
func (a *attachment) macOfBridge() net.HardwareAddr {
	i := slices.IndexFunc(a.Result.Interfaces, func(itf *types100.Interface) bool { return itf.Name == a.Bridge && itf.Sandbox == "" })
	if i < 0 {
		return nil
	}
	mac, err := net.ParseMAC(a.Result.Interfaces[i].Mac)
	if err != nil {
		return nil
	}
	return mac
}

// answersARP reports whether containers ask for the MAC of the bridge with ARP.
func (a *attachment) answersARP() bool {
	return a.IsGateway && a.Vlan == 0 && slices.ContainsFunc(a.Result.IPs, func(ip *types100.IPConfig) bool { return ip.Gateway.To4() != nil })
}

// gateway returns the addresses of the gateways, which the bridge has or, with a VLAN, the interface of that, and forwarding.
func (a *attachment) gateway() []object.Object {
	if !a.IsGateway {
		return nil
	}
	link := a.gatewayName()
	addresses := &object.Addresses{Link: link, Added: a.gatewayAdded, IPv6: []object.Sysctl{{Name: "net/ipv6/conf/" + link + "/disable_ipv6", Value: "0"}}}
	for _, ip := range a.Result.IPs {
		gateway := &net.IPNet{IP: ip.Gateway, Mask: ip.Address.Mask}
		v4 := ip.Gateway.To4() != nil // the kernel refuses an IPv6 address with a second prefix length
		addresses.List = append(addresses.List, object.Address{IPNet: gateway, Flags: rtnl.NoDAD, AnyPrefix: !v4, Beside: v4})
	}
	list := []object.Object{addresses}
	if a.Vlan != 0 {
		list = []object.Object{&vlanGateway{a}, addresses}
	}
	if veth.HasIPv6(a.Result) && !a.ByReference() {
		list = append(list, &object.LinkLocalAddress{Link: link})
	}
	return append(list, veth.Forwarding(link, a.Result))
}

// routesToNetworks returns the routes to the networks of the addresses, which the kernel makes with the gateways' addresses.
func (a *attachment) routesToNetworks() (list []object.Object) {
	for _, ip := range a.Result.IPs {
		if ones, bits := ip.Address.Mask.Size(); a.IsGateway && a.Vlan == 0 && ones < bits {
			list = append(list, &object.NetworkRoute{Link: a.Bridge, Address: &ip.Address, Gateway: ip.Gateway})
		}
	}
	return list
}

// portObjects returns the host's end of the veth as a port of the bridge. Of a port with VLANs, these have to be restored first.
func (a *attachment) portObjects() []object.Object {
	var list []object.Object
	if !a.guardsSources() && !a.ByReference() {
		list = append(list, &object.IgnoresRouters{Link: a.port})
	}
	end := a.HostEnd(a.port)
	if a.DisableContainerInterface { // whose name may be another by now
		end.Peer = ""
	}
	list = append(list, end, &object.BridgePort{
		Link: a.port, Bridge: a.Bridge, Hairpin: a.HairpinMode, Isolated: a.PortIsolation,
		Guarded: a.guardsSources() && !a.ByReference(), Tagged: a.tags(),
	})
	up := []object.Object{&object.Up{Link: a.port, Port: true}}
	if a.tags() {
		up = object.Required(up...)
	}
	list = append(list, up...)
	if a.ByReference() {
		return object.Required(list...)
	}
	return list
}

// inside returns the objects of the container's end, which may be left down.
func (a *attachment) inside() ([]object.Object, error) {
	if a.DisableContainerInterface {
		return nil, nil
	}
	list, err := a.InsideObjects()
	if err != nil {
		return nil, err
	}
	switch {
	case a.ByReference():
	case a.AcceptRA:
		list = append(list, &object.AcceptsRouters{Link: a.Args.IfName})
	case a.takesNoRouters() && !a.IsGateway:
		// Of a bridge with the host's address, it is not known here whether ADD has found it as one of the host.
		list = append(list, &object.IgnoresRouters{Link: a.Args.IfName})
	}
	return list, nil
}

// lastObjects are the rules of macspoofchk and the VLANs of the port.
func (a *attachment) lastObjects() (list []object.Object) {
	if a.MacSpoofChk {
		list = append(list, &macGuard{a})
	}
	if a.tags() {
		list = append(list, &portVLANs{a})
	}
	return list
}
