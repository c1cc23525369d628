package bridge

import (
	"context"
	"errors"
	"fmt"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/spoofcheck"
	"github.com/allocnet/allocnet/internal/plugins/veth"
)

//lint:ignore ST1005 text of the reference plugin
var errNoResult = errors.New("Required prevResult missing")

// Check implements sdk.Plugin.
func (b *bridge) Check(ctx context.Context, c *sdk.CmdArgs) error {
	r, err := c.Previous(&b.Common)
	if err != nil {
		return err
	}
	if r == nil {
		return errNoResult
	}
	if err := b.ipam.Check(ctx, c); err != nil {
		return err
	}
	br, err := b.checkBridge(c, r)
	if err != nil {
		return err
	}
	if err := errors.Join(b.checkMACGuard(ctx, c, r), b.checkVLANs(c, r), b.checkGuard(c, r)); err != nil {
		return errors.Join(err, b.rules.Check(ctx, c, r))
	}
	if b.DisableContainerInterface {
		return b.rules.Check(ctx, c, r)
	}
	peer, err := b.ends(c, r).CheckSandbox()
	if peer == nil {
		return err
	}
	return errors.Join(err, b.checkRouters(c, r), b.checkPort(c, r, peer, br), b.rules.Check(ctx, c, r))
}

// checkRouters returns an error if a container on a bridge without the host's address accepts what routers advertise. Of
// others it is not known here whether ADD has found a bridge of the host. With acceptRA, the container has to accept it.
func (b *bridge) checkRouters(c *sdk.CmdArgs, r *types100.Result) error {
	if !b.AcceptRA && (!b.takesNoRouters() || b.IsGateway) || sdk.AddedByReference(c, b.Name, r) {
		return nil
	}
	s, err := c.Sandbox()
	switch {
	case err != nil:
		return err
	case b.AcceptRA:
		return veth.CheckAcceptedRouters(s, c.IfName)
	}
	return veth.CheckRoutersInside(s, c.IfName)
}

// restoreRouters restores what checkRouters checks.
func (b *bridge) restoreRouters(c *sdk.CmdArgs, r *types100.Result) error {
	if b.checkRouters(c, r) == nil {
		return nil
	}
	s, err := c.Sandbox()
	if err != nil {
		return err
	}
	if b.AcceptRA {
		return veth.AcceptRoutersInside(s, c.IfName)
	}
	return veth.IgnoreRoutersInside(s, c.IfName)
}

// checkBridge compares the bridge with the result and the configuration, including the
// gateways' addresses. It returns the bridge.
func (b *bridge) checkBridge(c *sdk.CmdArgs, r *types100.Result) (*netlink.Bridge, error) {
	i := slices.IndexFunc(r.Interfaces, func(itf *types100.Interface) bool {
		return itf.Name == b.Bridge && itf.Sandbox == ""
	})
	if i < 0 {
		return nil, fmt.Errorf("prevResult has no bridge %q", b.Bridge)
	}
	link, arpIgnore, err := c.Host.Kernel.Inspect(b.Bridge)
	if err != nil {
		return nil, fmt.Errorf("find bridge %q: %w", b.Bridge, err)
	}
	br, ok := link.(*netlink.Bridge)
	if !ok {
		return nil, fmt.Errorf("%q is a %s, not a bridge", b.Bridge, link.Type())
	}
	own, err := b.isOwn(c.Host, br)
	switch {
	case err != nil:
		return nil, err
	case br.RawFlags&unix.IFF_UP == 0:
		return nil, fmt.Errorf("bridge %q is down", b.Bridge)
	case b.needsARP(br):
		return nil, fmt.Errorf("bridge %q has ARP switched off", b.Bridge)
	// Without a gateway the MAC is not pinned and follows the ports, and that of a bridge of the host is its own.
	case own && b.IsGateway && r.Interfaces[i].Mac != "" && r.Interfaces[i].Mac != br.HardwareAddr.String():
		return nil, fmt.Errorf("bridge %q has the MAC %s, not %s", b.Bridge, br.HardwareAddr, r.Interfaces[i].Mac)
	case b.PromiscMode != (br.RawFlags&unix.IFF_PROMISC != 0):
		return nil, fmt.Errorf("bridge %q: promiscuous mode is %v, not %v", b.Bridge, !b.PromiscMode, b.PromiscMode)
	}
	if own {
		err = checkMTU(c.Host, br, b.ends(c, r).HostMTU())
	}
	if b.answersARP(r) {
		err = errors.Join(err, veth.CheckARP(b.Bridge, arpIgnore, true))
	}
	return br, errors.Join(err, b.checkGateways(c, br, r))
}

// answersARP reports whether containers ask for the MAC of the bridge with ARP.
func (b *bridge) answersARP(r *types100.Result) bool {
	return b.IsGateway && b.Vlan == 0 && slices.ContainsFunc(r.IPs, func(ip *types100.IPConfig) bool { return ip.Gateway.To4() != nil })
}

// needsARP reports whether the host cannot find out the MACs of its neighbours on the bridge.
func (b *bridge) needsARP(br *netlink.Bridge) bool {
	return b.IsGateway && b.Vlan == 0 && br.RawFlags&unix.IFF_NOARP != 0
}

