package builtin_test

import (
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/sandbox"
)

// filtersVLANs reports whether the kernel supports VLAN filtering of bridges.
func filtersVLANs(t *testing.T) bool {
	t.Helper()
	attrs, on := netlink.NewLinkAttrs(), true
	attrs.Name = "probe"
	probe := &netlink.Bridge{LinkAttrs: attrs, VlanFiltering: &on}
	err := netlink.LinkAdd(probe)
	if err == nil {
		require.NoError(t, netlink.LinkDel(probe))
		return true
	}
	require.ErrorIs(t, err, unix.EOPNOTSUPP)
	return false
}

// TestVLANs: a sandbox reaches only the gateway of its own VLAN. On a kernel
// without VLAN filtering, both implementations refuse the ADD, and the native
// one leaves nothing.
func TestVLANs(t *testing.T) {
	reference, native := runners(t)
	reference.t, native.t = t, t
	defer os.RemoveAll("/var/lib/cni/networks")
	defer removeBridge(t)
	conf := object{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0", "isGateway": true, "vlan": 100, "ipam": hostLocal("10.9.0.0/24")}
	if !filtersVLANs(t) {
		requireNoVLANs(t, reference, native, conf)
		return
	}
	removeBridge(t) // another test's, which does not filter
	for i, one := range []*runner{native, reference} {
		other := []*runner{reference, native}[i]
		a, b := sandboxed(t, "v-a-"+one.name), sandboxed(t, "v-b-"+one.name)
		results := []object{one.add(a, conf)}
		br, err := netlink.LinkByName("br0")
		require.NoError(t, err)
		require.NoError(t, netlink.LinkSetHardwareAddr(br, br.Attrs().HardwareAddr)) // else the next port may change it
		results = append(results, one.add(b, with(with(conf, "vlan", 200), "ipam", hostLocal("10.10.0.0/24"))))
		for i, a := range []attachment{a, b} {
			awaitCarrier(t, a, conf)
			requireReaches(t, a, []string{"10.9.0.1:0", "10.10.0.1:0"}[i])
		}
		for _, r := range []*runner{one, other} {
			_, err := r.run("CHECK", a, withResult(t, conf, results[0]))
			require.NoError(t, err, "%s CHECK of what %s made", r.name, one.name)
		}
		_, err = native.run("CHECK", a, with(withResult(t, conf, results[0]), "vlan", 101))
		require.ErrorContains(t, err, "VLAN 101")
		for i, a := range []attachment{a, b} {
			_, err := other.run("DEL", a, withResult(t, conf, results[i]))
			require.NoError(t, err)
		}
		removeBridge(t)
		for _, name := range []string{"br0.100", "br0.200"} {
			output(t, "ip", "link", "del", name)
		}
	}
}

func requireReaches(t *testing.T, a attachment, address string) {
	t.Helper()
	l, err := net.Listen("tcp4", address)
	require.NoError(t, err)
	defer l.Close()
	s, err := sandbox.Open(a.netns)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Do(func() error {
		c, err := net.Dial("tcp4", l.Addr().String())
		if err == nil {
			err = c.Close()
		}
		return err
	}))
}

func requireNoVLANs(t *testing.T, reference, native *runner, conf object) {
	t.Helper()
	for i, change := range []object{{"vlan": 100}, {"vlan": 0, "vlanTrunk": []object{{"id": 5}}}, {"vlan": 5, "preserveDefaultVlan": true, "ipam": nil}} {
		conf := conf
		for key, value := range change {
			conf = with(conf, key, value)
		}
		a := sandboxed(t, fmt.Sprintf("refused-%d", i))
		_, err := reference.run("ADD", a, conf)
		require.Error(t, err)
		want := code(err)
		_, err = reference.run("DEL", a, conf)
		require.NoError(t, err)
		output(t, "ip", "link", "add", "br0", "type", "bridge")
		_, err = native.run("ADD", a, conf)
		require.ErrorContains(t, err, "the kernel has no VLAN filtering of bridges (CONFIG_BRIDGE_VLAN_FILTERING)")
		require.Equal(t, want, code(err))
		removeBridge(t)
		_, err = native.run("ADD", a, conf)
		require.ErrorContains(t, err, "CONFIG_BRIDGE_VLAN_FILTERING")
		_, err = netlink.LinkByName("br0")
		require.ErrorAs(t, err, new(netlink.LinkNotFoundError))
		_, err = native.run("DEL", a, conf)
		require.NoError(t, err)
		requireGone(t, a)
	}
	// With an empty trunk, the bridge filters VLANs and the port has none.
	_, err := native.run("ADD", sandboxed(t, "empty"), with(with(conf, "vlan", 0), "vlanTrunk", []object{}))
	require.ErrorContains(t, err, "CONFIG_BRIDGE_VLAN_FILTERING")
}
