// Package ptp is allocnet's native CNI plugin "ptp". It connects the container
// to the host with a veth, without a bridge, and routes all traffic over it.
package ptp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/veth"
)

// ptp is the plugin with its configuration, which has the reference plugin's
// keys.
type ptp struct {
	sdk.Common
	IPMasq        bool    `json:"ipMasq"`
	IPMasqBackend *string `json:"ipMasqBackend"`
	// IPMasqExcept are networks to which the plugin does not masquerade. The
	// reference plugin ignores the key.
	IPMasqExcept []netip.Prefix `json:"ipMasqExcept"`
	MTU          int            `json:"mtu"`
	// SourceGuard drops packets from the container whose source is not its own; default
	// true. The reference plugin ignores the key.
	SourceGuard *bool `json:"sourceGuard"`
	// Fragments false drops fragments of IP packets from the container; default true. The reference
	// plugin ignores the key.
	Fragments *bool `json:"fragments"`

	ipam  veth.IPAM
	rules veth.Rules
}

// New implements sdk.Factory.
func New(conf []byte) (sdk.Plugin, error) {
	p := &ptp{}
	decodeErr := sdk.Decode(conf, p)
	unread := decodeErr != nil && !sdk.IsUnknownKey(decodeErr)
	var ipamErr error
	p.ipam, ipamErr = veth.IPAMOf(&p.Common)
	p.MTU = max(p.MTU, 0) // the reference plugin ignores a negative MTU, too
	p.rules = veth.Rules{Network: p.Name, Masquerade: veth.Masquerade{
		On: unread || p.IPMasq, Backend: p.IPMasqBackend, Network: p.Name, Except: p.IPMasqExcept,
	}}
	p.rules.Unfragmented = unread || p.dropsFragments()
	return p, sdk.FirstError(decodeErr, ipamErr, p.rules.Masquerade.ValidateExcept(), veth.ValidateMTU(p.MTU))
}

//lint:ignore ST1005 text of the reference plugin
var errNoResult = errors.New("Required prevResult missing")

var errNoIPAM = sdk.Invalid(errors.New("an IPAM plugin is needed: the configuration has no ipam.type"))

// addition is the state of one ADD.
type addition struct {
	*ptp
	args    *sdk.CmdArgs
	sandbox *rtnl.Sandbox
	veth    rtnl.Veth
	result  *types100.Result
}

// Add implements sdk.Plugin. The reference plugin has no capability mac.
func (p *ptp) Add(ctx context.Context, c *sdk.CmdArgs) (*types100.Result, error) {
	if p.ipam == "" {
		return nil, errNoIPAM
	}
	mac, err := veth.MAC(&p.Common, "")
	if err != nil {
		return nil, err
	}
	owner := c.Owner(p.Name)
	a := &addition{ptp: p, args: c, veth: rtnl.Veth{
		Name: owner.Veth(), MAC: rtnl.RandomMAC(), Alias: owner.String(),
		PeerName: c.IfName, PeerMAC: mac, NoLinkLocal: true, Group: c.Pending(owner.Veth(), p.group()), Down: !p.guardsSources(),
	}}
	if a.sandbox, err = c.Sandbox(); err != nil {
		return nil, err
	}
	err = sdk.Run(ctx,
		sdk.Step{Name: "addresses", Do: a.allocate, Undo: a.release},
		sdk.Step{Name: "source guard", Do: a.guard}, // before the container can send
		sdk.Step{Name: "fragments", Do: a.dropFragments, Undo: a.passFragments},
		sdk.Step{Name: "attach interface " + c.IfName, Do: a.attach, Undo: a.detach},
		sdk.Step{Name: "bring up " + a.veth.Name, Do: a.bringUp},
		sdk.Step{Name: "configure interface " + c.IfName, Do: a.configure},
		sdk.Step{Name: "host", Do: a.configureHost},
		sdk.Step{Name: "masquerade", Do: a.masquerade},
		sdk.Step{Name: "reception", Do: a.awaitReception},
	)
	if err != nil {
		return nil, err
	}
	return a.result, nil
}

// allocate reserves addresses and completes the result. It fails for an address
// without a gateway, because the plugin routes through gateways.
func (a *addition) allocate(ctx context.Context) error {
	r, err := a.ipam.Allocate(ctx, a.args, a.Name, true)
	if err != nil {
		return err
	}
	err = a.complete(r)
	if err != nil {
		return errors.Join(err, a.release(ctx))
	}
	return nil
}

