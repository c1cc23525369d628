package builtin_test

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	objects "github.com/allocnet/allocnet/internal/object"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

func guardedBridge() object {
	return object{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true,
		"ipam": hostLocal("10.9.0.0/24", "fd00:9::/64")}
}

// stationOf returns the addresses of an attachment according to its result.
func stationOf(t *testing.T, result object) station {
	t.Helper()
	s := station{mac: macOf(t, result)}
	for _, ip := range result["ips"].([]any) {
		if addr := netip.MustParsePrefix(ip.(object)["address"].(string)).Addr(); addr.Is4() {
			s.ip4 = addr
		} else {
			s.ip6 = addr
		}
	}
	s.linkLocal, _ = netip.AddrFromSlice(objects.LinkLocal(s.mac))
	return s
}

func hostEnd(result object) string {
	return result["interfaces"].([]any)[1].(object)["name"].(string)
}

// guardTest is a bridge with a neighbour, which receives what others send to it.
type guardTest struct {
	t         *testing.T
	native    *runner
	neighbour station
	in        int
	// repair restores the neighbour's part of the guard.
	repair func() error
}

func newGuardTest(t *testing.T) *guardTest {
	t.Helper()
	g, _, _ := newGuardTestOn(t, guardedBridge())
	return g
}

// newGuardTestOn returns a guardTest on another bridge, and the neighbour with
// its result.
func newGuardTestOn(t *testing.T, conf object) (*guardTest, attachment, object) {
	t.Helper()
	_, native := runners(t)
	native.t = t
	privhost.Require(t, "nft")
	require.NoError(t, os.RemoveAll("/var/lib/cni/networks"))
	removeBridge(t)
	privhost.FlushRuleset(t)
	t.Cleanup(func() { os.RemoveAll("/var/lib/cni/networks"); removeBridge(t) })
	g := &guardTest{t: t, native: native}
	a := sandboxed(t, "neighbour")
	result := native.add(a, conf)
	t.Cleanup(func() { _, _ = native.run("DEL", a, withResult(t, conf, result)) })
	awaitCarrier(t, a, conf)
	g.neighbour, g.in = stationOf(t, result), openPackets(t, a.netns)
	g.repair = func() error { return g.run(sdk.Repair, a, conf, result) }
	return g, a, result
}

// add runs ADD and returns the result, and a socket that sends from the container. DEL runs when the
// test ends, because the kernel deletes the links of a network namespace some time after it.
func (g *guardTest) add(id string, conf object) (attachment, object, int) {
	g.t.Helper()
	a := sandboxed(g.t, id)
	result := g.native.add(a, conf)
	g.t.Cleanup(func() { _, _ = g.native.run("DEL", a, withResult(g.t, conf, result)) })
	awaitCarrier(g.t, a, conf)
	return a, result, openPackets(g.t, a.netns)
}

func (g *guardTest) run(command string, a attachment, conf, result object) error {
	g.t.Helper()
	_, err := g.native.run(command, a, withResult(g.t, conf, result))
	return err
}

