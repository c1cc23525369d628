package builtin_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/sandbox"
)

// Frames for the tests of the source guard. The name of a frame is its end.

type station struct {
	mac       net.HardwareAddr
	ip4, ip6  netip.Addr
	linkLocal netip.Addr
}

func ether(to, from net.HardwareAddr, kind uint16, content ...[]byte) []byte {
	return slices.Concat(to, from, binary.BigEndian.AppendUint16(nil, kind), slices.Concat(content...))
}

// ipv4 returns a UDP packet to port 7070.
func ipv4(from, to netip.Addr, text string) []byte {
	h := slices.Concat([]byte{0x45, 0, 0, byte(28 + len(text)), 0, 1, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, from.AsSlice(), to.AsSlice())
	setChecksum(h)
	return slices.Concat(h, []byte{0x30, 0x39, 0x1b, 0x9e, 0, byte(8 + len(text)), 0, 0}, []byte(text))
}

// ipv4Of returns a packet of a protocol, at an offset into the whole one, in units of 8 bytes.
func ipv4Of(protocol, offset byte, from, to netip.Addr, content ...byte) []byte {
	h := ipv4(from, to, "")[:20]
	h[3], h[7], h[9] = byte(20+len(content)), offset, protocol
	setChecksum(h)
	return append(h, content...)
}

func setChecksum(header []byte) {
	header[10], header[11] = 0, 0
	var sum uint32
	for i := 0; i < len(header); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(header[i:]))
	}
	binary.BigEndian.PutUint16(header[10:], ^uint16(sum+sum>>16))
}

func ipv6(from, to netip.Addr, next byte, content ...[]byte) []byte {
	body := slices.Concat(content...)
	return slices.Concat([]byte{0x60, 0, 0, 0, 0, byte(len(body)), next, 255}, from.AsSlice(), to.AsSlice(), body)
}

var udpHeader = []byte{0x30, 0x39, 0x1b, 0x9e, 0, 8, 0, 0}

// icmp6 returns a message of ICMPv6 with a target, as those of neighbour discovery have.
func icmp6(kind byte, target netip.Addr) []byte {
	return slices.Concat([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, target.AsSlice())
}

func arp(operation byte, mac net.HardwareAddr, sender, target netip.Addr) []byte {
	return slices.Concat([]byte{0, 1, 8, 0, 6, 4, 0, operation}, mac, sender.AsSlice(), make([]byte, 6), target.AsSlice())
}

func tagged(inner []byte) []byte {
	return slices.Concat(inner[:12], []byte{0x81, 0, 0, 7}, inner[12:])
}

// openPackets opens a packet socket on eth0 of a sandbox, which receives everything there.
func openPackets(t *testing.T, netns string) (fd int) {
	t.Helper()
	s, err := sandbox.Open(netns)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Do(func() error {
		fd, err = packetsOn("eth0")
		return err
	}))
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}))
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func packetsOn(name string) (fd int, err error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return -1, err
	}
	all := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
	fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all))
	if err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Index}); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// namedFrame is a frame that another station may have or have not received.
type namedFrame struct {
	name  string
	frame []byte
	// own reports that a guarded port may send it.
	own bool
}

// whole returns the frame with its name. The bridge removes what follows an IP packet.
func (f *namedFrame) whole() []byte {
	whole := append(slices.Clone(f.frame), f.name...)
	switch packet := whole[14:]; binary.BigEndian.Uint16(f.frame[12:]) {
	case unix.ETH_P_IP:
		binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)))
		setChecksum(packet[:20])
	case unix.ETH_P_IPV6:
		binary.BigEndian.PutUint16(packet[4:], uint16(len(packet)-40))
	}
	return whole
}

// arrived sends frames over one socket and returns the names of those that another receives,
// up to the last one.
func arrived(t *testing.T, out, in int, frames []namedFrame) (names []string) {
	t.Helper()
	for _, f := range frames {
		_, err := unix.Write(out, f.whole())
		require.NoError(t, err, f.name)
	}
	buf := make([]byte, 2000)
	last := frames[len(frames)-1].name
	for len(names) == 0 || names[len(names)-1] != last {
		n, err := unix.Read(in, buf)
		require.NoError(t, err, "%v", names)
		for _, f := range frames {
			if name := []byte(f.name); n > len(name) && string(buf[n-len(name):n]) == f.name && !slices.Contains(names, f.name) {
				names = append(names, f.name)
			}
		}
	}
	return names
}