// complete derives the result of ADD from the IPAM plugin's result.
func (a *addition) complete(r *types100.Result) (err error) {
	if err := errors.Join(requireGateways(r), veth.DistinctRoutes(r)); err != nil {
		return err
	}
	for _, ip := range r.IPs {
		ip.Interface = types100.Int(1)
	}
	if a.veth.MTU, err = veth.MTU(a.args.Host.Kernel, a.MTU, r); err != nil {
		return err
	}
	a.result = &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion, IPs: r.IPs, Routes: r.Routes,
		Interfaces: []*types100.Interface{
			{Name: a.veth.Name, Mac: a.veth.MAC.String(), Mtu: a.veth.MTU},
			{Name: a.veth.PeerName, Mac: a.veth.PeerMAC.String(), Mtu: a.veth.MTU, Sandbox: a.args.Netns},
		},
	}
	a.result.DNS, err = veth.DNS(&a.Common, r.DNS)
	return err
}

func (a *addition) release(ctx context.Context) error { return a.ipam.Release(ctx, a.args) }

// attach makes the link. If a later plugin needs it, and the guard is there, the link has
// route_localnet from the beginning: to set it later takes another request.
func (a *addition) attach(context.Context) error {
	additions := a.args.Additions
	a.veth.Forward = slices.ContainsFunc(a.result.IPs, func(ip *types100.IPConfig) bool { return ip.Address.IP.To4() != nil })
	a.veth.RouteLoopback = additions != nil && additions.RoutesLoopback && a.guardsSources() && a.veth.Forward
	if err := a.args.Host.Kernel.CreateVeth(&a.veth, a.sandbox); err != nil {
		return err
	}
	if a.veth.RouteLoopback {
		additions.LoopbackRouted = a.veth.Name
	}
	return nil
}

// bringUp brings up a link without the source guard.
func (a *addition) bringUp(context.Context) error {
	if !a.veth.Down {
		return nil
	}
	return veth.BringUp(a.args.Host.Kernel, &a.veth)
}

func (a *addition) detach(ctx context.Context) error {
	_, err := a.args.Host.Kernel.DeleteLink(ctx, a.veth.Name)
	return errors.Join(err, veth.DelSourceRules(a.args, a.result))
}

func (a *addition) configure(ctx context.Context) error {
	return veth.Configure(ctx, a.sandbox, &a.veth, a.result, options(a.args))
}

// options are those with which the container's end is configured.
func options(c *sdk.CmdArgs) veth.Options {
	return veth.Options{ViaGateway: true, Behind: c.Secondary}
}

// ends returns the ends of the veth of an attachment.
func (p *ptp) ends(c *sdk.CmdArgs, r *types100.Result) *veth.Ends {
	return &veth.Ends{Args: c, Common: &p.Common, Result: r, MTU: p.MTU, Options: options(c)}
}

// addLinkLocal adds the link-local address to the host's end, and the link-local
// route. The kernel would create the same address, but only after duplicate
// address detection, which delays IPv6 by two seconds. Disabling the detection
// with a sysctl of the link makes deleting the link wait for RCU once more.
// An address with a /64 prefix would make the kernel join the subnet-router
// anycast group (RFC 4291, section 2.6.1), and leaving the group makes deleting
// the link wait for RCU once more.
func addLinkLocal(b *rtnl.Batch, v *rtnl.Veth) {
	ip := veth.LinkLocal(v.MAC)
	b.AddAddress(v.Index, veth.HostPrefix(ip), rtnl.NoDAD)
	network := &net.IPNet{IP: ip.Mask(net.CIDRMask(64, 128)), Mask: net.CIDRMask(64, 128)}
	b.AddRoute(&rtnl.Route{Index: v.Index, Dst: network, Scope: unix.RT_SCOPE_LINK})
}

