package ptp

import (
	"errors"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/object"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/veth"
)

// compile returns what an attachment has.
func (p *ptp) compile(c *sdk.CmdArgs, r *types100.Result) *veth.Attachment {
	a := p.attachment(c, r)
	all := &veth.Attachment{Ends: a.Ends, Own: a.host(), Reach: a.reach(), Forwards: true}
	if a.guarded() {
		all.Guard = GuardedFamilies()
	}
	if all.Inside, all.Unclear = a.InsideObjects(); a.name == "" {
		all.Unclear = errors.New("prevResult has no interface of the host")
	}
	return all
}

// attachment is an attachment with its parts.
type attachment struct {
	veth.Ends
	*ptp
	name string // of the host's end
}

func (p *ptp) attachment(c *sdk.CmdArgs, r *types100.Result) *attachment {
	options := veth.Options{ViaGateway: true, Behind: c.Secondary}
	a := &attachment{ptp: p, name: c.Owner(p.Name).Veth(), Ends: veth.Ends{Args: c, Common: &p.Common, Result: r, MTU: p.MTU, Options: options}}
	if a.ByReference() {
		a.name = ""
		if i := slices.IndexFunc(r.Interfaces, func(itf *types100.Interface) bool { return itf.Sandbox == "" }); i >= 0 {
			a.name = r.Interfaces[i].Name
		}
	}
	return a
}

// host returns the objects of the host: its end of the veth, and those by which packets reach the container. Of what the
// reference plugin has made, only forwarding is changed by a repair.
func (a *attachment) host() []object.Object {
	if a.name == "" { // results before version 0.3.0 have no interfaces
		return nil
	}
	end := a.HostEnd(a.name)
	end.Guarded, end.Routed = a.guarded(), true
	list := []object.Object{end}
	if slices.ContainsFunc(a.Result.IPs, func(ip *types100.IPConfig) bool { return ip.Gateway.To4() != nil }) {
		list = append(list, &object.AnswersARP{Link: a.name})
	}
	if a.ByReference() {
		list = object.Required(list...)
	}
	return append(list, a.reach()...)
}

// reach returns the objects by which packets reach the container. It takes no time for a description of the link, and so is for
// many attachments.
func (a *attachment) reach() (list []object.Object) {
	if !a.guarded() && !a.ByReference() {
		list = append(list, &object.IgnoresRouters{Link: a.name})
	}
	list = append(list, &object.Up{Link: a.name}, a.hostAddresses())
	list = append(list, a.hostRoutes()...)
	if a.ByReference() {
		list = object.Required(list...)
	}
	return append(list, veth.Forwarding(a.name, a.Result))
}

// guarded reports whether the source guard drops packets from the container with other sources than its own.
func (a *attachment) guarded() bool { return a.guardsSources() && !a.ByReference() }

// hostAddresses returns the addresses of the host's end, which is the gateway of each address: those of the gateways and, as
// the source of neighbour discovery, the link-local one. The kernel would add the same one, but only after duplicate
// address detection, which delays IPv6 by two seconds. Disabling the detection
// with a sysctl of the link makes deleting the link wait for RCU once more.
// An address with a /64 prefix would make the kernel join the subnet-router
// anycast group (RFC 4291, section 2.6.1), and leaving the group makes deleting
// the link wait for RCU once more.
func (a *attachment) hostAddresses() *object.Addresses {
	list := &object.Addresses{Link: a.name, IPv6: []object.Sysctl{{Name: "net/ipv6/conf/" + a.name + "/disable_ipv6", Value: "0"}}}
	if mac := a.HostEnd(a.name).MAC; veth.HasIPv6(a.Result) && len(mac) == 6 && !a.ByReference() {
		list.List = append(list.List, object.Address{IPNet: veth.HostPrefix(object.LinkLocal(mac)), Flags: rtnl.NoDAD, AnyPrefix: true})
	}
	for _, ip := range a.Result.IPs {
		if ip.Gateway == nil {
			continue
		}
		gateway := object.Address{IPNet: veth.HostPrefix(ip.Gateway), Shared: true}
		if ip.Gateway.To4() == nil {
			gateway.Shared, gateway.Flags = false, rtnl.NoDAD
		}
		list.List = append(list.List, gateway)
	}
	return list
}

// hostRoutes returns the routes of the host over its end.
func (a *attachment) hostRoutes() (list []object.Object) {
	if veth.HasIPv6(a.Result) && !a.ByReference() {
		list = append(list, &object.LinkLocalRoute{Link: a.name})
	}
	for _, ip := range a.Result.IPs {
		list = append(list, &object.HostRoute{Link: a.name, To: veth.HostPrefix(ip.Address.IP)})
	}
	return list
}

// made returns the objects of the host that ADD makes after the link, which has forwarding. All of them disappear with it.
func (a *attachment) made() []object.Object {
	list := []object.Object{}
	if !veth.HasIPv6(a.Result) {
		list = append(list, &object.NoMulticast{Link: a.name})
	}
	return append(append(list, a.hostAddresses()), a.hostRoutes()...)
}

// group is the group of the host's end. The source guard is a rule that all links of one group share, so that no packet
// passes more rules for every container. See ruleset.Ruleset.Guard.
func (p *ptp) group() uint32 {
	if p.guardsSources() {
		return names.GuardedGroup
	}
	return 0
}

// GuardedFamilies returns the families of the source guard: all that the kernel has. A workload
// can send packets of each, whichever addresses its network has.
func GuardedFamilies() []ruleset.Family {
	if !rtnl.HasIPv6() {
		return []ruleset.Family{ruleset.IPv4}
	}
	return []ruleset.Family{ruleset.IPv4, ruleset.IPv6}
}
