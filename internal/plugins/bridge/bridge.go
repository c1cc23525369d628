package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/veth"
)

// addition is the state of one ADD.
type addition struct {
	*bridge
	args    *sdk.CmdArgs
	sandbox *rtnl.Sandbox
	link    *netlink.Bridge
	veth    rtnl.Veth
	result  *types100.Result
	mac     net.HardwareAddr // of a bridge that has to be created; nil for a random one
	lastUse []time.Time      // of the addresses; empty if the IPAM plugin does not know it
}

// Add implements sdk.Plugin.
func (b *bridge) Add(ctx context.Context, c *sdk.CmdArgs) (*types100.Result, error) {
	mac, err := b.mac(c)
	if err == nil && c.Link != nil {
		err = sdk.Invalid(b.Policed())
	}
	if err != nil {
		return nil, err
	}
	owner := c.Owner(b.Name)
	a := &addition{bridge: b, args: c, veth: rtnl.Veth{
		Name: owner.Veth(), MAC: rtnl.PortMAC(), Alias: owner.String(),
		PeerName: c.IfName, PeerMAC: mac, Hairpin: b.HairpinMode, Isolated: b.PortIsolation, NoLinkLocal: true, Down: b.tags() || !b.guardsSources(),
		Group: b.group(c), Hooked: b.guardsSources(),
	}}
	if a.sandbox, err = c.Sandbox(); err != nil {
		return nil, err
	}
	if err := sdk.Run(ctx, a.steps()...); err != nil {
		return nil, err
	}
	return a.result, nil
}

func (a *addition) steps() []sdk.Step {
	bridge := sdk.Step{Name: "set up the bridge", Do: a.ensureBridge}
	guard := sdk.Step{Name: "MAC spoof check", Do: a.guardMAC, Undo: a.unguardMAC}
	sources := sdk.Step{Name: "source guard", Do: a.guard, Undo: a.unguard} // before the container can send
	tag := sdk.Step{Name: "VLANs", Do: a.tag}
	up := sdk.Step{Name: "bring up " + a.veth.Name, Do: a.bringPortUp}
	attach := sdk.Step{Name: "attach interface " + a.args.IfName, Do: a.attach, Undo: a.detach}
	report := sdk.Step{Name: "interfaces", Do: a.report}
	forwards := sdk.Step{Name: "bridge port", Do: a.awaitPort}
	guarded := sdk.Step{Name: "source guard", Do: a.keepGuard}
	if a.ipam == "" {
		return []sdk.Step{bridge, guard, sources, attach, tag, up, report, {Name: "interface", Do: a.bringUp}, forwards, guarded}
	}
	return []sdk.Step{
		bridge,
		{Name: "addresses", Do: a.allocate, Undo: a.release},
		guard,
		sources,
		attach,
		tag,
		up,
		report,
		{Name: "configure interface " + a.args.IfName, Do: a.configure},
		{Name: "gateway", Do: a.gateway},
		{Name: "masquerade", Do: a.masquerade, Undo: a.unmasquerade},
		forwards,
		{Name: "reception", Do: a.awaitReception},
		guarded,
		{Name: "announce the addresses", Do: a.announce},
	}
}

// ensureBridge finds the bridge, or creates it.
func (a *addition) ensureBridge(ctx context.Context) error {
	host := a.args.Host.Kernel
	br, err := host.Bridge(a.Bridge)
	if err == nil || rtnl.IsNotFound(err) {
		err = errors.Join(a.args.Host.Bridges.Begin(), err)
	}
	if rtnl.IsNotFound(err) {
		br, err = a.createBridge(ctx, host)
	}
	if err == nil && a.filters() {
		err = a.requireFiltering(host)
	}
	if err != nil {
		return err
	}
	if a.PromiscMode && br.RawFlags&unix.IFF_PROMISC == 0 {
		if err := host.SetPromiscOn(br); err != nil {
			return fmt.Errorf("promiscuous mode of bridge %q: %w", a.Bridge, err)
		}
	}
	if br.Flags&net.FlagUp == 0 {
		if err := host.LinkSetUp(br); err != nil {
			return fmt.Errorf("bring up bridge %q: %w", a.Bridge, err)
		}
	}
	if a.needsARP(br) {
		var changes rtnl.Batch
		changes.EnableARP(br.Index)
		if err := host.Apply(&changes); err != nil {
			return fmt.Errorf("bridge %q: %w", a.Bridge, err)
		}
	}
	a.link, a.veth.Master = br, br.Index
	a.result = &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	return nil
}

