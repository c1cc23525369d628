package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/object"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// The source guard is a table of family bridge, whose rules drop all frames of the ports in
// one group that have no element. So a port sends nothing before the chain of plugins has
// ended, when its MAC and its addresses are known.

var errNoGuard = errors.New(`the kernel has no nftables of family bridge (CONFIG_NF_TABLES_BRIDGE), which the source guard needs; use a kernel that has it, or set "sourceGuard": false in the configuration`)

func (b *bridge) guardsSources() bool { return b.SourceGuard == nil || *b.SourceGuard }

// dropsFragments reports whether the source guard drops fragments.
func (b *bridge) dropsFragments() bool { return b.Fragments != nil && !*b.Fragments }

// group returns the group in which the host's end is made.
func (b *bridge) group(c *sdk.CmdArgs) uint32 {
	switch {
	case !b.guardsSources():
		return 0
	case c.DropIn():
		return names.DropInPortGroup
	}
	return c.Pending(c.Owner(b.Name).Veth(), names.GuardedPortGroup)
}

// guard makes the rules before the link exists, and adds the elements after the last plugin
// of the chain. Duplicate address detection needs them earlier.
func (a *addition) guard(ctx context.Context) error {
	if !a.guardsSources() {
		return nil
	}
	err := a.Args.Host.Guard(ctx, ruleset.Bridge)
	if netfilter.IsUnsupported(err) {
		err = fmt.Errorf("%w: %w", errNoGuard, err)
	}
	if err != nil || len(a.veth.PeerMAC) != 6 { // the kernel refuses another length
		return err
	}
	owner := a.Args.Owner(a.Name)
	return a.Args.AddElements(ctx, sdk.Addition{
		Elements: a.guarded(),
		Final: func(r *types100.Result) *ruleset.Elements {
			return &ruleset.Elements{Owner: owner, Ports: a.guardedPorts(a.Args, r)}
		},
		Now: a.EnableDAD && a.Args.Link == nil, // a policy would not be active yet
	})
}

// guarded returns the elements of the port.
func (a *addition) guarded() *ruleset.Elements {
	owner := a.Args.Owner(a.Name)
	return &ruleset.Elements{Owner: owner, Ports: a.portOf(owner, a.veth.PeerMAC, a.Result)}
}

func (a *addition) unguard(ctx context.Context) error {
	if !a.guardsSources() || len(a.veth.PeerMAC) != 6 {
		return nil
	}
	return a.Args.Host.Rules.Del(ctx, a.guarded())
}

// keepAttempts is how often keepGuard adds the elements again.
const keepAttempts = 10

// keepGuard makes sure that the port of a plugin binary, which no record can restore, has its elements after
// the ADD: another program may have removed them since guard. The port is in another group while it
// has none, so that it counts neither as one that has lost them, nor as a complete one.
func (a *addition) keepGuard(ctx context.Context) error {
	if !a.guardsSources() || !a.Args.DropIn() || len(a.veth.PeerMAC) != 6 {
		return nil
	}
	elements, kernel := a.guarded(), a.Args.Host.Kernel
	for range keepAttempts {
		complete, err := a.Args.Host.Rules.HasMAC(ctx, &elements.Ports[0])
		if complete || err != nil {
			return err
		}
		if err := kernel.SetGroup(a.veth.Name, names.PendingPortGroup); err != nil {
			return err
		}
		if err := a.Args.Host.Rules.Add(ctx, elements); err != nil {
			return err
		}
		if err := kernel.SetGroup(a.veth.Name, names.DropInPortGroup); err != nil {
			return err
		}
	}
	return errors.New("another program keeps removing the rules of the source guard; try again when it has ended")
}

// guardedPorts returns the port of an attachment with what it may send according to its
// result: nothing if that does not have the MAC of the interface.
func (b *bridge) guardedPorts(c *sdk.CmdArgs, r *types100.Result) []ruleset.BridgePort {
	if r == nil || sdk.AddedByReference(c, b.Name, r) {
		return nil
	}
	if mac, ok := containerMAC(c, r); ok {
		return b.portOf(c.Owner(b.Name), mac, r)
	}
	return nil
}

// containerMAC returns the MAC of the container's end according to a result.
func containerMAC(c *sdk.CmdArgs, r *types100.Result) (_ net.HardwareAddr, ok bool) {
	for _, itf := range r.Interfaces {
		if itf.Name != c.IfName || itf.Sandbox == "" {
			continue
		}
		if mac, err := net.ParseMAC(itf.Mac); err == nil && len(mac) == 6 {
			return mac, true
		}
	}
	return nil, false
}

// portOf returns the port for a MAC and the addresses of a result. Without addresses, those of the
// container are not known.
func (b *bridge) portOf(owner names.Owner, mac net.HardwareAddr, r *types100.Result) []ruleset.BridgePort {
	p := ruleset.BridgePort{Name: owner.Veth(), MAC: mac, Addresses: sdk.Addresses(r), Unaddressed: len(r.IPs) == 0, Tagged: len(b.vlans) > 0, Unfragmented: b.dropsFragments()}
	p.Autoconfigured = b.AcceptRA
	if !p.Unaddressed {
		addr, _ := netip.AddrFromSlice(object.LinkLocal(mac))
		p.Addresses = append(p.Addresses, addr)
	}
	return []ruleset.BridgePort{p}
}

// closesWithoutElements reports whether the source guard drops what comes from the port of an
// attachment, and what is sent to its MAC, as soon as the port has no elements. To take a link down
// takes longer: the kernel walks the forwarding table of the bridge, and waits for RCU, while it holds
// its configuration lock.
func (b *bridge) closesWithoutElements(ctx context.Context, c *sdk.CmdArgs) (bool, error) {
	if !b.guardsSources() {
		return false, nil
	}
	if err := c.Host.Guard(ctx, ruleset.Bridge); err != nil {
		return false, err
	}
	return c.Host.Kernel.IsInGroup(c.Owner(b.Name).Veth(), names.GuardedPortGroup), nil
}

// takesNoRouters reports whether the source guard drops what a container sends from addresses of router
// advertisements.
func (b *bridge) takesNoRouters() bool {
	return b.guardsSources() && b.IPAM != "" && !b.DisableContainerInterface && !b.AcceptRA
}

// mayHearRouters reports whether router advertisements may reach a container whose source guard drops what it would send
// from their addresses: on a bridge of the host, or one without the host's address. On others, there are allocations only,
// whose advertisements the guard drops.
func (b *bridge) mayHearRouters(host *sdk.Host, br *rtnl.LinkState) (bool, error) {
	if !b.takesNoRouters() {
		return false, nil
	}
	own, err := host.Bridges.Created(b.Bridge, br.Index)
	return !own || !b.IsGateway, err
}
