package policy

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
)

// openRules opens the tables of the host.
func openRules(t *testing.T) *ruleset.Ruleset {
	t.Helper()
	r, err := ruleset.Open()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func denialsOf(t *testing.T, r *ruleset.Ruleset, of netip.Addr) (list []ruleset.Denial) {
	t.Helper()
	all, err := r.Denials(t.Context())
	require.NoError(t, err)
	return slices.DeleteFunc(all, func(d ruleset.Denial) bool { return d.Address != of })
}

// TestDenialsAreFair: an allocation that sends to many ports does not keep the denied flows of others from being
// listed, and its packets that are not listed are counted.
func TestDenialsAreFair(t *testing.T) {
	testhost.EachElsewhere(t, []string{"ptp", "bridge"}, func(t *testing.T, main string) {
		h := newHost(t, configurator.EngineNative)
		h.Network("net", policed(main, testbed.Dual)...)
		flooder, victim := h.Alloc("flooder"), h.Alloc("victim")
		flooder.Policy = mustPolicy(t, `{"presets":["isolated"],"egress":{"rules":[{"peers":[{"allocation":"victim"}]}]}}`)
		victim.Policy = mustPolicy(t, `{"presets":["isolated"]}`)
		from, to := h.SetUp(flooder), h.SetUp(victim)
		r := openRules(t)
		for i, pair := range [][2]string{{from.Address, to.Address}, {from.AddressIPv6, to.AddressIPv6}} {
			f, v := netip.MustParseAddr(pair[0]), netip.MustParseAddr(pair[1])
			outside := []netip.Addr{testhost.Outside4.Addr(), testhost.Outside6.Addr()}[i]
			const many = 20000
			for _, target := range []netip.Addr{outside, v} { // denied by its own policy, and by that of the victim
				var packets [][]byte
				for port := range uint16(many) {
					packets = append(packets, packet(f, target, unix.IPPROTO_UDP, udpPacket(netip.AddrPortFrom(f, 4000), netip.AddrPortFrom(target, 1+port), nil)))
				}
				sendPackets(t, flooder.Netns, target, packets...)
			}
			sendPackets(t, victim.Netns, outside, packet(v, outside, unix.IPPROTO_TCP, tcpPacket(v, outside, 2, nil)))
			unlisted, err := r.Unlisted(t.Context())
			require.NoError(t, err)
			for _, one := range []struct {
				of      netip.Addr
				ingress bool
			}{{f, false}, {v, true}} {
				listed := slices.DeleteFunc(denialsOf(t, r, one.of), func(d ruleset.Denial) bool { return d.Ingress != one.ingress })
				require.GreaterOrEqual(t, len(listed), 1024)
				require.Less(t, len(listed), 1700)
				at := slices.IndexFunc(unlisted, func(u ruleset.Unlisted) bool { return u.Address == one.of && u.Ingress == one.ingress })
				require.GreaterOrEqual(t, at, 0)
				sum := unlisted[at].Packets
				for _, d := range listed {
					sum += d.Packets
				}
				require.GreaterOrEqual(t, sum, uint64(many))
				require.Less(t, sum, uint64(many+100), "each packet counts once")
			}
			found := slices.DeleteFunc(denialsOf(t, r, v), func(d ruleset.Denial) bool { return d.Ingress })
			require.Len(t, found, 1)
			require.Equal(t, ruleset.Denial{Address: v, Peer: outside, Protocol: unix.IPPROTO_TCP, Port: 99, Count: found[0].Count}, found[0])
			require.EqualValues(t, 1, found[0].Packets)
		}
		h.TearDown(flooder, victim)
	})
}

// TestDenialsOfThePeer: when an allocation is torn down, the flows that policies of others have denied to it are no
// longer listed: another allocation may get its address.
func TestDenialsOfThePeer(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	h.Network("net", policed("ptp", testbed.Dual)...)
	scanner, victim := h.Alloc("scanner"), h.Alloc("victim")
	victim.Policy = mustPolicy(t, `{"presets":["isolated"]}`)
	from, to := h.SetUp(scanner), h.SetUp(victim)
	r := openRules(t)
	for _, pair := range [][2]string{{from.Address, to.Address}, {from.AddressIPv6, to.AddressIPv6}} {
		f, v := netip.MustParseAddr(pair[0]), netip.MustParseAddr(pair[1])
		sendPackets(t, scanner.Netns, v, packet(f, v, unix.IPPROTO_TCP, tcpPacket(f, v, 2, nil)))
		require.Len(t, denialsOf(t, r, v), 1)
	}
	h.TearDown(scanner)
	for _, address := range []string{to.Address, to.AddressIPv6} {
		require.Empty(t, denialsOf(t, r, netip.MustParseAddr(address)))
	}
	h.TearDown(victim)
}

// TestShortPacketsAreListed: denied packets that end before the ports are listed with the port 0, and so are packets
// that connection tracking cannot classify because they are truncated.
func TestShortPacketsAreListed(t *testing.T) {
	testhost.EachElsewhere(t, []string{"ptp", "bridge"}, func(t *testing.T, main string) {
		h := newHost(t, configurator.EngineNative)
		h.Network("net", policed(main, testbed.Dual)...)
		a, peer := h.Alloc("a"), h.Alloc("peer")
		a.Policy = mustPolicy(t, `{"presets":["isolated"]}`)
		from, to := h.SetUp(a), h.SetUp(peer)
		r := openRules(t)
		for _, pair := range [][2]string{{from.Address, to.Address}, {from.AddressIPv6, to.AddressIPv6}} {
			f, p := netip.MustParseAddr(pair[0]), netip.MustParseAddr(pair[1])
			data := binary.BigEndian.AppendUint16([]byte{0x13, 0x88, 0, 99}, 0)
			for _, one := range []struct {
				protocol byte
				length   int
				port     uint16
			}{
				{253, 0, 0}, {253, 3, 0}, {unix.IPPROTO_TCP, 3, 0}, {unix.IPPROTO_UDP, 2, 0}, {unix.IPPROTO_SCTP, 1, 0},
				{unix.IPPROTO_TCP, 6, 99}, {unix.IPPROTO_UDP, 6, 99}, {unix.IPPROTO_SCTP, 4, 99},
			} {
				require.NoError(t, r.ForgetDenials(t.Context(), []netip.Addr{f}, false))
				sendPackets(t, a.Netns, p, packet(f, p, one.protocol, data[:one.length]))
				name := fmt.Sprintf("%d bytes of protocol %d to %s", one.length, one.protocol, p)
				found := denialsOf(t, r, f)
				require.Len(t, found, 1, name)
				require.Equal(t, []uint16{uint16(one.protocol), one.port}, []uint16{uint16(found[0].Protocol), found[0].Port}, name)
				require.Equal(t, p, found[0].Peer, name)
			}
			require.NoError(t, r.ForgetDenials(t.Context(), []netip.Addr{f}, false))
			sendPackets(t, a.Netns, p, packet(f, p, unix.IPPROTO_TCP, tcpPacket(f, p, 0x04, nil)))
			require.Empty(t, denialsOf(t, r, f), "a reset of no connection is not listed")
		}
		h.TearDown(a, peer)
	})
}
