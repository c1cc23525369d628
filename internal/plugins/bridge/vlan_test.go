package bridge

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/object"
)

// fakePort simulates the VLANs of a bridge port in the kernel.
type fakePort struct {
	vlans map[uint16]*nl.BridgeVlanInfo
	err   error
}

func newFakePort() *fakePort {
	const pvid = nl.BRIDGE_VLAN_INFO_PVID | nl.BRIDGE_VLAN_INFO_UNTAGGED
	return &fakePort{vlans: map[uint16]*nl.BridgeVlanInfo{1: {Vid: 1, Flags: pvid}}}
}

func (p *fakePort) BridgeVlanAdd(port netlink.Link, id uint16, pvid, untagged, self, master bool) error {
	if self || !master || port.Attrs().Index != 7 {
		return unix.EINVAL
	}
	info := &nl.BridgeVlanInfo{Vid: id}
	if pvid {
		info.Flags |= nl.BRIDGE_VLAN_INFO_PVID
		for _, other := range p.vlans {
			other.Flags &^= nl.BRIDGE_VLAN_INFO_PVID
		}
	}
	if untagged {
		info.Flags |= nl.BRIDGE_VLAN_INFO_UNTAGGED
	}
	p.vlans[id] = info
	return p.err
}

func (p *fakePort) BridgeVlanAddRange(port netlink.Link, first, last uint16, pvid, untagged, self, master bool) error {
	if first >= last || pvid { // as the kernel does
		return unix.EINVAL
	}
	for id := first; id <= last; id++ {
		if err := p.BridgeVlanAdd(port, id, pvid, untagged, self, master); err != nil {
			return err
		}
	}
	return nil
}

func (p *fakePort) BridgeVlanDelRange(_ netlink.Link, first, last uint16, _, _, self, master bool) error {
	if self || !master || first >= last || last > 4094 {
		return unix.EINVAL
	}
	for id := first; id <= last; id++ {
		delete(p.vlans, id)
	}
	return nil
}

// String lists the VLANs as "bridge vlan" does.
func (p *fakePort) String() (text string) {
	for id := range uint16(4096) {
		if info := p.vlans[id]; info != nil {
			text += fmt.Sprint(id)
			if info.PortVID() {
				text += " PVID"
			}
			if info.EngressUntag() {
				text += " untagged"
			}
			text += "; "
		}
	}
	return text
}

func parse(t *testing.T, keys string) *bridge {
	t.Helper()
	p, err := New([]byte(`{"cniVersion":"1.0.0","name":"net","type":"bridge",` + keys + `}`))
	require.NoError(t, err, keys)
	return p.(*bridge)
}

// TestVLANsOfAPort: the port is in the same VLANs as with the reference plugin,
// and CHECK accepts only these.
func TestVLANsOfAPort(t *testing.T) {
	for keys, want := range map[string]string{
		`"vlan":100`:                            "100 PVID untagged; ",
		`"vlan":100,"preserveDefaultVlan":true`: "1 untagged; 100 PVID untagged; ",
		`"vlanTrunk":[{"id":5}]`:                "1 PVID untagged; 5; ",
		`"vlanTrunk":[{"minID":5,"maxID":7},{"id":9},{"minID":6,"maxID":8,"id":12}]`: "1 PVID untagged; 5; 6; 7; 8; 9; 12; ",
		`"vlan":100,"vlanTrunk":[{"id":5}]`:                                          "5; 100 PVID untagged; ",
		`"vlan":5,"vlanTrunk":[{"minID":4,"maxID":6}]`:                               "4; 5 PVID untagged; 6; ",
		`"vlan":1`: "1 PVID untagged; ",
		`"vlanTrunk":[{"id":4094}],"preserveDefaultVlan":true`: "1 PVID untagged; 4094; ",
	} {
		b := parse(t, keys)
		require.True(t, b.filters() && b.tags(), keys)
		p := newFakePort()
		require.NoError(t, b.setVLANs(p, &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 7}}, b.native(), b.vlans), keys)
		require.Equal(t, want, p.String(), keys)
		require.NoError(t, b.compareVLANs("port", p.vlans), keys)
		p.vlans[2000] = &nl.BridgeVlanInfo{Vid: 2000}
		if !b.PreserveDefaultVlan {
			require.ErrorContains(t, b.compareVLANs("port", p.vlans), "is in VLAN 2000, which is not configured")
		}
		delete(p.vlans, 2000)
		delete(p.vlans, b.native())
		require.ErrorContains(t, b.compareVLANs("port", p.vlans), "does not have the native VLAN")
	}
	p := newFakePort()
	p.err = unix.EOPNOTSUPP
	err := parse(t, `"vlan":7`).setVLANs(p, &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: 7}}, 7, nil)
	require.ErrorIs(t, err, object.ErrNoFiltering)
	require.ErrorContains(t, err, "add VLAN 7: the kernel has no VLAN filtering of bridges (CONFIG_BRIDGE_VLAN_FILTERING); use a kernel that has it")
}

// TestWithoutVLANs: with an empty trunk, the plugin only enables VLAN filtering
// of the bridge.
func TestWithoutVLANs(t *testing.T) {
	require.False(t, parse(t, `"vlan":0`).filters())
	b := parse(t, `"vlanTrunk":[]`)
	require.True(t, b.filters())
	require.False(t, b.tags())
}

// TestBadTrunks: the errors are those of the reference plugin.
func TestBadTrunks(t *testing.T) {
	for keys, want := range map[string]string{
		`"vlan":4095`:                              "invalid VLAN ID 4095 (must be between 0 and 4094)",
		`"vlan":-1`:                                "invalid VLAN ID -1 (must be between 0 and 4094)",
		`"vlanTrunk":[{"id":0}]`:                   "incorrect trunk id parameter",
		`"vlanTrunk":[{"id":4095}]`:                "incorrect trunk id parameter",
		`"vlanTrunk":[{"minID":0,"maxID":3}]`:      "incorrect trunk minID parameter",
		`"vlanTrunk":[{"minID":3,"maxID":4095}]`:   "incorrect trunk maxID parameter",
		`"vlanTrunk":[{"minID":3,"maxID":2}]`:      "minID is greater than maxID in trunk parameter",
		`"vlanTrunk":[{"minID":3}]`:                "minID and maxID should be configured simultaneously, maxID is missing",
		`"vlanTrunk":[{"maxID":3,"id":9}]`:         "minID and maxID should be configured simultaneously, minID is missing",
		`"vlanTrunk":[{"minID":1,"maxID":4},null]`: "vlanTrunk: an entry is null",
	} {
		_, err := New([]byte(`{"cniVersion":"1.0.0","name":"net","type":"bridge",` + keys + `}`))
		require.EqualError(t, err, want, keys)
	}
}