// configureHost makes the host's end the gateway of each address, and adds a
// route to it. Both disappear with the link.
func (a *addition) configureHost(context.Context) error {
	host := a.args.Host.Kernel
	index := a.veth.Index
	var changes rtnl.Batch
	if veth.HasIPv6(a.result) {
		addLinkLocal(&changes, &a.veth)
	} else {
		changes.DropMulticast(index)
	}
	for _, ip := range a.result.IPs {
		if ip.Gateway.To4() != nil {
			changes.AddSharedAddress(index, ip.Gateway)
		} else {
			changes.AddAddress(index, veth.HostPrefix(ip.Gateway), rtnl.NoDAD)
		}
		// Another route means that another allocation has the address, whose lease and elements were lost.
		route := routeTo(index, ip)
		route.Exclusive = true
		changes.AddRoute(route)
	}
	err := host.Apply(&changes)
	if errors.Is(err, unix.EACCES) { // the host switches IPv6 off for new links
		_, err = veth.WithIPv6(host, a.veth.Name, a.result, func(r *types100.Result) (bool, error) {
			return restoreReach(a.args.Host, index, a.veth.Name, r)
		})
	}
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%w: the host has another route to an address of the container (ip route show table main): %w", allocnet.ErrAddressUnavailable, err)
	}
	if err != nil {
		return err
	}
	return veth.Forward(a.args.Host, a.result)
}

// routeTo returns the host's route to an address of the container.
func routeTo(index int, ip *types100.IPConfig) *rtnl.Route {
	return &rtnl.Route{Index: index, Dst: veth.HostPrefix(ip.Address.IP), Scope: unix.RT_SCOPE_HOST}
}

// awaitReception waits until both ends accept packets for their addresses.
func (a *addition) awaitReception(ctx context.Context) error {
	ips := []net.IP{}
	for _, ip := range a.result.IPs {
		ips = append(ips, ip.Gateway)
	}
	if veth.HasIPv6(a.result) {
		ips = append(ips, veth.LinkLocal(a.veth.MAC))
	}
	return errors.Join(
		a.args.Host.Kernel.AwaitReception(ctx, a.veth.Index, ips...),
		a.sandbox.AwaitReception(ctx, a.veth.PeerIndex, veth.IPs(a.result)...),
	)
}

func (a *addition) masquerade(ctx context.Context) error {
	return a.rules.Masquerade.Add(ctx, a.args, a.result)
}

// Check implements sdk.Plugin.
func (p *ptp) Check(ctx context.Context, c *sdk.CmdArgs) error {
	r, err := c.Previous(&p.Common)
	if err != nil {
		return err
	}
	if r == nil {
		return errNoResult
	}
	if err := p.ipam.Check(ctx, c); err != nil {
		return err
	}
	peer, err := p.ends(c, r).CheckSandbox()
	if peer == nil {
		return err
	}
	return errors.Join(err, p.checkHost(ctx, c, r, peer), p.rules.Check(ctx, c, r))
}

func (p *ptp) checkHost(ctx context.Context, c *sdk.CmdArgs, r *types100.Result, peer netlink.Link) error {
	for _, itf := range r.Interfaces {
		if itf.Sandbox == "" {
			link, arpIgnore, err := p.ends(c, r).CheckHost(itf, peer, 0)
			if err != nil {
				return err
			}
			host, index := c.Host.Kernel, link.Attrs().Index
			if slices.ContainsFunc(r.IPs, func(ip *types100.IPConfig) bool { return ip.Gateway.To4() != nil }) {
				err = veth.CheckARP(itf.Name, arpIgnore, false)
			}
			return errors.Join(err, checkLink(host, link), p.checkReach(c, index, itf.Name, r), veth.CheckForwarding(host, index, itf.Name, r), p.checkGuard(ctx, c, link, r))
		}
	}
	return errors.New("prevResult has no interface of the host")
}

// checkLink returns an error if the host's end does not receive the packets from the container, or does not
// find out its MAC.
func checkLink(host *rtnl.Host, link netlink.Link) error {
	attrs := link.Attrs()
	if attrs.RawFlags&unix.IFF_NOARP != 0 {
		return fmt.Errorf("interface %q of the host has ARP switched off", attrs.Name)
	}
	if attrs.MasterIndex == 0 {
		return nil
	}
	port, err := host.Port(attrs.Name)
	if err == nil && port.Bridged {
		err = fmt.Errorf("interface %q of the host has become a port of a bridge, which gets its packets", attrs.Name)
	}
	return err
}

