package builtin_test

import (
	"net"
	"net/netip"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/policystate"
)

// TestPolicyFrames: on a bridge with and without an address of the host, no
// frame passes a policy that denies everything because its packet has a
// destination that is not the receiver's, or a VLAN tag. Without policies, all
// arrive.
func TestPolicyFrames(t *testing.T) {
	for name, gateway := range map[string]bool{"gateway": true, "no gateway": false} {
		for _, policed := range []string{"sender", "receiver"} {
			t.Run(name+" "+policed, func(t *testing.T) { testPolicyFrames(t, gateway, policed) })
		}
	}
}

func testPolicyFrames(t *testing.T, gateway bool, who string) {
	conf := guardedBridge()
	conf["isGateway"], conf["ipMasq"] = gateway, gateway
	g, neighbour, neighbourResult := newGuardTestOn(t, conf)
	g.native.exec.Host.Policies = policystate.New(t.TempDir())
	a, result, out := g.add("a", conf)
	t.Cleanup(func() { _, _ = g.native.run("DEL", a, withResult(t, conf, result)) })
	for _, r := range []object{result, neighbourResult} { // as vlanTrunk does, on kernels that filter VLANs
		output(t, "nft", "add", "element", "bridge", "allocnet", "tagged_ports", "{", hostEnd(r), "}")
	}
	frames := foreignDestinations(stationOf(t, result), g.neighbour)
	require.Equal(t, named(frames, false), arrived(t, out, g.in, frames))

	one, id, of := a, "a", result
	if who == "receiver" {
		one, id, of = neighbour, "neighbour", neighbourResult
	}
	require.NoError(t, g.run("ADD", one, policed(conf, id, "isolated"), of))
	t.Cleanup(func() { _ = g.run("DEL", one, policed(conf, id, "isolated"), of) })
	require.Equal(t, named(frames, true), arrived(t, out, g.in, frames))
	require.NoError(t, g.run("CHECK", one, policed(conf, id, "isolated"), of))
}

// TestPolicyFramesToWorld: a sender that may send to the world does not reach a neighbour without a policy with packets
// that are not for it. The neighbour's own addresses are part of the world here, because its network has no policies.
func TestPolicyFramesToWorld(t *testing.T) {
	g, conf := newGuardTest(t), guardedBridge()
	g.native.exec.Host.Policies = policystate.New(t.TempDir())
	a, result, out := g.add("a", conf)
	frames := foreignDestinations(stationOf(t, result), g.neighbour)
	for i := range frames {
		frames[i].own = frames[i].own || frames[i].name == "."+g.neighbour.ip4.String() || frames[i].name == "."+g.neighbour.ip6.String()
	}
	require.NoError(t, g.run("ADD", a, policed(conf, "a", "egress-only"), result))
	t.Cleanup(func() { _ = g.run("DEL", a, policed(conf, "a", "egress-only"), result) })
	require.Equal(t, named(frames, true), arrived(t, out, g.in, frames))
	require.NoError(t, g.run("CHECK", a, policed(conf, "a", "egress-only"), result))
}

// foreignDestinations returns frames to a neighbour, and to groups, with
// destinations that it may accept although they are not its addresses in the
// rules: broadcasts, and addresses that a workload has added itself; and a
// frame with a VLAN tag. Only the ARP request at the end passes a policy.
func foreignDestinations(own, neighbour station) (frames []namedFrame) {
	group := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	for kind, mac := range map[string]net.HardwareAddr{"": neighbour.mac, " in a broadcast": group} {
		for _, to := range []string{neighbour.ip4.String(), "10.9.0.255", "10.9.0.0", "255.255.255.255", "224.0.0.1", "169.254.1.1", "10.9.0.77", "192.0.2.7"} {
			frame := ether(mac, own.mac, unix.ETH_P_IP, ipv4(own.ip4, netip.MustParseAddr(to), ""))
			frames = append(frames, namedFrame{"." + to + kind, frame, false})
		}
		for _, to := range []string{neighbour.ip6.String(), "fd00:9::", "fd00:9::77", "2001:db8::7", "ff02::1", "fe80::7", neighbour.linkLocal.String()} {
			frame := ether(mac, own.mac, unix.ETH_P_IPV6, ipv6(own.ip6, netip.MustParseAddr(to), unix.IPPROTO_UDP, udpHeader))
			frames = append(frames, namedFrame{"." + to + kind, frame, false})
		}
	}
	inner := ether(neighbour.mac, own.mac, unix.ETH_P_IP, ipv4(own.ip4, neighbour.ip4, ""))
	frames = append(frames, namedFrame{".tagged", tagged(inner), false})
	end := ether(neighbour.mac, own.mac, unix.ETH_P_ARP, arp(1, own.mac, own.ip4, neighbour.ip4))
	return append(frames, namedFrame{".the end", end, true})
}

// TestPolicyTaggedInput: in the bridge's hook input, packets from a port in a
// VLAN of the bridge have a tag. The guard is opened for tags here, because not
// every kernel has such VLANs.
func TestPolicyTaggedInput(t *testing.T) {
	g, conf := newGuardTest(t), guardedBridge()
	g.native.exec.Host.Policies = policystate.New(t.TempDir())
	a, result, out := g.add("a", conf)
	t.Cleanup(func() { _, _ = g.native.run("DEL", a, withResult(t, conf, result)) })
	require.NoError(t, g.run("ADD", a, policed(conf, "a", "isolated"), result))
	t.Cleanup(func() { _ = g.run("DEL", a, policed(conf, "a", "isolated"), result) })
	output(t, "nft", "insert", "rule", "bridge", "allocnet", "own_mac", "ether", "type", "8021q", "accept")
	dropped := func() string { return output(t, "nft", "list", "chain", "bridge", "allocnet", "policed") }
	require.Regexp(t, `counter packets 0 .* "IPv6 from a link-local`, dropped())

	own := stationOf(t, result)
	bridge, err := net.InterfaceByName("br0")
	require.NoError(t, err)
	packet := ipv6(own.linkLocal, netip.MustParseAddr("fe80::1"), unix.IPPROTO_UDP, udpHeader)
	_, err = unix.Write(out, tagged(ether(bridge.HardwareAddr, own.mac, unix.ETH_P_IPV6, packet)))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		return regexp.MustCompile(`counter packets 1 .* "IPv6 from a link-local`).MatchString(dropped())
	}, 10*time.Second, 5*time.Millisecond, "the packet passed")
}