// createBridge creates the bridge, which did not exist. If another process creates it at the same time,
// createBridge returns that bridge.
func (a *addition) createBridge(ctx context.Context, host *rtnl.Host) (*netlink.Bridge, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = a.Bridge, a.MTU, a.mac
	if a.mac == nil {
		attrs.HardwareAddr = rtnl.RandomMAC()
	}
	wanted := &netlink.Bridge{LinkAttrs: attrs}
	if a.filters() {
		on := true
		wanted.VlanFiltering = &on
	}
	var br *netlink.Bridge
	err := a.args.Host.Bridges.Create(ctx, a.Bridge, func() (made int, err error) {
		err = host.LinkAdd(wanted)
		exists := errors.Is(err, unix.EEXIST)
		if a.filters() && errors.Is(err, unix.EOPNOTSUPP) {
			err = errNoFiltering
		}
		if err != nil && !exists {
			return 0, fmt.Errorf("create bridge %q: %w", a.Bridge, err)
		}
		a.args.Host.Cache.Clear() // entries about an earlier bridge of that name
		if !exists {
			setSysctls(a.Bridge)
		}
		br, err = host.Bridge(a.Bridge)
		if err != nil || exists {
			return 0, err
		}
		return br.Index, nil
	}, func() error {
		_, err := host.DeleteLink(context.WithoutCancel(ctx), a.Bridge)
		return err
	})
	return br, err
}

// setSysctls sets the sysctls of a bridge, which the kernel forgets when it disables IPv6 because of the MTU. The bridge
// accepts no router advertisements, because the host configures its routes. It skips duplicate address detection, which
// would delay IPv6 by two seconds, because its addresses are unique. Both calls fail without IPv6.
func setSysctls(bridge string) {
	_ = rtnl.SetSysctl("net/ipv6/conf/"+bridge+"/accept_ra", "0")
	_ = rtnl.SetSysctl("net/ipv6/conf/"+bridge+"/accept_dad", "0")
}

func (a *addition) allocate(ctx context.Context) error {
	a.args.LastUse = &a.lastUse
	// A bridge without the host's address may have addresses that others have elsewhere.
	r, err := a.ipam.Allocate(ctx, a.args, a.Name, a.IsGateway || a.IPMasq)
	if err != nil {
		return err
	}
	a.result.IPs, a.result.Routes, a.result.DNS = r.IPs, r.Routes, r.DNS
	a.route(a.result)
	err = veth.DistinctRoutes(a.result)
	if err == nil {
		a.result.DNS, err = veth.DNS(&a.Common, r.DNS)
	}
	if err != nil {
		return errors.Join(err, a.release(ctx))
	}
	return nil
}

func (a *addition) release(ctx context.Context) error { return a.ipam.Release(ctx, a.args) }

// attach creates the veth.
func (a *addition) attach(context.Context) (err error) {
	if a.veth.MTU, err = veth.MTU(a.args.Host.Kernel, a.MTU, a.result); err != nil {
		return err
	}
	if err := a.args.Host.Kernel.CreateVeth(&a.veth, a.sandbox); err != nil {
		return err
	}
	return a.fitBridge()
}

