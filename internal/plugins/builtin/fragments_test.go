package builtin_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

// TestFragments: with "fragments": false, the host receives no datagram in fragments from a container. CHECK
// reports a missing element, Repair restores it, and DEL removes it.
func TestFragments(t *testing.T) {
	ptp := routed("10.9.0.0/24", "fd00:9::/64")
	for name, one := range map[string]struct {
		conf   object
		set    string // of nft, with the element of the link
		repair string
	}{
		"ptp":                   {conf: ptp, set: "ip allocnet unfragmented", repair: "no fragments from"},
		"ptp without the guard": {conf: with(with(ptp, "sourceGuard", false), "ipMasq", false), set: "ip6 allocnet unfragmented", repair: "no fragments from"},
		"bridge":                {conf: guardedBridge(), set: "bridge allocnet unfragmented_ports", repair: "no fragments from bridge port"},
	} {
		t.Run(name, func(t *testing.T) {
			_, native := runners(t)
			native.t = t
			privhost.Require(t, "nft")
			require.NoError(t, os.RemoveAll("/var/lib/cni/networks"))
			removeBridge(t)
			privhost.FlushRuleset(t)
			t.Cleanup(func() { os.RemoveAll("/var/lib/cni/networks"); removeBridge(t) })
			host := listener(t)
			sendAll := func(a attachment, passes bool) {
				t.Helper()
				for _, to := range []string{"10.9.0.1", "fd00:9::1"} {
					want := []string{"whole"}
					if passes {
						want = []string{"fragments", "whole"}
					}
					sendFragments(t, a, netip.MustParseAddr(to))
					require.Equal(t, want, datagrams(t, host), to)
				}
			}
			add := func(id string, conf object) (attachment, object) {
				a := sandboxed(t, id)
				result := native.add(a, conf)
				t.Cleanup(func() { _, _ = native.run("DEL", a, withResult(t, conf, result)) })
				awaitCarrier(t, a, conf)
				return a, result
			}
			open, _ := add("open", one.conf)
			conf := with(one.conf, "fragments", false)
			a, result := add("whole", conf)
			sendAll(open, true)
			sendAll(a, false)
			run := func(command string) error {
				_, err := native.run(command, a, withResult(t, conf, result))
				return err
			}
			require.NoError(t, run("CHECK"))
			output(t, "sh", "-c", "nft flush set "+one.set)
			require.ErrorContains(t, run("CHECK"), one.repair)
			require.NoError(t, run(sdk.Repair))
			require.NoError(t, run("CHECK"))
			sendAll(a, false)
			require.Regexp(t, `fragments?( from links that send none)? \[`, output(t, "sh", "-c", "nft list ruleset | grep 'counter packets [1-9].*fragments'"))
			require.NoError(t, run("DEL"))
			require.NotContains(t, output(t, "nft", "list", "ruleset"), `"allocnet:net/whole/eth0"`)
		})
	}
	_, native := runners(t)
	_, err := native.run("ADD", sandboxed(t, "refused"), with(with(guardedBridge(), "sourceGuard", false), "fragments", false))
	require.ErrorContains(t, err, "needs the source guard")
}

// sendFragments sends a datagram that does not fit into a packet, and then one that does.
func sendFragments(t *testing.T, a attachment, to netip.Addr) {
	t.Helper()
	s, err := sandbox.Open(a.netns)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Do(func() error {
		c, err := net.Dial("udp", netip.AddrPortFrom(to, 7070).String())
		if err != nil {
			return err
		}
		defer c.Close()
		if to.Is6() {
			raw, err := c.(*net.UDPConn).SyscallConn()
			if err != nil {
				return err
			}
			_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, 0) })
			if err != nil {
				return err
			}
		}
		for _, text := range []string{"fragments" + strings.Repeat(".", 3000), "whole."} {
			if _, err := fmt.Fprint(c, text); err != nil {
				return err
			}
		}
		return nil
	}))
}

// datagrams returns the beginnings of the datagrams that arrive, up to the one that is whole.
func datagrams(t *testing.T, conn *net.UDPConn) (texts []string) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	buf := make([]byte, 4000)
	for len(texts) == 0 || texts[len(texts)-1] != "whole" {
		n, err := conn.Read(buf)
		require.NoError(t, err, texts)
		text, _, _ := strings.Cut(string(buf[:n]), ".")
		texts = append(texts, text)
	}
	return texts
}

