package rtnl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Announce tells the neighbours of a link, which is up, the MAC of addresses: by gratuitous ARP (RFC 5227, section 3) and
// by unsolicited neighbour advertisements (RFC 4861, section 7.2.6), one frame per address. Neighbours update their
// entries of the addresses, if they have any.
func (s *Sandbox) Announce(index int, mac net.HardwareAddr, ips ...net.IP) error {
	var fd int
	err := s.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // it receives nothing
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return fmt.Errorf("announce addresses: %w", err)
	}
	// The kernel waits for an RCU grace period, some 15 ms, before it closes a packet socket (packet_release).
	defer func() { go unix.Close(fd) }()
	var errs []error
	for _, ip := range ips {
		frame := announcement(mac, ip)
		to := &unix.SockaddrLinklayer{Ifindex: index, Protocol: binary.NativeEndian.Uint16(frame[12:])}
		if err := unix.Sendto(fd, frame, 0, to); err != nil {
			errs = append(errs, fmt.Errorf("announce address %s: %w", ip, os.NewSyscallError("sendto", err)))
		}
	}
	return errors.Join(errs...)
}

// announcement returns the frame that announces an address.
func announcement(mac net.HardwareAddr, ip net.IP) []byte {
	if v4 := []byte(ip.To4()); v4 != nil {
		const request = "\x00\x01\x08\x00\x06\x04\x00\x01" // for the MAC of an IPv4 address (RFC 826)
		broadcast := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
		return ethernet(broadcast, mac, unix.ETH_P_ARP, []byte(request), mac, v4, make([]byte, 6), v4)
	}
	const (
		advertisement = 136
		override      = 0x20
		targetLink    = 2 // the option with the MAC of the target
		hopLimit      = 255
	)
	target, allNodes := []byte(ip.To16()), []byte(net.IPv6linklocalallnodes)
	message := slices.Concat([]byte{advertisement, 0, 0, 0, override, 0, 0, 0}, target, []byte{targetLink, 1}, mac)
	length := binary.BigEndian.AppendUint16(nil, uint16(len(message)))
	pseudo := slices.Concat(target, allNodes, []byte{0, 0}, length, []byte{0, 0, 0, unix.IPPROTO_ICMPV6}, message)
	binary.BigEndian.PutUint16(message[2:], checksum(pseudo))
	header := slices.Concat([]byte{6 << 4, 0, 0, 0}, length, []byte{unix.IPPROTO_ICMPV6, hopLimit})
	return ethernet([]byte{0x33, 0x33, 0, 0, 0, 1}, mac, unix.ETH_P_IPV6, header, target, allNodes, message)
}

// ethernet returns a frame with the parts of its content.
func ethernet(to, from []byte, protocol uint16, content ...[]byte) []byte {
	return slices.Concat(to, from, binary.BigEndian.AppendUint16(nil, protocol), slices.Concat(content...))
}

// checksum returns the Internet checksum (RFC 1071) of an even number of bytes.
func checksum(data []byte) uint16 {
	var sum uint32
	for i := 0; i < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