// fitBridge restores the MTU of the bridge if that was larger than the port's, and the kernel has not lowered it,
// because another program has set it.
func (a *addition) fitBridge() error {
	port := a.veth.MTU
	if port == 0 {
		port = veth.UsualMTU
	}
	if a.link.MTU <= port {
		return nil
	}
	own, err := a.isOwn(a.args.Host, a.link)
	if !own || err != nil {
		return err
	}
	br, err := a.args.Host.Kernel.Bridge(a.Bridge)
	if err == nil {
		_, err = restoreMTU(a.args.Host, br, port)
	}
	return err
}

// report adds the interfaces to the result. A bridge without a pinned MAC takes
// the MAC of its first port and loses it with the last port. So if the bridge
// had no MAC before, report reads it again.
func (a *addition) report(context.Context) error {
	if !slices.ContainsFunc(a.link.HardwareAddr, func(b byte) bool { return b != 0 }) {
		br, err := a.args.Host.Kernel.Bridge(a.Bridge)
		if err != nil {
			return fmt.Errorf("find the MAC of bridge %q: %w", a.Bridge, err)
		}
		a.link = br
	}
	a.result.Interfaces = []*types100.Interface{
		{Name: a.Bridge, Mac: a.link.HardwareAddr.String()},
		{Name: a.veth.Name, Mac: a.veth.MAC.String(), Mtu: a.veth.MTU},
		{Name: a.args.IfName, Mac: a.veth.PeerMAC.String(), Mtu: a.veth.MTU, Sandbox: a.args.Netns},
	}
	return nil
}

// options are those with which the container's end is configured.
func (b *bridge) options(c *sdk.CmdArgs) veth.Options {
	return veth.Options{DAD: b.EnableDAD, Behind: c.Secondary}
}

// ends returns the ends of the veth of an attachment.
func (b *bridge) ends(c *sdk.CmdArgs, r *types100.Result) *veth.Ends {
	return &veth.Ends{Args: c, Common: &b.Common, Result: r, MTU: b.MTU, Options: b.options(c)}
}

func (a *addition) detach(ctx context.Context) error {
	_, err := a.args.Host.Kernel.DeleteLink(ctx, a.veth.Name)
	return errors.Join(err, veth.DelSourceRules(a.args, a.result))
}

func (a *addition) configure(ctx context.Context) error {
	if err := a.hearRouters(); err != nil {
		return err
	}
	o := a.options(a.args)
	o.NotifyLater = true
	return veth.Configure(ctx, a.sandbox, &a.veth, a.result, o)
}

// hearRouters has the container accept or ignore router advertisements.
func (a *addition) hearRouters() error {
	if a.AcceptRA {
		return veth.AcceptRoutersInside(a.sandbox, a.args.IfName)
	}
	listens, err := a.mayHearRouters(a.args.Host, a.link)
	if err != nil || !listens {
		return err
	}
	return veth.IgnoreRoutersInside(a.sandbox, a.args.IfName)
}

// bringPortUp brings up a port with VLANs, and one without the source guard.
func (a *addition) bringPortUp(context.Context) error {
	if !a.veth.Down {
		return nil
	}
	return veth.BringUp(a.args.Host.Kernel, &a.veth)
}

// bringUp brings up the container's end if there are no addresses.
func (a *addition) bringUp(context.Context) error {
	if a.DisableContainerInterface {
		return nil
	}
	if err := a.hearRouters(); err != nil {
		return err
	}
	return a.sandbox.SetUp(a.veth.PeerIndex)
}

func (a *addition) gateway(ctx context.Context) error {
	key := fmt.Sprintf("gateway %d %d", a.link.Index, a.Vlan)
	for _, ip := range a.result.IPs {
		key += " " + ip.Gateway.String()
	}
	set := func() error {
		_, err := veth.WithIPv6(a.args.Host.Kernel, a.gatewayName(), a.result, func(r *types100.Result) (bool, error) {
			changed, err := a.setGateways(ctx, a.args.Host, a.link, r)
			if err != nil {
				return changed, err
			}
			return changed, a.addRoutes(r)
		})
		return err
	}
	if err := a.args.Host.Cache.Unless(key, set); err != nil {
		return err
	}
	return a.reportVLANInterface()
}

