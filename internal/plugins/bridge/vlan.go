package bridge

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/object"
	"github.com/allocnet/allocnet/internal/retry"
)

// filters reports whether the bridge must filter VLANs; tags reports whether
// the port has VLANs of its own.
func (b *bridge) filters() bool { return b.Vlan != 0 || b.VlanTrunk != nil }

func (b *bridge) tags() bool { return b.Vlan != 0 || len(b.vlans) > 0 }

// requireFiltering returns an error if the bridge does not filter VLANs.
// Without filtering, the kernel stores the VLANs of ports but ignores them. The
// plugin does not enable filtering, because that would change which frames
// other ports of the bridge receive.
func (b *bridge) requireFiltering(host *rtnl.Host) error {
	link, err := host.Link(b.Bridge)
	if err != nil {
		return err
	}
	br, ok := link.(*netlink.Bridge)
	switch {
	case !ok || br.VlanDefaultPVID == nil: // only a kernel with VLAN filtering reports it
		return object.ErrNoFiltering
	case br.VlanFiltering == nil || !*br.VlanFiltering:
		return fmt.Errorf("bridge %q does not filter VLANs; name another bridge, or run: ip link set %s type bridge vlan_filtering 1", b.Bridge, b.Bridge)
	}
	return nil
}

// vlanSetter changes the VLANs of a port.
type vlanSetter interface {
	BridgeVlanAdd(port netlink.Link, id uint16, pvid, untagged, self, master bool) error
	BridgeVlanAddRange(port netlink.Link, first, last uint16, pvid, untagged, self, master bool) error
	BridgeVlanDelRange(port netlink.Link, first, last uint16, pvid, untagged, self, master bool) error
}

// native returns the VLAN of untagged frames; 0 means the bridge's default. A
// trunk without a native VLAN gets the kernel's default.
func (b *bridge) native() uint16 {
	const kernelDefault = 1
	if b.Vlan == 0 && len(b.vlans) > 0 {
		return kernelDefault
	}
	return uint16(b.Vlan)
}

// setVLANs adds a port to its native VLAN and, tagged, to others.
func (b *bridge) setVLANs(s vlanSetter, port netlink.Link, native uint16, tagged []vlanRange) error {
	if !b.PreserveDefaultVlan {
		if err := s.BridgeVlanDelRange(port, 1, lastVLAN, false, false, false, true); err != nil {
			return vlanError("remove the default VLAN", err)
		}
	}
	for _, r := range tagged {
		if err := addTagged(s, port, r); err != nil {
			return vlanError(fmt.Sprintf("add VLANs %d to %d", r.first, r.last), err)
		}
	}
	if err := s.BridgeVlanAdd(port, native, true, true, false, true); err != nil {
		return vlanError(fmt.Sprintf("add VLAN %d", native), err)
	}
	return nil
}

// addTagged adds a range of VLANs. The kernel rejects a range of a single VLAN.
func addTagged(s vlanSetter, port netlink.Link, r vlanRange) error {
	if r.first == r.last {
		return s.BridgeVlanAdd(port, r.first, false, false, false, true)
	}
	return s.BridgeVlanAddRange(port, r.first, r.last, false, false, false, true)
}

func vlanError(act string, err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = fmt.Errorf("%w: %w", object.ErrNoFiltering, err)
	}
	return fmt.Errorf("%s: %w", act, err)
}

// tag adds the new port, which is down, to its VLANs.
func (a *addition) tag(context.Context) error {
	if !a.tags() {
		return nil
	}
	host := a.Args.Host.Kernel
	port := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: a.veth.Name, Index: a.veth.Index}}
	return a.setVLANs(host, port, a.native(), a.vlans)
}