// TestBridgeSourceGuard: of the frames of a container on a bridge, only those with its own
// MAC and addresses arrive. CHECK reports a missing part of the guard, and Repair restores it.
func TestBridgeSourceGuard(t *testing.T) {
	g, conf := newGuardTest(t), guardedBridge()
	a, result, out := g.add("guarded", conf)
	own := stationOf(t, result)
	frames := framesOf(own, g.neighbour)
	require.Equal(t, named(frames, true), arrived(t, out, g.in, frames))
	counted := output(t, "nft", "list", "table", "bridge", "allocnet")
	for _, what := range []string{"another MAC", "another IPv4 address", "another IPv6 address", "ARP for another address", "advertises another address", "another protocol"} {
		require.Regexp(t, `counter packets [1-9]\d* bytes \d+ drop comment "`+what, counted)
	}

	port := hostEnd(result)
	require.NoError(t, g.run("CHECK", a, conf, result))
	spoofed := framesOf(own, g.neighbour)[2:4] // the neighbour's IPv4, and its own
	require.Equal(t, []string{".own IPv4"}, arrived(t, out, g.in, spoofed))
	for what, finding := range map[string]string{
		"nft delete table bridge allocnet":            "table bridge allocnet",
		"nft flush chain bridge allocnet own_frames":  "own_frames: rules differ",
		"nft delete chain bridge allocnet own_frames": "own_frames",
		"ip link set " + port + " group default":      "is in group 0 instead of 1685024636",
	} {
		words := strings.Fields(what)
		output(t, words[0], words[1:]...)
		require.Len(t, arrived(t, out, g.in, spoofed), 2, what)
		require.ErrorContains(t, g.run("CHECK", a, conf, result), finding)
		require.NoError(t, g.run(sdk.Repair, a, conf, result), what)
		require.NoError(t, g.run("CHECK", a, conf, result), what)
		require.NoError(t, g.repair(), what)
		require.Equal(t, []string{".own IPv4"}, arrived(t, out, g.in, spoofed), what)
	}
	for what, finding := range map[string]string{
		"nft delete element bridge allocnet port_macs { " + port + " . " + own.mac.String() + " }":       "MAC " + own.mac.String() + ` of bridge port "` + port + `"`,
		"nft flush set bridge allocnet port_addresses":                                                   "address " + own.ip4.String() + " of bridge port",
		"nft flush set bridge allocnet port_targets":                                                     "neighbour discovery for " + own.ip6.String(),
		"ip link set dev " + port + " type bridge_slave group_fwd_mask 0":                                "group_fwd_mask",
		"nft delete element bridge allocnet port_addresses6 { " + port + " . " + own.ip6.String() + " }": "address " + own.ip6.String() + " of bridge port",
	} {
		words := strings.Fields(what)
		output(t, words[0], words[1:]...)
		require.ErrorContains(t, g.run("CHECK", a, conf, result), finding)
		require.NoError(t, g.run(sdk.Repair, a, conf, result), what)
		require.NoError(t, g.run("CHECK", a, conf, result), what)
	}
	require.Equal(t, named(frames, true), arrived(t, out, g.in, frames))

	// A port with VLANs, which needs a kernel that filters them.
	output(t, "nft", "add", "element", "bridge", "allocnet", "tagged_ports", "{", port, "}")
	frames[len(frames)-4].own = true
	require.Equal(t, ".a tagged frame", frames[len(frames)-4].name)
	require.Equal(t, named(frames, true), arrived(t, out, g.in, frames))

	// While the link is being removed, and after its elements are, too.
	for _, leaving := range []string{"0x646f6f6d", "0x646f6f6e"} {
		output(t, "ip", "link", "set", port, "group", leaving)
		require.Equal(t, []string{".own IPv4"}, arrived(t, out, g.in, spoofed), "while the link is being removed")
	}
	require.NoError(t, g.run("DEL", a, conf, result))
	require.NotContains(t, output(t, "nft", "list", "table", "bridge", "allocnet"), port)

	// Without the guard, everything arrives.
	_, result, out = g.add("open", with(conf, "sourceGuard", false))
	frames = framesOf(stationOf(t, result), g.neighbour)
	frames = slices.DeleteFunc(frames, func(f namedFrame) bool { return f.name == ".the neighbour's MAC" }) // which moves the neighbour
	require.Equal(t, named(frames, false), arrived(t, out, g.in, frames))
}

// TestBridgeGuardOfFragments: an echo that the kernel sends in fragments is answered in fragments.
func TestBridgeGuardOfFragments(t *testing.T) {
	g, conf := newGuardTest(t), guardedBridge()
	a, _, _ := g.add("guarded", conf)
	s, err := sandbox.Open(a.netns)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		request, answer := append([]byte{128, 0, 0, 0, 0, 7, 0, 1}, make([]byte, 3000)...), make([]byte, 4000)
		if err := unix.Sendto(fd, request, 0, &unix.SockaddrInet6{Addr: g.neighbour.ip6.As16()}); err != nil {
			return err
		}
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
			return err
		}
		for {
			n, _, err := unix.Recvfrom(fd, answer, 0)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return os.NewSyscallError("recvfrom", err)
			}
			if err == nil && n == len(request) && answer[0] == 129 {
				return nil
			}
		}
	}))
}