// checkGateways returns an error if the bridge no longer has the gateways' addresses, or
// the host does not forward for them.
func (b *bridge) checkGateways(c *sdk.CmdArgs, br *netlink.Bridge, r *types100.Result) error {
	if !b.IsGateway {
		return nil
	}
	name, index, err := b.gatewayIndex(c.Host.Kernel, br)
	if err != nil {
		return err
	}
	addresses, err := c.Host.Kernel.Addresses(index)
	if err != nil {
		return err
	}
	var errs []error
	for _, ip := range r.IPs {
		if !slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return a.IP.Equal(ip.Gateway) }) {
			errs = append(errs, fmt.Errorf("interface %q does not have the gateway address %s", name, ip.Gateway))
		}
	}
	isLocal := func(a netlink.Addr) bool { return a.IP.To4() == nil && a.IP.IsLinkLocalUnicast() }
	if b.Vlan == 0 && veth.HasIPv6(r) && !sdk.AddedByReference(c, b.Name, r) && !slices.ContainsFunc(addresses, isLocal) {
		errs = append(errs, fmt.Errorf("interface %q has no link-local address", name))
	}
	if len(errs) > 0 {
		errs = append([]error{veth.CheckMTU(c.Host.Kernel, name, r)}, errs...) // the cause first
	}
	return errors.Join(append(errs, b.checkRoutes(c.Host.Kernel, br, r), veth.CheckForwarding(c.Host.Kernel, index, name, r))...)
}

// checkPort looks for the host's end of the veth among the interfaces of the
// result.
func (b *bridge) checkPort(c *sdk.CmdArgs, r *types100.Result, peer netlink.Link, br *netlink.Bridge) error {
	var errs []error
	for _, itf := range r.Interfaces {
		if itf.Sandbox != "" || itf.Name == b.Bridge {
			continue
		}
		_, _, err := b.ends(c, r).CheckHost(itf, peer, br.Index)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		port, err := c.Host.Kernel.Port(itf.Name)
		if err != nil {
			return err
		}
		if err := b.checkSettings(port); err != nil {
			return fmt.Errorf("port %q of bridge %q %w", itf.Name, b.Bridge, err)
		}
		return nil
	}
	return errors.Join(append(errs, fmt.Errorf("bridge %q has no port for %q", b.Bridge, c.IfName))...)
}

// Del implements sdk.Plugin.
func (b *bridge) Del(ctx context.Context, c *sdk.CmdArgs) error {
	err := veth.Detach(ctx, c, &b.Common, b.ipam, b.rules)
	return errors.Join(err, b.delMACGuard(ctx, c)) // after the link is deleted
}

// Bind implements sdk.Binder. What an ADD would find of a bridge that another program has
// changed meanwhile, it restores as ADD does.
func (b *bridge) Bind(ctx context.Context, c *sdk.CmdArgs) error {
	r, err := c.Previous(&b.Common)
	if err == nil && r == nil {
		err = errNoResult
	}
	if err == nil {
		err = veth.RequireMTU(c.Host.Kernel, b.MTU, r)
	}
	if err != nil {
		return err
	}
	if c.Unchanged {
		return nil
	}
	if b.guardsSources() {
		if err := c.Host.Guard(ctx, ruleset.Bridge); err != nil {
			return err
		}
	}
	if ok, err := b.isConnected(c, r); ok || err != nil {
		return err
	}
	if _, err := b.restoreBridge(ctx, c, r); err != nil {
		return err
	}
	_, err = b.restorePort(c, r)
	return err
}

// isConnected reports whether the port of a container is up, attached and guarded, the bridge
// has the routes to the container, and the host forwards its packets.
func (b *bridge) isConnected(c *sdk.CmdArgs, r *types100.Result) (bool, error) {
	host := c.Host.Kernel
	port, err := host.Port(c.Owner(b.Name).Veth())
	if err != nil || !port.Up || port.Master == 0 || !b.isGuarded(port) || b.ends(c, r).RestoreHost(&rtnl.Batch{}, port) {
		return false, err
	}
	if !b.IsGateway || b.Vlan != 0 || len(r.IPs) == 0 {
		br, err := host.Bridge(b.Bridge)
		return err == nil && br.Index == port.Master && br.RawFlags&unix.IFF_UP != 0, nil
	}
	for _, ip := range r.IPs {
		if !host.Reaches(port.Master, &ip.Address) {
			return false, nil
		}
	}
	return veth.CheckForwarding(host, port.Master, b.Bridge, r) == nil, nil
}

// Disconnect implements sdk.Disconnecter. A VLAN's tags and the MAC check stay until DEL.
func (b *bridge) Disconnect(ctx context.Context, c *sdk.CmdArgs) error {
	closed, err := b.closesWithoutElements(ctx, c)
	if err != nil {
		return err
	}
	return veth.Disconnect(ctx, c, &b.Common, b.rules, closed)
}

// Status implements sdk.Plugin.
func (b *bridge) Status(ctx context.Context, c *sdk.CmdArgs) error {
	return errors.Join(b.rules.Masquerade.Validate(), b.ipam.Status(ctx, c))
}

// Validate implements sdk.Validator.
func (b *bridge) Validate(planned *types100.Result) error {
	err := b.rules.Masquerade.Validate()
	if err == nil && planned != nil {
		b.route(planned)
		err = veth.DistinctRoutes(planned)
	}
	return err
}

// GC implements sdk.Plugin. The bridge stays.
func (b *bridge) GC(ctx context.Context, c *sdk.CmdArgs) error {
	err := veth.Collect(ctx, c, &b.Common, b.ipam, b.rules)
	return errors.Join(err, spoofcheck.Collect(ctx, c.Stale(b.Name)))
}
