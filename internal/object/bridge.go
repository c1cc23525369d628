package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// Bridge is a bridge of the host. One that no ADD has created is its administrator's, and is not changed.
type Bridge struct {
	Name string
	// Pinned: it keeps the MAC, which is nil for one that is not made yet. Otherwise a bridge has that of one of its ports.
	Pinned bool
	MAC    net.HardwareAddr
	// NewMTU is that of one that is made; 0 for the kernel's default.
	NewMTU      int
	Promiscuous bool
	// Resolves: the host finds out the MACs of its neighbours on the bridge. Answers: it answers them.
	Resolves, Answers bool
	// Filters: one that is made filters VLANs.
	Filters bool
	// Added: for ADD, a bridge of the host counts as created, but keeps its MAC.
	Added bool
}

// Compare implements Object.
func (b *Bridge) Compare(ctx context.Context, v *View) (list []Difference, err error) {
	have, err := v.link(b.Name)
	if err != nil {
		return nil, fmt.Errorf("find bridge %q: %w", b.Name, err)
	}
	if have == nil {
		return b.compareMissing(ctx, v)
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
	differs := func(put func(*rtnl.Batch), what, command string) *Difference {
		d := Difference{Finding: fmt.Errorf("bridge %q %s", b.Name, what), Put: put, Blocks: true}
		if !own {
			d = Difference{Finding: fmt.Errorf("bridge %q %s, and no allocation has created it: ip link set %s %s", b.Name, what, b.Name, command), Blocks: true}
		}
		list = append(list, d)
		return &list[len(list)-1]
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
		d := differs(func(x *rtnl.Batch) { x.SetPromiscuous(have.Index, b.Promiscuous) }, what, "promisc "+onOff(b.Promiscuous))
		d.Blocks, d.Harmless = false, true
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
	if !b.Added && own && b.Pinned && len(b.MAC) > 0 && !bytes.Equal(b.MAC, have.MAC) {
		differs(func(x *rtnl.Batch) { x.SetMAC(have.Index, b.MAC) }, fmt.Sprintf("has the MAC %s, not %s", have.MAC, b.MAC), "")
	}
	return list, nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

var errNotBridge = errors.New("already exists but is not a bridge")

// BridgeMTU is the MTU of a bridge that an ADD has created. The kernel gives a bridge the smallest one of its ports until another
// program sets one. With a larger one, packets of the host are lost that are too large for a port.
type BridgeMTU struct {
	Bridge string
	Port   int // the MTU of a port; 0 if it is not known
}

// Compare implements Object. Only if the bridge has another MTU than the port, the kernel walks all links for its ports.
func (m *BridgeMTU) Compare(_ context.Context, v *View) (list []Difference, err error) {
	have, err := v.link(m.Bridge)
	if err != nil || have == nil || m.Port == 0 || m.Port == have.MTU {
		return nil, err
	}
	if own, err := v.Bridges.Created(m.Bridge, have.Index); err != nil || !own {
		return nil, err
	}
	smallest := 0
	err = v.Once(fmt.Sprintf("MTU %d of bridge %d", have.MTU, have.Index), func() (err error) {
		smallest, err = v.Kernel.SmallestPortMTU(have.Index)
		if err == nil && smallest != 0 && smallest != have.MTU {
			err = errAnotherMTU
		}
		return err
	})
	if !errors.Is(err, errAnotherMTU) {
		return nil, err
	}
	return []Difference{{
		Finding: fmt.Errorf("bridge %q has the MTU %d, not the smallest one of its ports, %d", m.Bridge, have.MTU, smallest),
		Put:     func(x *rtnl.Batch) { x.SetMTU(have.Index, smallest) },
		Settle:  func(context.Context) error { setBridgeSysctls(m.Bridge); return nil },
	}}, nil
}

var errAnotherMTU = errors.New("another MTU")

// compareMissing tells that the bridge is missing. It is made again, or gets its name again, if an ADD has created it.
func (b *Bridge) compareMissing(ctx context.Context, v *View) ([]Difference, error) {
	if !b.Added {
		own, err := v.Bridges.Created(b.Name, 0)
		if err != nil {
			return nil, err
		}
		if !own {
			v.missing[b.Name] = true
			return []Difference{{Finding: fmt.Errorf("bridge %q is missing, and no allocation has created it: create it again", b.Name), Blocks: true}}, nil
		}
	}
	if now, err := b.renamed(v); err != nil || now != 0 {
		return []Difference{{Finding: v.lost(b.Name), Put: func(x *rtnl.Batch) { x.SetName(now, b.Name) }}}, err
	}
	return []Difference{{Finding: v.lost(b.Name), Do: func() error { return b.create(ctx, v) }}}, nil
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
func (b *Bridge) create(ctx context.Context, v *View) error {
	if err := v.Bridges.Begin(); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = b.Name, b.NewMTU, b.MAC
	if len(b.MAC) == 0 {
		attrs.HardwareAddr = rtnl.RandomMAC()
	}
	wanted := &netlink.Bridge{LinkAttrs: attrs}
	if b.Filters {
		wanted.VlanFiltering = &b.Filters
	}
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
		setBridgeSysctls(b.Name)
		return v.Kernel.Index(b.Name)
	}, func() error {
		_, err := v.Kernel.DeleteLink(context.WithoutCancel(ctx), b.Name)
		return err
	})
}

// setBridgeSysctls sets the sysctls of a bridge, which the kernel forgets when it disables IPv6 because of the MTU. The bridge
// accepts no router advertisements, because the host configures its routes. It skips duplicate address detection, which
// would delay IPv6 by two seconds, because its addresses are unique. Both calls fail without IPv6.
func setBridgeSysctls(bridge string) {
	_ = rtnl.SetSysctl("net/ipv6/conf/"+bridge+"/accept_ra", "0")
	_ = rtnl.SetSysctl("net/ipv6/conf/"+bridge+"/accept_dad", "0")
}