// misplaced returns the fragments of a datagram to port 7070, as frames of a packet socket with a virtio_net_hdr:
// the kernel is to write the checksum over the second half of the source. With the last two bytes of the
// content, that is the second half of another address.
func misplaced(own station, to net.HardwareAddr, victim, source netip.Addr) (frames [][]byte) {
	const header, at = 20, 14 // in the header of IP
	content := slices.Concat([]byte{0x30, 0x39, 0x1b, 0x9e, 0, 8 + 162, 0, 0}, []byte(strings.Repeat("fragment", 20)), []byte{0, 0})
	whole, sum := append(ipv4(own.ip4, victim, "")[:header], content...), uint32(0)
	for i := at; i < len(whole); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(whole[i:]))
	}
	want := ^binary.BigEndian.Uint16(source.AsSlice()[2:])
	binary.BigEndian.PutUint16(content[len(content)-2:], uint16((uint32(want)+0xffff-sum%0xffff)%0xffff))
	virtio := []byte{unix.VIRTIO_NET_HDR_F_NEEDS_CSUM, 0, 0, 0, 0, 0}
	virtio = binary.NativeEndian.AppendUint16(virtio, 14+at) // behind the header of Ethernet
	virtio = binary.NativeEndian.AppendUint16(virtio, 0)
	first, second := ipv4Of(unix.IPPROTO_UDP, 0, own.ip4, victim, content[:64]...), ipv4Of(unix.IPPROTO_UDP, 8, own.ip4, victim, content[64:]...)
	first[6] = 0x20 // more fragments
	setChecksum(first[:header])
	for _, packet := range [][]byte{first, second} {
		frames = append(frames, append(slices.Clone(virtio), ether(to, own.mac, unix.ETH_P_IP, packet)...))
	}
	return frames
}

// TestFragmentsDoNotForgeSources: a container makes the host write another source into a datagram, behind the
// source guard, only if it may send fragments.
func TestFragmentsDoNotForgeSources(t *testing.T) {
	native := newRoutedHost(t, map[string]string{"ipv4/ip_forward": "1", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0"})
	conf, forged := routed("10.9.0.0/16"), netip.MustParseAddr("10.9.9.9")
	add := func(id string, conf object) (attachment, object) {
		a := sandboxed(t, id)
		result := native.add(a, conf)
		t.Cleanup(func() { _, _ = native.run("DEL", a, withResult(t, conf, result)) })
		awaitCarrier(t, a, conf)
		return a, result
	}
	victim, result := add("victim", conf)
	at := stationOf(t, result).ip4
	s, err := sandbox.Open(victim.netns)
	require.NoError(t, err)
	defer s.Close()
	var inside *net.UDPConn
	require.NoError(t, s.Do(func() error { inside = listener(t); return nil }))
	for _, passes := range []bool{true, false} {
		a, result := add(fmt.Sprintf("sender-%t", passes), with(conf, "fragments", passes))
		n := newNeighbourOf(t, a, result)
		require.NoError(t, unix.SetsockoptInt(n.out, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1))
		end := append(make([]byte, 10), ether(n.host, n.own.mac, unix.ETH_P_IP, ipv4(n.own.ip4, at, "end"))...)
		for _, frame := range append(misplaced(n.own, n.host, at, forged), end) {
			_, err := unix.Write(n.out, frame)
			require.NoError(t, err)
		}
		var sources []netip.Addr
		for len(sources) == 0 || sources[len(sources)-1] != n.own.ip4 {
			require.NoError(t, inside.SetReadDeadline(time.Now().Add(10*time.Second)))
			_, from, err := inside.ReadFromUDPAddrPort(make([]byte, 4000))
			require.NoError(t, err, sources)
			sources = append(sources, from.Addr().Unmap())
		}
		want := []netip.Addr{n.own.ip4}
		if passes {
			want = []netip.Addr{forged, n.own.ip4}
		}
		require.Equal(t, want, sources)
	}
}