func named(frames []namedFrame, own bool) (names []string) {
	for _, f := range frames {
		if f.own || !own {
			names = append(names, f.name)
		}
	}
	return names
}

// framesOf returns frames from one station, in its own name and in that of a neighbour, to
// the neighbour. Names end in a full stop, so that none is the end of another.
func framesOf(own, neighbour station) []namedFrame {
	zero4, zero6, foreign := netip.IPv4Unspecified(), netip.IPv6Unspecified(), netip.MustParseAddr("2001:db8::7")
	to := func(kind uint16, content ...[]byte) []byte { return ether(neighbour.mac, own.mac, kind, content...) }
	as := func(mac net.HardwareAddr, kind uint16, content ...[]byte) []byte {
		return ether(neighbour.mac, mac, kind, content...)
	}
	other := net.HardwareAddr{2, 0xbb, 0, 0, 0, 7}
	const ip4, ip6, arps = unix.ETH_P_IP, unix.ETH_P_IPV6, unix.ETH_P_ARP
	icmp := byte(unix.IPPROTO_ICMPV6)
	hopByHop := []byte{icmp, 0, 5, 2, 0, 0, 1, 0}
	// A first fragment has the offset 0, and others follow. The lengths with the names are no multiples
	// of 8, so a host that tracks connections does not wait for the others. Options of 64 bytes end behind
	// the frame.
	fragment := func(next, offset byte, content ...[]byte) []byte {
		more := byte(1)
		return to(ip6, ipv6(own.ip6, neighbour.ip6, unix.IPPROTO_FRAGMENT, append([][]byte{{next, 0, offset, more, 0, 0, 0, 7}}, content...)...))
	}
	// authentication is an authentication header (RFC 4302).
	authentication := func(next byte) []byte { return []byte{next, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1} }
	group := slices.Concat([]byte{0, 10, 0, 0}, netip.MustParseAddr("239.1.1.1").AsSlice())
	igmp := func(kind byte) []byte {
		return to(ip4, ipv4Of(unix.IPPROTO_IGMP, 0, own.ip4, neighbour.ip4, append([]byte{kind}, group...)...))
	}
	routers := func(next byte, content ...[]byte) []byte {
		return to(ip6, ipv6(own.linkLocal, neighbour.ip6, next, content...))
	}
	longOptions := []byte{icmp, 7, 1, 60}
	nd := func(from, target netip.Addr, kind byte) []byte {
		return to(ip6, ipv6(from, neighbour.ip6, icmp, icmp6(kind, target)))
	}
	return []namedFrame{
		{".another MAC", as(other, ip4, ipv4(own.ip4, neighbour.ip4, "")), false},
		{".the neighbour's MAC", as(neighbour.mac, ip4, ipv4(own.ip4, neighbour.ip4, "")), false},
		{".the neighbour's IPv4", to(ip4, ipv4(neighbour.ip4, neighbour.ip4, "")), false},
		{".own IPv4", to(ip4, ipv4(own.ip4, neighbour.ip4, "")), true},
		{".a DHCP request", to(ip4, ipv4(zero4, netip.MustParseAddr("255.255.255.255"), "")), false},
		{".an ARP reply for the neighbour", to(arps, arp(2, own.mac, neighbour.ip4, own.ip4)), false},
		{".a gratuitous ARP for the neighbour", to(arps, arp(1, own.mac, neighbour.ip4, neighbour.ip4)), false},
		{".an ARP reply with the neighbour's MAC", to(arps, arp(2, neighbour.mac, own.ip4, own.ip4)), false},
		{".an ARP reply with a long address", to(arps, append(arp(2, own.mac, own.ip4, own.ip4)[:4], 7, 4, 0, 2)), false},
		{".own ARP request", to(arps, arp(1, own.mac, own.ip4, neighbour.ip4)), true},
		{".own ARP reply", to(arps, arp(2, own.mac, own.ip4, neighbour.ip4)), true},
		{".an ARP probe", to(arps, arp(1, own.mac, zero4, own.ip4)), true},
		{".an ARP probe for the neighbour", to(arps, arp(1, own.mac, zero4, neighbour.ip4)), false},
		{".the neighbour's IPv6", to(ip6, ipv6(neighbour.ip6, neighbour.ip6, unix.IPPROTO_UDP, udpHeader)), false},
		{".the neighbour's link-local", to(ip6, ipv6(neighbour.linkLocal, neighbour.ip6, unix.IPPROTO_UDP, udpHeader)), false},
		{".a foreign IPv6", to(ip6, ipv6(foreign, neighbour.ip6, unix.IPPROTO_UDP, udpHeader)), false},
		{".no IPv6", to(ip6, ipv6(zero6, neighbour.ip6, unix.IPPROTO_UDP, udpHeader)), false},
		{".own IPv6", to(ip6, ipv6(own.ip6, neighbour.ip6, unix.IPPROTO_UDP, udpHeader)), true},
		{".own link-local", to(ip6, ipv6(own.linkLocal, neighbour.ip6, unix.IPPROTO_UDP, udpHeader)), true},
		{".NA for the neighbour", nd(own.ip6, neighbour.ip6, 136), false},
		{".NA for the neighbour behind another header", to(ip6, ipv6(own.ip6, neighbour.ip6, 0, hopByHop, icmp6(136, neighbour.ip6))), false},
		{".NA in the name of the neighbour", nd(neighbour.ip6, own.ip6, 136), false},
		{".own NA", nd(own.ip6, own.ip6, 136), true},
		{".own NA from link-local", nd(own.linkLocal, own.ip6, 136), true},
		{".own NS", nd(own.ip6, neighbour.ip6, 135), true},
		{".DAD for the neighbour", nd(zero6, neighbour.ip6, 135), false},
		{".own DAD", nd(zero6, own.ip6, 135), true},
		{".MLD", to(ip6, ipv6(zero6, neighbour.ip6, 0, hopByHop, icmp6(143, zero6))), true},
		{".own MLD", routers(0, hopByHop, icmp6(143, zero6)), true},
		{".MLD query", routers(0, hopByHop, icmp6(130, zero6)), false},
		{".MLD query without options", routers(icmp, icmp6(130, zero6)), false},
		{".MLD query behind authentication", routers(0, []byte{unix.IPPROTO_AH, 0, 5, 2, 0, 0, 1, 0}, authentication(icmp), icmp6(130, zero6)), false},
		{".MLD query behind authentication in a fragment", fragment(0, 0, []byte{unix.IPPROTO_AH, 0, 5, 2, 0, 0, 1, 0}, authentication(icmp), icmp6(130, zero6)), false},
		{".authentication", routers(unix.IPPROTO_AH, authentication(unix.IPPROTO_UDP), udpHeader), true},
		{".multicast router advertisement", routers(icmp, icmp6(151, zero6)), false},
		{".multicast router solicitation", routers(icmp, icmp6(152, zero6)), true},
		{".multicast router termination", routers(icmp, icmp6(153, zero6)), false},
		{".PIM over IPv6", routers(unix.IPPROTO_PIM, []byte{0x20, 0, 0, 0}), false},
		{".PIM", to(ip4, ipv4Of(unix.IPPROTO_PIM, 0, own.ip4, neighbour.ip4, 0x20, 0, 0, 0)), false},
		{".IGMP query", igmp(0x11), false},
		{".multicast router advertisement of IGMP", igmp(0x30), false},
		{".multicast router termination of IGMP", igmp(0x32), false},
		{".multicast router solicitation of IGMP", igmp(0x31), true},
		{".IGMPv1 report", igmp(0x12), true},
		{".IGMPv2 report", igmp(0x16), true},
		{".IGMPv3 report", igmp(0x22), true},
		{".IGMP leave", igmp(0x17), true},
		{".router advertisement", nd(own.linkLocal, zero6, 134), false},
		{".redirect", nd(own.linkLocal, foreign, 137), false},
		{".echo", nd(own.ip6, zero6, 128), true},
		{".first fragment of an echo", fragment(icmp, 0, icmp6(128, zero6)), true},
		{".later fragment of an echo", fragment(icmp, 5, icmp6(136, neighbour.ip6)), true},
		{".first fragment of an NA for the neighbour", fragment(icmp, 0, icmp6(136, neighbour.ip6)), false},
		{".first fragment of an NA without a target", fragment(icmp, 0, icmp6(136, own.ip6)[:8]), false},
		{".first fragment without a type", fragment(unix.IPPROTO_DSTOPTS, 0, longOptions), false},
		{".later fragment behind headers", fragment(unix.IPPROTO_DSTOPTS, 5, longOptions), false},
		{".a tagged frame", tagged(to(ip4, ipv4(own.ip4, neighbour.ip4, ""))), false},
		{".RARP", to(0x8035, arp(3, own.mac, own.ip4, own.ip4)), false},
		{".another protocol", to(testProtocol), false},
		{".the end", to(ip4, ipv4(own.ip4, neighbour.ip4, "")), true},
	}
}
