package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// Bridge is a bridge of the host. One that no ADD has created is its administrator's, and is not changed.
type Bridge struct {
	Name string
	// Pinned: it keeps the MAC, which is nil for one that is not made yet. Otherwise a bridge has that of one of its ports.
	Pinned bool
	MAC    net.HardwareAddr
	// MTU is that of a port; 0 if it is not known. The kernel gives a bridge the smallest one of its ports until another program
	// sets one. With a larger one, packets of the host are lost that are too large for a port.
	MTU int
	// NewMTU is that of one that is made; 0 for the kernel's default.
	NewMTU      int
	Promiscuous bool
	// Resolves: the host finds out the MACs of its neighbours on the bridge. Answers: it answers them.
	Resolves, Answers bool
	// Filters: one that is made filters VLANs.
	Filters bool
	// Added: for ADD, a bridge of the host counts as created, but keeps MAC and MTU.
	Added bool
}

// Compare implements Object.
func (b *Bridge) Compare(ctx context.Context, v *View) (list []Difference, err error) {
	have, err := v.link(b.Name)
	if err != nil {
		return nil, fmt.Errorf("find bridge %q: %w", b.Name, err)
	}
	if have == nil {
		return b.compareMissing(v)
	}
	if have.Kind != "bridge" {
		return nil, fmt.Errorf("%q %w", b.Name, errNotBridge)
	}
	own := b.Added
	if !own {
		if own, err = v.Bridges.Created(b.Name, have.Index); err != nil {
			return nil, err
		}
	}
	differs := func(put func(*rtnl.Batch), what, command string) {
		d := Difference{Finding: fmt.Errorf("bridge %q %s", b.Name, what), Put: put}
		if !own {
			d = Difference{Finding: fmt.Errorf("bridge %q %s, and no allocation has created it: ip link set %s %s", b.Name, what, b.Name, command)}
		}
		list = append(list, d)
	}
	if !have.Up {
		differs(func(x *rtnl.Batch) { x.BringUp(have.Index) }, "is down", "up")
	}
	if b.Resolves && have.NoARP {
		differs(func(x *rtnl.Batch) { x.EnableARP(have.Index) }, "has ARP switched off", "arp on")
	}
	if b.Promiscuous != have.Promiscuous && (b.Promiscuous || !b.Added) {
		what := "is in promiscuous mode"
		if b.Promiscuous {
			what = "is not in promiscuous mode"
		}
		differs(func(x *rtnl.Batch) { x.SetPromiscuous(have.Index, b.Promiscuous) }, what, "promisc "+onOff(b.Promiscuous))
	}
	if b.Answers {
		answers := []Object{&AnswersARP{Link: b.Name, InSubnet: true}}
		if !own {
			answers = Required(answers...)
		}
		silent, err := answers[0].Compare(ctx, v)
		if list = append(list, silent...); err != nil {
			return list, err
		}
	}
	if b.Added || !own {
		return list, nil
	}
	some, err := b.compareOwn(v, have)
	return append(list, some...), err
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// compareOwn compares what is that of its administrator on other bridges.
func (b *Bridge) compareOwn(v *View, have *rtnl.LinkState) (list []Difference, err error) {
	pinned := b.Pinned && len(b.MAC) > 0 && !bytes.Equal(b.MAC, have.MAC)
	sized := b.MTU != 0 && b.MTU != have.MTU
	if pinned {
		list = append(list, Difference{
			Finding: fmt.Errorf("bridge %q has the MAC %s, not %s", b.Name, have.MAC, b.MAC),
			Put:     func(x *rtnl.Batch) { x.SetMAC(have.Index, b.MAC) },
		})
	}
	if !sized {
		return list, nil
	}
	// Only now the kernel walks all links for the ports.
	smallest := 0
	err = v.Once(fmt.Sprintf("MTU %d of bridge %d", have.MTU, have.Index), func() (err error) {
		smallest, err = v.Kernel.SmallestPortMTU(have.Index)
		if err == nil && smallest != 0 && smallest != have.MTU {
			err = errAnotherMTU
		}
		return err
	})
	if errors.Is(err, errAnotherMTU) {
		err = nil
		list = append(list, Difference{
			Finding: fmt.Errorf("bridge %q has the MTU %d, not the smallest one of its ports, %d", b.Name, have.MTU, smallest),
			Put:     func(x *rtnl.Batch) { x.SetMTU(have.Index, smallest) },
			Settle:  func(context.Context) error { b.setSysctls(); return nil },
		})
	}
	return list, err
}

var errNotBridge = errors.New("already exists but is not a bridge")

var errAnotherMTU = errors.New("another MTU")

// compareMissing tells that the bridge is missing. It is made again, or gets its name again, if an ADD has created it.
func (b *Bridge) compareMissing(v *View) ([]Difference, error) {
	own, err := v.Bridges.Created(b.Name, 0)
	if err == nil && !own && !b.Added {
		v.missing[b.Name] = true
		return []Difference{{Finding: fmt.Errorf("bridge %q is missing, and no allocation has created it: create it again", b.Name)}}, nil
	}
	if err != nil {
		return nil, err
	}
	if now, err := b.renamed(v); err != nil || now != 0 {
		return []Difference{{Finding: v.lost(b.Name), Put: func(x *rtnl.Batch) { x.SetName(now, b.Name) }}}, err
	}
	return []Difference{{Finding: v.lost(b.Name), Do: func() error { return b.create(v) }}}, nil
}

// renamed returns the index of a bridge that an ADD has created under another name; 0 if there is none. The MAC
// that ADD has pinned shows that the interface with the recorded index is still the same.
func (b *Bridge) renamed(v *View) (int, error) {
	if b.Added || !b.Pinned || len(b.MAC) == 0 {
		return 0, nil
	}
	index, err := v.Bridges.Index(b.Name)
	if err != nil || index == 0 {
		return 0, err
	}
	link, err := v.Kernel.LinkStateAt(index)
	if rtnl.IsNotFound(err) {
		return 0, nil
	}
	if err != nil || link.Kind != "bridge" || !bytes.Equal(link.MAC, b.MAC) {
		return 0, err
	}
	return index, nil
}

// ErrNoFiltering: the kernel has no VLAN filtering.
var ErrNoFiltering = errors.New("the kernel has no VLAN filtering of bridges (CONFIG_BRIDGE_VLAN_FILTERING); use a kernel that has it, or remove vlan and vlanTrunk from the configuration")

// create creates the bridge. If another process creates it at the same time, that bridge is it.
func (b *Bridge) create(v *View) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = b.Name, b.NewMTU, b.MAC
	if len(b.MAC) == 0 {
		attrs.HardwareAddr = rtnl.RandomMAC()
	}
	wanted := &netlink.Bridge{LinkAttrs: attrs}
	if b.Filters {
		wanted.VlanFiltering = &b.Filters
	}
	ctx := context.Background()
	return v.Bridges.Create(ctx, b.Name, func() (made int, err error) {
		err = v.Kernel.LinkAdd(wanted)
		exists := errors.Is(err, unix.EEXIST)
		if b.Filters && errors.Is(err, unix.EOPNOTSUPP) {
			err = ErrNoFiltering
		}
		if err != nil && !exists {
			return 0, fmt.Errorf("create bridge %q: %w", b.Name, err)
		}
		v.Forget() // what is known of an earlier bridge of that name
		if exists {
			return 0, nil
		}
		b.setSysctls()
		return v.Kernel.Index(b.Name)
	}, func() error {
		_, err := v.Kernel.DeleteLink(ctx, b.Name)
		return err
	})
}