// addRoutes restores the routes to the gateways' networks. That of another program stays, and CHECK reports it.
func (a *addition) addRoutes(r *types100.Result) error {
	var errs []error
	for _, ip := range r.IPs {
		_, err := a.restoreRoute(a.args.Host.Kernel, a.link, ip)
		if errors.Is(err, rtnl.ErrForeignRoute) {
			a.args.Host.Log.Warn("the host does not reach the network", "network", a.Name, "because", err)
			continue
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (a *addition) masquerade(ctx context.Context) error {
	return a.rules.Masquerade.Add(ctx, a.args, a.result)
}

func (a *addition) unmasquerade(ctx context.Context) error {
	return a.rules.Masquerade.Undo(ctx, a.args, a.result)
}

const (
	portTime = 3 * time.Second
	portPoll = 2 * time.Millisecond
	// portPolls is how often the port is asked for in the time that STP takes.
	portPolls = 1000
)

// awaitPort waits until the bridge forwards through the new port, and the host sends through the
// bridge, which has no carrier before its first port. The kernel does both when it has noticed
// that the ends of the veth are up, and with STP some time later. The port is asked for first: its state
// changes that of the bridge.
func (a *addition) awaitPort(ctx context.Context) error {
	if a.DisableContainerInterface {
		return nil
	}
	var until <-chan time.Time
	var delay time.Duration
	for {
		up, err := a.args.Host.Kernel.AreOperational(a.veth.Name, a.Bridge)
		if err != nil {
			return err
		}
		if up {
			return a.setUpPort()
		}
		if until == nil {
			if delay, err = a.args.Host.Kernel.ForwardDelay(a.Bridge); err != nil {
				return err
			}
			until = time.After(portTime + delay)
		}
		select {
		case <-until:
			return a.notForwarding(delay, context.DeadlineExceeded)
		case <-ctx.Done():
			return a.notForwarding(delay, ctx.Err())
		case <-time.After(portPoll + delay/portPolls):
		}
	}
}

// notForwarding is the error that the bridge does not forward through the new port. delay is that of STP.
func (a *addition) notForwarding(delay time.Duration, err error) error {
	if delay == 0 {
		return fmt.Errorf("wait for port %q of bridge %q to come up: %w", a.veth.Name, a.Bridge, err)
	}
	return fmt.Errorf("bridge %q uses STP, and does not forward through port %q yet, which takes %s: shorten it (ip link set dev %[1]s type bridge forward_delay 200), switch STP off (stp_state 0), or use a longer timeout: %[4]w",
		a.Bridge, a.veth.Name, delay, err)
}

// setUpPort sets what can be set of the port when it forwards.
func (a *addition) setUpPort() error {
	host, index := a.args.Host.Kernel, a.link.Index
	if a.IsGateway && len(a.result.IPs) > 0 {
		var err error
		if _, index, err = a.gatewayIndex(host, a.link); err != nil {
			return err
		}
	}
	var changes rtnl.Batch
	changes.DropMulticast(a.veth.Index) // a bridge port does not use IPv6 itself
	for _, ip := range a.result.IPs {
		// The host's neighbour entry may be that of the address's previous holder, for minutes.
		changes.ReplaceNeighbour(index, ip.Address.IP, a.veth.PeerMAC)
	}
	return host.Apply(&changes)
}

// awaitReception waits until the container accepts packets for its addresses.
func (a *addition) awaitReception(ctx context.Context) error {
	if err := a.sandbox.AwaitReception(ctx, a.veth.PeerIndex, veth.IPs(a.result)...); err != nil {
		return err
	}
	return veth.NotifyIPv6(a.sandbox, a.args.IfName, a.result)
}