// vlansOf returns the VLANs of a port by their ID.
func vlansOf(host *rtnl.Host, index int) (map[uint16]*nl.BridgeVlanInfo, error) {
	var found map[uint16]*nl.BridgeVlanInfo
	err := retry.Do(context.Background(), func() error {
		all, err := host.BridgeVlanList()
		found = map[uint16]*nl.BridgeVlanInfo{}
		for _, info := range all[int32(index)] {
			found[info.Vid] = info
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list VLANs of bridge ports: %w", err)
	}
	return found, nil
}

// portVLANs are the VLANs of the port of an attachment: it is in each of them, and in no other one unless the default VLAN is
// preserved.
type portVLANs struct{ *attachment }

// Compare implements object.Object.
func (p *portVLANs) Compare(_ context.Context, v *object.View) ([]object.Difference, error) {
	if err := p.requireFiltering(v.Kernel); err != nil {
		return []object.Difference{{Finding: err}}, nil
	}
	link, err := v.Link(p.port)
	if rtnl.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	found, err := vlansOf(v.Kernel, link.Index)
	if err != nil {
		return nil, err
	}
	finding := p.compareVLANs(p.port, found)
	if finding == nil {
		return nil, nil
	}
	port := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: p.port, Index: link.Index}}
	return []object.Difference{{Finding: finding, Do: func() error { return p.setVLANs(v.Kernel, port, p.native(), p.vlans) }}}, nil
}

// compareVLANs returns an error if the VLANs of a port differ from the configuration.
func (b *bridge) compareVLANs(port string, found map[uint16]*nl.BridgeVlanInfo) error {
	if info := found[b.native()]; info == nil || !info.PortVID() || !info.EngressUntag() {
		return fmt.Errorf("port %q does not have the native VLAN %d", port, b.native())
	}
	wanted := map[uint16]bool{b.native(): true}
	for _, r := range b.vlans {
		for id := r.first; id <= r.last; id++ {
			wanted[id] = true
		}
	}
	for id := range wanted {
		if found[id] == nil {
			return fmt.Errorf("port %q is not in VLAN %d", port, id)
		}
	}
	for id := range found {
		if !wanted[id] && !b.PreserveDefaultVlan {
			return fmt.Errorf("port %q is in VLAN %d, which is not configured", port, id)
		}
	}
	return nil
}

// joinGateway makes the link for the gateways' addresses in a VLAN, if it is missing: a veth of which the other end is a port
// of the bridge with an index in that VLAN. The bridge's own packets are in no VLAN.
func (b *bridge) joinGateway(host *rtnl.Host, br int, r *types100.Result) error {
	name := b.vlanInterface()
	link, err := host.Link(name)
	if rtnl.IsNotFound(err) {
		if link, err = addVLANInterface(host, name, mtuOf(r)); err != nil {
			return fmt.Errorf("interface %q of VLAN %d: %w", name, b.Vlan, err)
		}
	}
	if err != nil {
		return err
	}
	if link.Type() == "veth" { // otherwise the host configured it, for example as type vlan
		err = b.joinVLAN(host, br, link)
	}
	if err == nil && link.Attrs().RawFlags&unix.IFF_UP == 0 {
		err = host.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("interface %q of VLAN %d: %w", name, b.Vlan, err)
	}
	return nil
}

// mtuOf returns the MTU in a result; 0 means the kernel's default.
func mtuOf(r *types100.Result) int {
	for _, i := range r.Interfaces {
		if i.Mtu != 0 {
			return i.Mtu
		}
	}
	return 0
}

func (b *bridge) vlanInterface() string { return fmt.Sprintf("%s.%d", b.Bridge, b.Vlan) }

// addVLANInterface creates the veth for a VLAN, unless a concurrent ADD creates
// it.
func addVLANInterface(host *rtnl.Host, name string, mtu int) (netlink.Link, error) {
	if err := names.ValidateInterface(name); err != nil {
		return nil, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = name, mtu, rtnl.RandomMAC()
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: names.Owner{IfName: name}.Veth(), PeerHardwareAddr: rtnl.RandomMAC()}
	if err := host.LinkAdd(link); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	return host.Link(name)
}

