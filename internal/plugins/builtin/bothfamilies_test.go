package builtin_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// hostAddress4 and hostAddress6 are addresses of the host that no network has, and foreign4 and foreign6
// are sources that no allocation has.
var (
	hostAddress4, hostAddress6 = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8:1::1")
	foreign4, foreign6         = netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("2001:db8:66::9")
)

// newRoutedHost returns the runner of native plugins on a host with hostAddress4 and hostAddress6,
// and sysctls that end with the test.
func newRoutedHost(t *testing.T, sysctls map[string]string) *runner {
	t.Helper()
	_, native := runners(t)
	privhost.Require(t, "ip6tables", "nft")
	require.NoError(t, os.RemoveAll("/var/lib/cni/networks"))
	t.Cleanup(func() { os.RemoveAll("/var/lib/cni/networks") })
	privhost.FlushRuleset(t)
	for name, value := range sysctls {
		file := "/proc/sys/net/" + name
		before, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, []byte(value), 0))
		t.Cleanup(func() { require.NoError(t, os.WriteFile(file, before, 0)) })
	}
	for _, one := range []netip.Addr{hostAddress4, hostAddress6} {
		output(t, "ip", "address", "add", one.String(), "dev", "lo")
		t.Cleanup(func() { output(t, "ip", "address", "del", one.String(), "dev", "lo") })
	}
	return native
}

// routed returns a network of ptp.
func routed(subnets ...string) object {
	return object{"cniVersion": "1.0.0", "name": "net", "type": "ptp", "ipMasq": true, "ipam": hostLocal(subnets...)}
}

// neighbourOf is the host, seen by a container that sends frames.
type neighbourOf struct {
	t    *testing.T
	own  station
	host net.HardwareAddr
	out  int
}

func newNeighbourOf(t *testing.T, a attachment, result object) *neighbourOf {
	t.Helper()
	host, err := net.ParseMAC(result["interfaces"].([]any)[0].(object)["mac"].(string))
	require.NoError(t, err)
	return &neighbourOf{t: t, own: stationOf(t, result), host: host, out: openPackets(t, a.netns)}
}

// send sends packets to a MAC.
func (n *neighbourOf) send(to net.HardwareAddr, kind uint16, packets ...[]byte) {
	n.t.Helper()
	for _, one := range packets {
		_, err := unix.Write(n.out, ether(to, n.own.mac, kind, one))
		require.NoError(n.t, err)
	}
}

// udp sends the source as a text, to the listener on an address.
func (n *neighbourOf) udp(from, to netip.Addr) {
	n.t.Helper()
	if text := from.String(); from.Is4() {
		n.send(n.host, unix.ETH_P_IP, ipv4(from, to, text))
	} else {
		n.send(n.host, unix.ETH_P_IPV6, withChecksum(6, ipv6(from, to, unix.IPPROTO_UDP, []byte{0x30, 0x39, 0x1b, 0x9e, 0, byte(8 + len(text)), 0, 0}, []byte(text))))
	}
}

// withChecksum sets the checksum (RFC 1071) at an offset of the content of an IPv6 packet.
func withChecksum(at int, packet []byte) []byte {
	sum := uint32(packet[6]) + uint32(len(packet)-40)
	data := append(slices.Clone(packet[8:]), 0)
	for i := 0; i+1 < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	sum = sum>>16 + sum&0xffff
	binary.BigEndian.PutUint16(packet[40+at:], ^uint16(sum>>16+sum))
	return packet
}

// TestGuardOfBothFamilies: a container sends nothing in the family of which its network has no
// address, neither to the host nor to another container.
func TestGuardOfBothFamilies(t *testing.T) {
	for family, subnet := range map[string]string{"ip6": "10.9.0.0/24", "ip": "fd00:9::/64"} {
		t.Run("without "+family, func(t *testing.T) {
			native := newRoutedHost(t, map[string]string{
				"ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
				"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv6/conf/default/accept_dad": "0",
			})
			conf, beside := routed(subnet), with(routed("10.8.0.0/24", "fd00:8::/64"), "name", "beside")
			a, b := sandboxed(t, "container"), sandboxed(t, "beside")
			result, near := native.add(a, conf), native.add(b, beside)
			defer func() {
				for a, del := range map[attachment]object{a: withResult(t, conf, result), b: withResult(t, beside, near)} {
					_, err := native.run("DEL", a, del)
					require.NoError(t, err)
				}
			}()
			awaitCarrier(t, a, conf)
			n, other := newNeighbourOf(t, a, result), newSender(t, b)
			var inside *net.UDPConn
			require.NoError(t, other.Do(func() error { inside = listener(t); return nil }))
			host := listener(t)

			// exchange sends from foreign addresses, and then from the container's own one.
			own, foreign := n.own.ip4, []netip.Addr{foreign6, n.own.linkLocal}
			if family == "ip" {
				own, foreign = n.own.ip6, []netip.Addr{foreign4, other.own[0]}
			}
			exchange := func(to *net.UDPConn, at4, at6 netip.Addr) []string {
				t.Helper()
				for _, from := range append(foreign, own) {
					if from.Is4() {
						n.udp(from, at4)
					} else {
						n.udp(from, at6)
					}
				}
				return received(t, to, own)
			}
			only := []string{own.String()}
			closed := func() {
				t.Helper()
				require.Equal(t, only, exchange(host, hostAddress4, hostAddress6))
				require.Equal(t, only, exchange(inside, other.own[0], other.own[1]))
				_, err := native.run("CHECK", a, withResult(t, conf, result))
				require.NoError(t, err)
			}
			closed()
			output(t, "nft", "delete", "table", family, "allocnet_guard")
			require.Contains(t, exchange(host, hostAddress4, hostAddress6), foreign[0].String())
			require.Contains(t, exchange(inside, other.own[0], other.own[1]), foreign[0].String())
			_, err := native.run("CHECK", a, withResult(t, conf, result))
			require.ErrorContains(t, err, "table "+family+" allocnet_guard")
			_, err = native.run(sdk.Repair, a, withResult(t, conf, result))
			require.NoError(t, err)
			closed()
		})
	}
}

// TestGuardWithoutIPv6: the plugin works on links that have IPv6 disabled, with and without the guard.
func TestGuardWithoutIPv6(t *testing.T) {
	native := newRoutedHost(t, map[string]string{"ipv6/conf/default/disable_ipv6": "1"})
	for id, guarded := range map[string]bool{"guarded": true, "open": false} {
		conf, a := with(routed("10.9.0.0/24"), "sourceGuard", guarded), sandboxed(t, id)
		result := native.add(a, conf)
		for _, command := range []string{"CHECK", sdk.Repair, "CHECK", "DEL"} {
			_, err := native.run(command, a, withResult(t, conf, result))
			require.NoError(t, err, command)
		}
	}
}