// TestBridgeGuardOfReservedMulticast: frames to the multicast MACs that bridges do not forward
// are checked, too. The bridge would learn their sources, and the host would receive them.
func TestBridgeGuardOfReservedMulticast(t *testing.T) {
	g, conf := newGuardTest(t), guardedBridge()
	for _, name := range []string{"all", "default", "br0"} {
		output(t, "sh", "-c", "echo 0 > /proc/sys/net/ipv4/conf/"+name+"/rp_filter")
	}
	host := listener(t)
	gateway := netip.MustParseAddr("10.9.0.1")
	learned := func() string {
		for _, line := range strings.Split(output(t, "bridge", "fdb", "show", "br", "br0"), "\n") {
			if strings.HasPrefix(line, g.neighbour.mac.String()) {
				return strings.Fields(line)[2]
			}
		}
		return ""
	}
	own := func(out int, s station) {
		br, err := net.InterfaceByName("br0")
		require.NoError(t, err)
		_, err = unix.Write(out, ether(br.HardwareAddr, s.mac, unix.ETH_P_IP, ipv4(s.ip4, gateway, s.ip4.String())))
		require.NoError(t, err)
	}
	reserved := func(out int) {
		for last := range byte(16) {
			to := net.HardwareAddr{0x01, 0x80, 0xc2, 0, 0, last}
			_, err := unix.Write(out, ether(to, g.neighbour.mac, unix.ETH_P_IP, ipv4(g.neighbour.ip4, gateway, g.neighbour.ip4.String())))
			require.NoError(t, err)
		}
	}
	_, result, out := g.add("guarded", conf)
	s := stationOf(t, result)
	before := learned()
	require.NotEmpty(t, before)
	reserved(out)
	own(out, s)
	require.Equal(t, []string{s.ip4.String()}, received(t, host, s.ip4))
	require.Equal(t, before, learned())

	open, result, out := g.add("open", with(conf, "sourceGuard", false))
	s = stationOf(t, result)
	reserved(out)
	own(out, s)
	require.Contains(t, received(t, host, s.ip4), g.neighbour.ip4.String())
	require.Eventually(t, func() bool { // the neighbour may send as well
		reserved(out)
		return learned() == hostEnd(result)
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, g.run("DEL", open, conf, result))
}

// TestBridgeGuardOfAutoconfiguredAddresses: with acceptRA, a container sends from each address that it can derive from its
// MAC, as from those of its result, and from no other.
func TestBridgeGuardOfAutoconfiguredAddresses(t *testing.T) {
	g, conf := newGuardTest(t), with(with(guardedBridge(), "acceptRA", true), "ipam", hostLocal("10.9.0.0/24"))
	a, result, out := g.add("auto", conf)
	own := stationOf(t, result)
	identifier := own.linkLocal.AsSlice()[8:]
	for _, prefix := range []string{"2001:db8:66::", "fd00:9::"} {
		half := netip.MustParseAddr(prefix).As16()
		own.ip6, _ = netip.AddrFromSlice(slices.Concat(half[:8], identifier))
		frames := framesOf(own, g.neighbour)
		require.Equal(t, named(frames, true), arrived(t, out, g.in, frames))
	}
	remove := "nft flush set bridge allocnet port_identifiers"
	output(t, "sh", "-c", remove)
	require.ErrorContains(t, g.run("CHECK", a, conf, result), "interface identifier")
	require.NoError(t, g.run(sdk.Repair, a, conf, result))
	require.NoError(t, g.run("CHECK", a, conf, result))
	frames := framesOf(own, g.neighbour)
	require.Equal(t, named(frames, true), arrived(t, out, g.in, frames))
	require.NoError(t, g.run("DEL", a, with(conf, "acceptRA", false), result)) // the configuration has changed
	require.NotContains(t, output(t, "nft", "list", "table", "bridge", "allocnet"), hostEnd(result))

	// Without the key, such addresses are others'.
	conf = with(guardedBridge(), "ipam", hostLocal("10.9.0.0/24"))
	_, result, out = g.add("not", conf)
	own = stationOf(t, result)
	half := netip.MustParseAddr("2001:db8:66::").As16()
	own.ip6, _ = netip.AddrFromSlice(slices.Concat(half[:8], own.linkLocal.AsSlice()[8:]))
	frames = framesOf(own, g.neighbour)
	require.NotContains(t, arrived(t, out, g.in, frames), ".own IPv6")
}

// TestBridgeGuardWithoutAddresses: of a container without addresses only the MAC is checked.
func TestBridgeGuardWithoutAddresses(t *testing.T) {
	g := newGuardTest(t)
	conf := object{"cniVersion": "1.0.0", "name": "bare", "type": "bridge", "bridge": "br0"}
	a, result, out := g.add("bare", conf)
	own := station{mac: macOf(t, result), ip4: netip.MustParseAddr("10.9.0.77"), ip6: netip.MustParseAddr("fd00:9::77")}
	own.linkLocal, _ = netip.AddrFromSlice(objects.LinkLocal(own.mac))
	frames := framesOf(own, g.neighbour)
	refused := []string{".another MAC", ".the neighbour's MAC", ".an ARP reply with the neighbour's MAC", ".an ARP reply with a long address",
		".a tagged frame", ".RARP", ".another protocol"}
	var want []string
	for _, f := range frames {
		if !slices.Contains(refused, f.name) {
			want = append(want, f.name)
		}
	}
	require.Equal(t, want, arrived(t, out, g.in, frames))
	require.NoError(t, g.run("CHECK", a, conf, result))
	require.NoError(t, g.run("DEL", a, conf, result))
}

// TestBridgeGuardWithTuning: the binaries run one plugin at a time; tuning then replaces the
// elements of the MAC that it changes.
func TestBridgeGuardWithTuning(t *testing.T) {
	g, conf := newGuardTest(t), guardedBridge()
	a := sandboxed(t, "tuned")
	first := g.native.add(a, conf)
	tuning := object{"cniVersion": "1.0.0", "name": "net", "type": "tuning", "mac": "02:aa:00:00:00:09"}
	result := g.native.add(a, withResult(t, tuning, first))
	awaitCarrier(t, a, conf)
	out := openPackets(t, a.netns)
	own := stationOf(t, result)
	require.Equal(t, "02:aa:00:00:00:09", own.mac.String())
	frames := framesOf(own, g.neighbour)
	require.Equal(t, named(frames, true), arrived(t, out, g.in, frames))
	was := stationOf(t, first)
	require.NotContains(t, output(t, "nft", "list", "table", "bridge", "allocnet"), was.mac.String())
	require.NotContains(t, output(t, "nft", "list", "table", "bridge", "allocnet"), was.linkLocal.String())
	require.NoError(t, g.run("CHECK", a, conf, result))
	for _, c := range []object{tuning, conf} {
		require.NoError(t, g.run("DEL", a, c, result))
	}
	require.NotContains(t, output(t, "nft", "list", "table", "bridge", "allocnet"), hostEnd(result))
}

// TestBridgeGuardDAD: with enabledad, ADD finds a duplicate of the address, so the guard lets
// its solicitations through.
func TestBridgeGuardDAD(t *testing.T) {
	g := newGuardTest(t)
	conf := with(guardedBridge(), "enabledad", true)
	conf["ipam"] = object{"type": "static", "addresses": []any{object{"address": g.neighbour.ip6.String() + "/64", "gateway": "fd00:9::1"}}}
	output(t, "nft", "flush", "set", "ip6", "allocnet", "masqueraded") // which has the owner of the address
	a := sandboxed(t, "twin")
	_, err := g.native.run("ADD", a, conf)
	require.ErrorContains(t, err, "duplicate address detected")
	require.NotContains(t, output(t, "nft", "list", "table", "bridge", "allocnet"), "/twin/")
	conf["ipam"].(object)["addresses"].([]any)[0].(object)["address"] = "fd00:9::99/64"
	result := g.native.add(a, conf)
	require.NoError(t, g.run("DEL", a, conf, result))
}