// setSysctls sets the sysctls of a bridge, which the kernel forgets when it disables IPv6 because of the MTU. The bridge
// accepts no router advertisements, because the host configures its routes. It skips duplicate address detection, which
// would delay IPv6 by two seconds, because its addresses are unique. Both calls fail without IPv6.
func (b *Bridge) setSysctls() {
	_ = rtnl.SetSysctl("net/ipv6/conf/"+b.Name+"/accept_ra", "0")
	_ = rtnl.SetSysctl("net/ipv6/conf/"+b.Name+"/accept_dad", "0")
}

// BridgePort is that a link is a port of a bridge. A port that is isolated, or in hairpin mode, although it is not to be, may be
// wanted by the administrator.
type BridgePort struct {
	Link, Bridge      string
	Hairpin, Isolated bool
	// Guarded: it is in a group for which the source guard of bridges has rules, and all of its frames pass these.
	Guarded bool
	// Tagged: it has VLANs, without which it is neither attached again nor brought up.
	Tagged bool
}

// Compare implements Object.
func (p *BridgePort) Compare(_ context.Context, v *View) (list []Difference, err error) {
	have, err := v.link(p.Link)
	if err != nil || have == nil {
		return nil, err
	}
	bridge, ok, err := v.present(p.Bridge)
	if err != nil || !ok {
		return nil, err
	}
	index := have.Index
	differs := func(put func(*rtnl.Batch), format string, args ...any) {
		list = append(list, Difference{Finding: fmt.Errorf(format, args...), Put: put})
	}
	attached := have.Master == bridge
	if !attached {
		put := func(b *rtnl.Batch) { b.AttachPort(index, bridge, p.Hairpin, p.Isolated) }
		if p.Tagged {
			put = nil
		}
		differs(put, "interface %q is not a port of the bridge", p.Link)
	}
	if p.Guarded {
		list = append(list, p.compareGuard(have, attached)...)
	}
	if attached {
		settings, err := p.compareSettings(v, have)
		return append(list, settings...), err
	}
	return list, nil
}