// checkReach returns an error for each address that the host's end lacks, and
// for each of the container's addresses to which the host lacks the route.
func (p *ptp) checkReach(c *sdk.CmdArgs, index int, name string, r *types100.Result) error {
	host := c.Host.Kernel
	have, err := host.IPs(index)
	if err != nil {
		return err
	}
	var errs []error
	for _, want := range p.hostIPs(c, name, r) {
		if !slices.ContainsFunc(have, want.Equal) {
			errs = append(errs, fmt.Errorf("interface %q of the host does not have the address %s", name, want))
		}
	}
	for _, ip := range r.IPs {
		if has, err := host.HasRoute(index, veth.HostPrefix(ip.Address.IP)); err != nil {
			errs = append(errs, err)
		} else if !has {
			errs = append(errs, noRoute(host, index, name, ip))
		}
	}
	if len(errs) > 0 {
		errs = append([]error{veth.CheckMTU(host, name, r)}, errs...) // the cause first
	}
	return errors.Join(errs...)
}

// hostIPs returns the addresses of the host's end: those of the gateways and, as the source of neighbour discovery, the
// link-local one.
func (p *ptp) hostIPs(c *sdk.CmdArgs, name string, r *types100.Result) (list []net.IP) {
	for _, ip := range r.IPs {
		if ip.Gateway != nil {
			list = append(list, ip.Gateway)
		}
	}
	if !veth.HasIPv6(r) || sdk.AddedByReference(c, p.Name, r) {
		return list
	}
	for _, itf := range r.Interfaces {
		if mac, err := net.ParseMAC(itf.Mac); err == nil && len(mac) == 6 && itf.Name == name && itf.Sandbox == "" {
			list = append(list, veth.LinkLocal(mac))
		}
	}
	return list
}

// noRoute returns the error that the host lacks the route to an address of the container.
func noRoute(host *rtnl.Host, index int, name string, ip *types100.IPConfig) error {
	err := fmt.Errorf("the host has no route to %s over %q", ip.Address.IP, name)
	if foreign := host.ForeignRoute(routeTo(index, ip)); foreign != nil {
		return fmt.Errorf("%w: %w", err, foreign)
	}
	return err
}

// Del implements sdk.Plugin.
func (p *ptp) Del(ctx context.Context, c *sdk.CmdArgs) error {
	return veth.Detach(ctx, c, &p.Common, p.ipam, p.rules)
}

// Bind implements sdk.Binder. What another program has changed of the host's end, it
// restores.
func (p *ptp) Bind(ctx context.Context, c *sdk.CmdArgs) error {
	r, err := c.Previous(&p.Common)
	if err == nil && r == nil {
		err = errNoResult
	}
	if err == nil {
		err = veth.RequireMTU(c.Host.Kernel, p.MTU, r)
	}
	if err != nil {
		return err
	}
	if !c.Unchanged {
		name := c.Owner(p.Name).Veth()
		index, flags, stateErr := c.Host.Kernel.State(name)
		if err = stateErr; err == nil && (!works(flags) || p.checkReach(c, index, name, r) != nil) {
			_, err = p.restoreHost(c, r)
		} else if err == nil {
			_, err = veth.EnsureForwarding(c.Host, index, name, r)
		}
		if p.guardsSources() {
			err = errors.Join(err, c.Host.Guard(ctx, GuardedFamilies()...))
		}
	}
	return errors.Join(err, veth.Forward(c.Host, r))
}

// Disconnect implements sdk.Disconnecter.
func (p *ptp) Disconnect(ctx context.Context, c *sdk.CmdArgs) error {
	return veth.Disconnect(ctx, c, &p.Common, p.rules, false)
}

// Status implements sdk.Plugin.
func (p *ptp) Status(ctx context.Context, c *sdk.CmdArgs) error {
	if p.ipam == "" {
		return errNoIPAM
	}
	return errors.Join(p.rules.Masquerade.Validate(), p.ipam.Status(ctx, c))
}

// Validate implements sdk.Validator.
func (p *ptp) Validate(planned *types100.Result) error {
	switch {
	case p.ipam == "":
		return errNoIPAM
	case planned != nil:
		return errors.Join(p.rules.Masquerade.Validate(), requireGateways(planned), veth.DistinctRoutes(planned))
	}
	return p.rules.Masquerade.Validate()
}

// requireGateways fails for an address without a gateway, because the plugin routes through gateways.
func requireGateways(r *types100.Result) error {
	for _, ip := range r.IPs {
		if ip.Gateway == nil {
			return fmt.Errorf("the IPAM plugin returned no gateway for %s", ip.Address.String())
		}
	}
	return nil
}

// GC implements sdk.Plugin.
func (p *ptp) GC(ctx context.Context, c *sdk.CmdArgs) error {
	return veth.Collect(ctx, c, &p.Common, p.ipam, p.rules)
}