// joinVLAN makes the other end of a VLAN's interface a port in that VLAN only, unless it is one already.
func (b *bridge) joinVLAN(host *rtnl.Host, br int, link netlink.Link) error {
	port, err := host.LinkByIndex(link.Attrs().ParentIndex)
	if err != nil {
		return fmt.Errorf("find its other end: %w", err)
	}
	if port.Attrs().MasterIndex != br {
		if err := host.LinkSetMasterByIndex(port, br); err != nil {
			return fmt.Errorf("attach it to bridge %q: %w", b.Bridge, err)
		}
	}
	has, err := b.hasGatewayVLAN(host, port.Attrs().Index)
	if err == nil && !has {
		err = b.setVLANs(host, port, uint16(b.Vlan), nil)
	}
	if err == nil && port.Attrs().RawFlags&unix.IFF_UP == 0 {
		err = host.LinkSetUp(port)
	}
	return err
}

// hasGatewayVLAN reports whether a port has the VLAN as its native one.
func (b *bridge) hasGatewayVLAN(host *rtnl.Host, index int) (bool, error) {
	found, err := vlansOf(host, index)
	info := found[uint16(b.Vlan)]
	return info != nil && info.PortVID() && info.EngressUntag(), err
}

// vlanGateway is the link for the gateways' addresses in a VLAN.
type vlanGateway struct{ *attachment }

// Compare implements object.Object.
func (g *vlanGateway) Compare(_ context.Context, v *object.View) ([]object.Difference, error) {
	br, err := v.Link(g.Bridge)
	if rtnl.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	d := object.Difference{Do: func() error { return g.joinGateway(v.Kernel, br.Index, g.Result) }}
	link, err := v.Link(g.vlanInterface())
	switch {
	case rtnl.IsNotFound(err):
		d.Finding = fmt.Errorf("interface of VLAN %d: %w", g.Vlan, err)
	case err != nil:
		return nil, err
	case !link.Up:
		d.Finding = fmt.Errorf("interface %q of VLAN %d is down", link.Name, g.Vlan)
	case link.Kind != "veth": // the host configured it, for example as type vlan
		return nil, nil
	default:
		port, err := v.Kernel.LinkStateAt(link.Peer)
		if err != nil {
			return nil, fmt.Errorf("find the other end of %q: %w", link.Name, err)
		}
		has, err := g.hasGatewayVLAN(v.Kernel, port.Index)
		if err != nil || port.Up && port.Master == br.Index && has {
			return nil, err
		}
		d.Finding = fmt.Errorf("interface %q is not connected to VLAN %d of bridge %q", link.Name, g.Vlan, g.Bridge)
	}
	return []object.Difference{d}, nil
}

// reportVLANInterface adds the interface with the gateways' addresses as the
// last one of the result, as the reference plugin does.
func (a *addition) reportVLANInterface() error {
	if a.Vlan == 0 || !a.IsGateway || len(a.Result.IPs) == 0 {
		return nil
	}
	link, err := a.Args.Host.Kernel.Link(a.vlanInterface())
	if err != nil {
		return err
	}
	a.Result.Interfaces = append(a.Result.Interfaces, &types100.Interface{Name: link.Attrs().Name, Mac: link.Attrs().HardwareAddr.String()})
	return nil
}

// gatewayName returns the name of the link that must have the gateways' addresses.
func (b *bridge) gatewayName() string {
	if b.Vlan == 0 {
		return b.Bridge
	}
	return b.vlanInterface()
}

// gatewayIndex returns the link that must have the gateways' addresses.
func (b *bridge) gatewayIndex(host *rtnl.Host, br int) (name string, index int, err error) {
	name = b.gatewayName()
	if b.Vlan == 0 {
		return name, br, nil
	}
	if index, err = host.Index(name); err != nil {
		return name, 0, fmt.Errorf("interface of VLAN %d: %w", b.Vlan, err)
	}
	return name, index, nil
}
