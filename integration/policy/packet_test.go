package policy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/testbed"
)

// packet returns an IP packet from one address to another, without extension headers.
func packet(from, to netip.Addr, protocol byte, payload []byte) []byte {
	const hops = 64
	if from.Is6() {
		p := binary.BigEndian.AppendUint16([]byte{0x60, 0, 0, 0}, uint16(len(payload)))
		return slices.Concat(append(p, protocol, hops), from.AsSlice(), to.AsSlice(), payload)
	}
	p := binary.BigEndian.AppendUint16([]byte{0x45, 0}, uint16(20+len(payload)))
	p = append(p, 0, 0, 0, 0, hops, protocol, 0, 0) // the kernel fills in the identification and the checksum
	return slices.Concat(p, from.AsSlice(), to.AsSlice(), payload)
}

// checksummed sets the checksum of a TCP, UDP or ICMP packet at an offset. That of ICMP is without addresses.
func checksummed(from, to netip.Addr, protocol byte, payload []byte, at int) []byte {
	sum := uint32(0)
	add := func(data []byte) {
		for i, b := range data {
			sum += uint32(b) << (8 * uint(1-i%2))
		}
	}
	if protocol != unix.IPPROTO_ICMP {
		add(from.AsSlice())
		add(to.AsSlice())
		add([]byte{0, protocol})
		add(binary.BigEndian.AppendUint16(nil, uint16(len(payload))))
	}
	add(payload)
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(payload[at:], ^uint16(sum))
	return payload
}

func udpPacket(from, to netip.AddrPort, data []byte) []byte {
	p := binary.BigEndian.AppendUint16(nil, from.Port())
	p = binary.BigEndian.AppendUint16(p, to.Port())
	p = binary.BigEndian.AppendUint16(p, uint16(8+len(data)))
	return checksummed(from.Addr(), to.Addr(), unix.IPPROTO_UDP, slices.Concat(p, []byte{0, 0}, data), 6)
}

func tcpPacket(from, to netip.Addr, flags byte, data []byte) []byte {
	p := []byte{0x13, 0x88, 0, 99, 0, 0, 0, 5, 0, 0, 0, 9, 0x50, flags, 0xff, 0, 0, 0, 0, 0}
	return checksummed(from, to, unix.IPPROTO_TCP, append(p, data...), 16)
}

func icmpPacket(from, to netip.Addr, kind byte, data []byte) []byte {
	protocol := byte(unix.IPPROTO_ICMP)
	if from.Is6() {
		protocol = unix.IPPROTO_ICMPV6
	}
	return checksummed(from, to, protocol, append([]byte{kind, 0, 0, 0, 0, 1, 0, 1}, data...), 2)
}

// sendPackets sends IP packets from a namespace, with their headers as they are.
func sendPackets(t testing.TB, netns string, to netip.Addr, packets ...[]byte) {
	t.Helper()
	family := unix.AF_INET
	if to.Is6() {
		family = unix.AF_INET6
	}
	testbed.Within(t, netns, func() error {
		fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, p := range packets {
			if err := unix.Sendto(fd, p, 0, sockaddr(netip.AddrPortFrom(to, 0))); err != nil && !errors.Is(err, unix.EPERM) {
				return err
			}
		}
		return nil
	})
}

// sniffer returns a socket that receives all packets that arrive at eth0 in a namespace.
func sniffer(t testing.TB, netns string) (fd int) {
	t.Helper()
	const all = 0x0300 // ETH_P_ALL in network byte order
	testbed.Within(t, netns, func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: eth0.Index})
	})
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 25_000}))
	return fd
}

// requirePacket sends packets, and requires that one with the token arrives at the sniffer, or that none does.
func requirePacket(t testing.TB, want bool, name, token string, at int, send func()) {
	t.Helper()
	arrived := sendUntil(want, send, func() (arrived, empty bool) {
		buf := make([]byte, 2048)
		n, from, err := unix.Recvfrom(at, buf, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			return false, true
		}
		require.NoError(t, err)
		outgoing := from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING
		return !outgoing && bytes.Contains(buf[:n], []byte(token)), false
	})
	require.Equal(t, want, arrived, "%s", name)
}
