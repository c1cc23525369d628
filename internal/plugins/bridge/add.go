package bridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/object"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/veth"
)

// addition is the state of one ADD.
type addition struct {
	*attachment
	sandbox *rtnl.Sandbox
	host    *object.View
	link    *rtnl.LinkState // of the bridge
	veth    rtnl.Veth
	lastUse []time.Time // of the addresses; empty if the IPAM plugin does not know it
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
	a := &addition{attachment: b.attachment(c, nil), veth: rtnl.Veth{
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
	return a.Result, nil
}

func (a *addition) steps() []sdk.Step {
	bridge := sdk.Step{Name: "set up the bridge", Do: a.ensureBridge}
	guard := sdk.Step{Name: "MAC spoof check", Do: a.guardMAC, Undo: a.unguardMAC}
	sources := sdk.Step{Name: "source guard", Do: a.guard, Undo: a.unguard} // before the container can send
	tag := sdk.Step{Name: "VLANs", Do: a.tag}
	up := sdk.Step{Name: "bring up " + a.veth.Name, Do: a.bringPortUp}
	attach := sdk.Step{Name: "attach interface " + a.Args.IfName, Do: a.attach, Undo: a.detach}
	report := sdk.Step{Name: "interfaces", Do: a.report}
	forwards := sdk.Step{Name: "bridge port", Do: a.awaitPort}
	guarded := sdk.Step{Name: "source guard", Do: a.keepGuard}
	if a.IPAM == "" {
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
		{Name: "configure interface " + a.Args.IfName, Do: a.configure},
		{Name: "gateway", Do: a.setGateways},
		{Name: "masquerade", Do: a.masquerade, Undo: a.unmasquerade},
		forwards,
		{Name: "reception", Do: a.awaitReception},
		guarded,
		{Name: "announce the addresses", Do: a.announce},
	}
}

// ensureBridge finds the bridge, or creates it.
func (a *addition) ensureBridge(ctx context.Context) error {
	if err := a.Args.Host.Bridges.Begin(); err != nil {
		return err
	}
	a.host = a.Args.Host.View()
	_, err := a.host.Link(a.Bridge)
	exists := err == nil
	if exists && a.filters() {
		if err := a.requireFiltering(a.Args.Host.Kernel); err != nil {
			return err
		}
	}
	_, err = object.Restore(ctx, a.host, &object.Bridge{
		Name: a.Bridge, NewMTU: a.config.MTU, Promiscuous: a.PromiscMode, Resolves: a.IsGateway && a.Vlan == 0, Filters: a.filters(), Added: true,
	})
	if err == nil {
		a.link, err = a.host.Link(a.Bridge)
	}
	if err == nil && a.filters() && !exists { // another process may have made it
		err = a.requireFiltering(a.Args.Host.Kernel)
	}
	if err != nil {
		return err
	}
	a.veth.Master = a.link.Index
	a.Result = &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	return nil
}

func (a *addition) allocate(ctx context.Context) error {
	a.Args.LastUse = &a.lastUse
	// A bridge without the host's address may have addresses that others have elsewhere.
	r, err := a.IPAM.Allocate(ctx, a.Args, a.Name, a.IsGateway || a.IPMasq)
	if err != nil {
		return err
	}
	a.Result.IPs, a.Result.Routes, a.Result.DNS = r.IPs, r.Routes, r.DNS
	a.route(a.Result)
	err = veth.DistinctRoutes(a.Result)
	if err == nil {
		a.Result.DNS, err = veth.DNS(&a.config.Common, r.DNS)
	}
	if err != nil {
		return errors.Join(err, a.release(ctx))
	}
	return nil
}

func (a *addition) release(ctx context.Context) error { return a.IPAM.Release(ctx, a.Args) }

// attach creates the veth, and restores the MTU of the bridge if that was larger than the port's, and the kernel has not
// lowered it, because another program has set it.
func (a *addition) attach(ctx context.Context) (err error) {
	if a.veth.MTU, err = veth.MTU(a.Args.Host.Kernel, a.config.MTU, a.Result); err != nil {
		return err
	}
	if err := a.Args.Host.Kernel.CreateVeth(&a.veth, a.sandbox); err != nil {
		return err
	}
	port := cmp.Or(a.veth.MTU, object.UsualMTU)
	if a.link.MTU > port {
		_, err = object.Restore(ctx, a.Args.Host.View(), &object.BridgeMTU{Bridge: a.Bridge, Port: port})
	}
	if err != nil {
		return errors.Join(err, a.detach(ctx))
	}
	return nil
}

// report adds the interfaces to the result. A bridge without a pinned MAC takes
// the MAC of its first port and loses it with the last port. So if the bridge
// had no MAC before, report reads it again.
func (a *addition) report(context.Context) error {
	if !slices.ContainsFunc(a.link.MAC, func(b byte) bool { return b != 0 }) {
		br, err := a.Args.Host.Kernel.LinkState(a.Bridge)
		if err != nil {
			return fmt.Errorf("find the MAC of bridge %q: %w", a.Bridge, err)
		}
		a.link = br
	}
	a.Result.Interfaces = []*types100.Interface{
		{Name: a.Bridge, Mac: a.link.MAC.String()},
		{Name: a.veth.Name, Mac: a.veth.MAC.String(), Mtu: a.veth.MTU},
		{Name: a.Args.IfName, Mac: a.veth.PeerMAC.String(), Mtu: a.veth.MTU, Sandbox: a.Args.Netns},
	}
	return nil
}

func (a *addition) detach(ctx context.Context) error {
	_, err := a.Args.Host.Kernel.DeleteLink(ctx, a.veth.Name)
	return errors.Join(err, veth.DelSourceRules(a.Args, a.Result))
}

func (a *addition) configure(ctx context.Context) error {
	routers, err := a.routers()
	if err != nil {
		return err
	}
	a.NotifyLater = true
	return a.Configure(ctx, a.sandbox, &a.veth, routers...)
}

// routers returns that the container accepts or ignores router advertisements.
func (a *addition) routers() ([]object.Object, error) {
	if a.AcceptRA {
		return []object.Object{&object.AcceptsRouters{Link: a.Args.IfName}}, nil
	}
	hears, err := a.mayHearRouters(a.Args.Host, a.link)
	if err != nil || !hears {
		return nil, err
	}
	return []object.Object{&object.IgnoresRouters{Link: a.Args.IfName}}, nil
}

// bringPortUp brings up a port with VLANs, and one without the source guard.
func (a *addition) bringPortUp(ctx context.Context) error {
	if !a.veth.Down {
		return nil
	}
	host := a.Args.Host.View()
	host.Made(&rtnl.LinkState{Name: a.veth.Name, Index: a.veth.Index})
	return veth.BringUp(ctx, host, a.veth.Name)
}

// bringUp brings up the container's end if there are no addresses.
func (a *addition) bringUp(ctx context.Context) error {
	if a.DisableContainerInterface {
		return nil
	}
	routers, err := a.routers()
	if err != nil {
		return err
	}
	up := &object.Up{Link: a.Args.IfName, Notifies: true}
	return object.Make(ctx, veth.MadeInside(a.sandbox, &a.veth), append(routers, up)...)
}

// setGateways makes the bridge the gateway of the addresses. A route of another program to a network stays, and CHECK reports
// it.
func (a *addition) setGateways(ctx context.Context) error {
	key := fmt.Sprintf("gateway %d %d", a.link.Index, a.Vlan)
	for _, ip := range a.Result.IPs {
		key += " " + ip.Gateway.String()
	}
	if a.Vlan == 0 {
		a.pin = a.link.MAC
	}
	err := a.Args.Host.Cache.Unless(key, func() error {
		if _, err := object.Restore(ctx, a.host, a.gateway()...); err != nil {
			return err
		}
		var errs []error
		for _, route := range a.routesToNetworks() {
			_, err := object.Restore(ctx, a.host, route)
			if errors.Is(err, rtnl.ErrForeignRoute) {
				a.Args.Host.Log.Warn("the host does not reach the network", "network", a.Name, "because", err)
				err = nil
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	return a.reportVLANInterface()
}

func (a *addition) masquerade(ctx context.Context) error {
	return a.Rules.Masquerade.Add(ctx, a.Args, a.Result)
}

func (a *addition) unmasquerade(ctx context.Context) error {
	return a.Rules.Masquerade.Undo(ctx, a.Args, a.Result)
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
		up, err := a.Args.Host.Kernel.AreOperational(a.veth.Name, a.Bridge)
		if err != nil {
			return err
		}
		if up {
			return a.setUpPort()
		}
		if until == nil {
			if delay, err = a.Args.Host.Kernel.ForwardDelay(a.Bridge); err != nil {
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
	host, index := a.Args.Host.Kernel, a.link.Index
	if a.IsGateway && len(a.Result.IPs) > 0 {
		var err error
		if _, index, err = a.gatewayIndex(host, a.link.Index); err != nil {
			return err
		}
	}
	var changes rtnl.Batch
	changes.DropMulticast(a.veth.Index) // a bridge port does not use IPv6 itself
	for _, ip := range a.Result.IPs {
		// The host's neighbour entry may be that of the address's previous holder, for minutes.
		changes.ReplaceNeighbour(index, ip.Address.IP, a.veth.PeerMAC)
	}
	return host.Apply(&changes)
}

// awaitReception waits until the container accepts packets for its addresses.
func (a *addition) awaitReception(ctx context.Context) error {
	if err := a.sandbox.AwaitReception(ctx, a.veth.PeerIndex, veth.IPs(a.Result)...); err != nil {
		return err
	}
	return veth.NotifyIPv6(a.sandbox, a.Args.IfName, a.Result)
}
