package ptp

import (
	"context"
	"errors"
	"fmt"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/object"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/veth"
)

// addition is the state of one ADD.
type addition struct {
	*attachment
	host    *object.View // with the link
	sandbox *rtnl.Sandbox
	veth    rtnl.Veth
}

// Add implements sdk.Plugin. The reference plugin has no capability mac.
func (p *ptp) Add(ctx context.Context, c *sdk.CmdArgs) (*types100.Result, error) {
	if p.IPAM == "" {
		return nil, errNoIPAM
	}
	mac, err := veth.MAC(&p.Common, "")
	if err != nil {
		return nil, err
	}
	owner := c.Owner(p.Name)
	a := &addition{attachment: p.attachment(c, nil), veth: rtnl.Veth{
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
	return a.Result, nil
}

// allocate reserves addresses and completes the result. It fails for an address
// without a gateway, because the plugin routes through gateways.
func (a *addition) allocate(ctx context.Context) error {
	r, err := a.IPAM.Allocate(ctx, a.Args, a.Name, true)
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
	if a.veth.MTU, err = veth.MTU(a.Args.Host.Kernel, a.config.MTU, r); err != nil {
		return err
	}
	a.Result = &types100.Result{
		CNIVersion: types100.ImplementedSpecVersion, IPs: r.IPs, Routes: r.Routes,
		Interfaces: []*types100.Interface{
			{Name: a.veth.Name, Mac: a.veth.MAC.String(), Mtu: a.veth.MTU},
			{Name: a.veth.PeerName, Mac: a.veth.PeerMAC.String(), Mtu: a.veth.MTU, Sandbox: a.Args.Netns},
		},
	}
	a.Result.DNS, err = veth.DNS(&a.config.Common, r.DNS)
	return err
}

func (a *addition) release(ctx context.Context) error { return a.IPAM.Release(ctx, a.Args) }

func (a *addition) guard(ctx context.Context) error {
	if !a.guardsSources() {
		return nil
	}
	return a.Args.Host.Guard(ctx, GuardedFamilies()...)
}

// dropFragments adds the element before the link exists.
func (a *addition) dropFragments(ctx context.Context) error {
	if !a.dropsFragments() {
		return nil
	}
	return a.Args.AddElements(ctx, sdk.Addition{Elements: a.unfragmented(), Now: true})
}

func (a *addition) passFragments(ctx context.Context) error {
	if !a.dropsFragments() {
		return nil
	}
	return a.Args.Host.Rules.Del(ctx, a.unfragmented())
}

func (a *addition) unfragmented() *ruleset.Elements {
	return &ruleset.Elements{Owner: a.Args.Owner(a.Name), Unfragmented: []string{a.veth.Name}}
}

// attach makes the link. If a later plugin needs it, and the guard is there, the link has
// route_localnet from the beginning: to set it later takes another request.
func (a *addition) attach(context.Context) error {
	additions := a.Args.Additions
	a.veth.Forward = slices.ContainsFunc(a.Result.IPs, func(ip *types100.IPConfig) bool { return ip.Address.IP.To4() != nil })
	a.veth.RouteLoopback = additions != nil && additions.RoutesLoopback && a.guardsSources() && a.veth.Forward
	if err := a.Args.Host.Kernel.CreateVeth(&a.veth, a.sandbox); err != nil {
		return err
	}
	if a.veth.RouteLoopback {
		additions.LoopbackRouted = a.veth.Name
	}
	a.host = a.Args.Host.View()
	a.host.Made(&rtnl.LinkState{Name: a.veth.Name, Index: a.veth.Index})
	return nil
}

// bringUp brings up a link without the source guard.
func (a *addition) bringUp(ctx context.Context) error {
	if !a.veth.Down {
		return nil
	}
	return veth.BringUp(ctx, a.host, a.veth.Name)
}

func (a *addition) detach(ctx context.Context) error {
	_, err := a.Args.Host.Kernel.DeleteLink(ctx, a.veth.Name)
	return errors.Join(err, veth.DelSourceRules(a.Args, a.Result))
}

func (a *addition) configure(ctx context.Context) error { return a.Configure(ctx, a.sandbox, &a.veth) }

// configureHost makes the host's end the gateway of each address, and adds a
// route to it.
func (a *addition) configureHost(ctx context.Context) error {
	err := object.Make(ctx, a.host, a.made()...)
	if errors.Is(err, unix.EACCES) { // the host switches IPv6 off for new links
		_, err = object.Restore(ctx, a.Args.Host.View(), a.reach()...)
	}
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%w: the host has another route to an address of the container (ip route show table main): %w", allocnet.ErrAddressUnavailable, err)
	}
	if err != nil {
		return err
	}
	return veth.Forward(a.Args.Host, a.Result)
}

// awaitReception waits until both ends accept packets for their addresses.
func (a *addition) awaitReception(ctx context.Context) error {
	return errors.Join(
		a.hostAddresses().Await(ctx, a.host),
		a.sandbox.AwaitReception(ctx, a.veth.PeerIndex, veth.IPs(a.Result)...),
	)
}

func (a *addition) masquerade(ctx context.Context) error {
	return a.Rules.Masquerade.Add(ctx, a.Args, a.Result)
}
