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
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/retry"
)

var errNoFiltering = errors.New("the kernel has no VLAN filtering of bridges (CONFIG_BRIDGE_VLAN_FILTERING); use a kernel that has it, or remove vlan and vlanTrunk from the configuration")

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
		return errNoFiltering
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
		err = fmt.Errorf("%w: %w", errNoFiltering, err)
	}
	return fmt.Errorf("%s: %w", act, err)
}

// tag adds the new port, which is down, to its VLANs.
func (a *addition) tag(context.Context) error {
	if !a.tags() {
		return nil
	}
	host := a.args.Host.Kernel
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

// checkVLANs returns an error if a port is missing in one of its VLANs, or is
// in another VLAN and the default VLAN is not preserved.
func (b *bridge) checkVLANs(c *sdk.CmdArgs, r *types100.Result) error {
	if !b.tags() {
		return nil
	}
	if err := b.requireFiltering(c.Host.Kernel); err != nil {
		return err
	}
	p, err := b.port(c, r)
	if err != nil {
		return err
	}
	index, err := c.Host.Kernel.Index(p.Link)
	if err != nil {
		return err
	}
	found, err := vlansOf(c.Host.Kernel, index)
	if err != nil {
		return err
	}
	return b.compareVLANs(p.Link, found)
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

// repairVLANs adds the port to its VLANs again if checkVLANs fails.
func (b *bridge) repairVLANs(c *sdk.CmdArgs, r *types100.Result) error {
	if !b.tags() || b.checkVLANs(c, r) == nil {
		return nil
	}
	p, err := b.port(c, r)
	if err != nil {
		return err
	}
	link, err := c.Host.Kernel.Link(p.Link)
	if err != nil {
		return err
	}
	return b.setVLANs(c.Host.Kernel, link, b.native(), b.vlans)
}

// gatewayLink returns the link for the gateways' addresses. It is the bridge
// itself or, with a VLAN, the veth of which the other end is a port in that
// VLAN: the bridge's own packets are in no VLAN.
func (b *bridge) gatewayLink(host *rtnl.Host, br *netlink.Bridge, r *types100.Result) (netlink.Link, error) {
	if b.Vlan == 0 {
		return br, nil
	}
	name := b.vlanInterface()
	link, err := host.Link(name)
	if rtnl.IsNotFound(err) {
		if link, err = addVLANInterface(host, name, mtuOf(r)); err != nil {
			return nil, fmt.Errorf("interface %q of VLAN %d: %w", name, b.Vlan, err)
		}
	}
	if err != nil {
		return nil, err
	}
	if link.Type() == "veth" { // otherwise the host configured it, for example as type vlan
		err = b.joinVLAN(host, br, link)
	}
	if err == nil && link.Attrs().RawFlags&unix.IFF_UP == 0 {
		err = host.LinkSetUp(link)
	}
	if err != nil {
		return nil, fmt.Errorf("interface %q of VLAN %d: %w", name, b.Vlan, err)
	}
	return link, nil
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

// joinVLAN makes the other end of a VLAN's interface a port in that VLAN only,
// unless it is one already.
func (b *bridge) joinVLAN(host *rtnl.Host, br *netlink.Bridge, link netlink.Link) error {
	port, err := host.LinkByIndex(link.Attrs().ParentIndex)
	if err != nil {
		return fmt.Errorf("find its other end: %w", err)
	}
	if port.Attrs().MasterIndex != br.Index {
		if err := host.LinkSetMaster(port, br); err != nil {
			return fmt.Errorf("attach it to bridge %q: %w", b.Bridge, err)
		}
	}
	found, err := vlansOf(host, port.Attrs().Index)
	if err != nil {
		return err
	}
	if info := found[uint16(b.Vlan)]; info == nil || !info.PortVID() || !info.EngressUntag() {
		if err := b.setVLANs(host, port, uint16(b.Vlan), nil); err != nil {
			return err
		}
	}
	if port.Attrs().RawFlags&unix.IFF_UP != 0 {
		return nil
	}
	return host.LinkSetUp(port)
}

// reportVLANInterface adds the interface with the gateways' addresses as the
// last one of the result, as the reference plugin does.
func (a *addition) reportVLANInterface() error {
	if a.Vlan == 0 || !a.IsGateway || len(a.result.IPs) == 0 {
		return nil
	}
	link, err := a.args.Host.Kernel.Link(a.vlanInterface())
	if err != nil {
		return err
	}
	a.result.Interfaces = append(a.result.Interfaces, &types100.Interface{Name: link.Attrs().Name, Mac: link.Attrs().HardwareAddr.String()})
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
func (b *bridge) gatewayIndex(host *rtnl.Host, br *netlink.Bridge) (name string, index int, err error) {
	name = b.gatewayName()
	if b.Vlan == 0 {
		return name, br.Index, nil
	}
	if index, err = host.Index(name); err != nil {
		return name, 0, fmt.Errorf("interface of VLAN %d: %w", b.Vlan, err)
	}
	return name, index, nil
}