func (p *BridgePort) compareGuard(have *rtnl.LinkState, attached bool) (list []Difference) {
	differs := func(put func(*rtnl.Batch), format string, args ...any) {
		list = append(list, Difference{Finding: fmt.Errorf(format, args...), Put: put})
	}
	guard := func(b *rtnl.Batch) { b.SetGroup(have.Index, names.GuardedPortGroup) }
	switch {
	case have.Group == names.ReleasedPortGroup:
		differs(guard, "the source guard of port %q has ended, because another program removed its rules: frames from the container may have any source until the attachment is removed and added again, as by a restart of the container", p.Link)
	case !names.IsGuardedPort(have.Group):
		differs(guard, "port %q is in group %d instead of %d, so frames from the container may have any source", p.Link, have.Group, names.GuardedPortGroup)
	}
	if !have.Hooked || !attached {
		differs(func(b *rtnl.Batch) { b.HookPort(have.Index) },
			"port %q does not have the group_fwd_mask of the source guard, so frames to some multicast addresses may have any source", p.Link)
	}
	return list
}

// compareSettings tells of settings with which frames do not pass, or go astray. The state of a port of a bridge with STP is
// that of STP.
func (p *BridgePort) compareSettings(v *View, have *rtnl.LinkState) (list []Difference, err error) {
	wrong := ""
	switch {
	case have.Disabled:
		wrong = "is disabled in the bridge"
	case p.Hairpin && !have.Hairpin:
		wrong = "is not in hairpin mode"
	case p.Isolated && !have.Isolated:
		wrong = "is not isolated"
	case len(have.Unusual) > 0:
		wrong = "has " + strings.Join(have.Unusual, ", ")
	default:
		return nil, nil
	}
	restored := *have
	if have.Disabled {
		delay, err := v.Kernel.ForwardDelay(p.Bridge)
		if err != nil {
			return nil, err
		}
		restored.Disabled = delay == 0
	}
	d := Difference{Finding: fmt.Errorf("port %q of bridge %q %s", p.Link, p.Bridge, wrong)}
	if restored.Disabled || p.Hairpin && !have.Hairpin || p.Isolated && !have.Isolated || len(have.Unusual) > 0 {
		d.Put = func(b *rtnl.Batch) { b.RestorePort(&restored, p.Hairpin, p.Isolated) }
	}
	return []Difference{d}, nil
}

// LinkLocalAddress is that a link of the host has a link-local address, without which the host forwards no packet to an IPv6
// address whose MAC it has to look up. The kernel adds one some time after the link has come up, and looks for duplicates of
// it for up to two seconds.
type LinkLocalAddress struct{ Link string }

// Compare implements Object.
func (l *LinkLocalAddress) Compare(_ context.Context, v *View) ([]Difference, error) {
	link, err := v.link(l.Link)
	if err != nil || link == nil || len(link.MAC) != 6 {
		return nil, err
	}
	have, err := v.netns.Addresses(link.Index)
	if err != nil {
		return nil, err
	}
	want := Address{IPNet: &net.IPNet{IP: LinkLocal(link.MAC), Mask: net.CIDRMask(64, 128)}, Flags: rtnl.NoDAD, AnyPrefix: true}
	isLocal := func(a netlink.Addr) bool { return a.IP.To4() == nil && a.IP.IsLinkLocalUnicast() }
	if i := slices.IndexFunc(have, isLocal); i >= 0 && have[i].Flags&unix.IFA_F_TENTATIVE == 0 {
		return nil, nil
	} else if i >= 0 && !have[i].IP.Equal(want.IP) {
		return nil, nil // the administrator's
	}
	d := Difference{Put: want.put(link.Index, have)}
	if !slices.ContainsFunc(have, isLocal) {
		d.Finding = fmt.Errorf("interface %q has no link-local address", l.Link)
	}
	if SmallMTU(link) != nil || link.NoIPv6 {
		d.Put = nil
	}
	return []Difference{d}, nil
}

// LinkLocal returns the address from which the host sends neighbour discovery
// over a link with a MAC (RFC 4291, appendix A).
func LinkLocal(mac net.HardwareAddr) net.IP {
	return net.IP{0xfe, 0x80, 0, 0, 0, 0, 0, 0, mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]}
}

// NetworkRoute is the route of the host to the network of an address over a bridge, as the kernel makes it with the gateway's
// address.
type NetworkRoute struct {
	Link    string
	Address *net.IPNet
	Gateway net.IP
}

// kernelMetric is the metric of the routes that the kernel makes for IPv6 addresses.
const kernelMetric = 256

// Connected returns the route to a network as the kernel makes it for a link with an address in it.
func Connected(network *net.IPNet, address net.IP) *rtnl.Route {
	route := &rtnl.Route{
		Dst: &net.IPNet{IP: network.IP.Mask(network.Mask), Mask: network.Mask}, Priority: kernelMetric, Protocol: unix.RTPROT_KERNEL,
	}
	if address.To4() != nil {
		route.Priority, route.Scope, route.Src = 0, unix.RT_SCOPE_LINK, address
	}
	return route
}

// Compare tells of a route of another program in its place, or to the address alone, which stays. A bridge that belongs to a
// VRF has its routes in the table of that.
func (n *NetworkRoute) Compare(_ context.Context, v *View) ([]Difference, error) {
	link, err := v.link(n.Link)
	if err != nil || link == nil || link.Master != 0 || v.Kernel.Reaches(link.Index, n.Address) {
		return nil, err
	}
	route := Connected(n.Address, n.Gateway)
	route.Index = link.Index
	foreign := v.Kernel.ForeignAddressRoute(link.Index, n.Address.IP)
	if foreign == nil {
		foreign = v.Kernel.ForeignRoute(route)
	}
	if foreign != nil {
		return []Difference{{Finding: fmt.Errorf("the host has no route to %s over %q: %w", n.Address.IP, n.Link, foreign)}}, nil
	}
	if has, err := v.Kernel.HasRoute(link.Index, n.Address); err != nil || has {
		return nil, err
	}
	d := Difference{Finding: fmt.Errorf("the host has no route to %s over %q", route.Dst, n.Link)}
	if n.Gateway.To4() != nil || SmallMTU(link) == nil && !link.NoIPv6 {
		d.Put = func(b *rtnl.Batch) { b.TryRoute(route, new(bool)) }
	}
	return []Difference{d}, nil
}
