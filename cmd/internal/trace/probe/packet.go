package probe

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Packet is what a trace shows of a packet.
type Packet struct {
	Source, Destination netip.AddrPort
	Flags               uint8 // of TCP
}

// Flags of TCP.
const (
	flagSYN = 0x02
	flagRST = 0x04
	flagACK = 0x10
)

// Accepts reports whether a packet is the answer of a TCP socket that listens.
func (p Packet) Accepts() bool { return p.Flags&(flagSYN|flagACK) == flagSYN|flagACK }

// parse reads the headers of a packet.
func parse(network, transport []byte) (p Packet) {
	var source, destination netip.Addr
	switch {
	case len(network) >= 20 && network[0]>>4 == 4:
		source, _ = netip.AddrFromSlice(network[12:16])
		destination, _ = netip.AddrFromSlice(network[16:20])
	case len(network) >= 40 && network[0]>>4 == 6:
		source, _ = netip.AddrFromSlice(network[8:24])
		destination, _ = netip.AddrFromSlice(network[24:40])
	}
	if len(transport) >= 4 {
		p.Source = netip.AddrPortFrom(source, binary.BigEndian.Uint16(transport))
		p.Destination = netip.AddrPortFrom(destination, binary.BigEndian.Uint16(transport[2:]))
	}
	if len(transport) >= 14 {
		p.Flags = transport[13]
	}
	return p
}

// segment returns the TCP segment or UDP datagram of a probe, with its header.
func (id identity) segment(source, destination netip.AddrPort, flags uint8) []byte {
	data := binary.BigEndian.AppendUint16(nil, source.Port())
	data = binary.BigEndian.AppendUint16(data, destination.Port())
	checksumAt := 16
	if id.protocol == unix.IPPROTO_UDP {
		checksumAt = 6
		data = binary.BigEndian.AppendUint16(data, uint16(8+len(id.cookie)))
		data = append(append(data, 0, 0), id.cookie...)
	} else {
		const window, words = 0xfaf0, 5 // of the header
		sequence := id.sequence
		if flags&flagRST != 0 {
			sequence++
		}
		data = binary.BigEndian.AppendUint32(data, sequence)
		data = append(data, 0, 0, 0, 0, words<<4, flags)
		data = binary.BigEndian.AppendUint16(data, window)
		data = append(data, 0, 0, 0, 0)
	}
	pseudo := append(source.Addr().AsSlice(), destination.Addr().AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(data)))
	pseudo = append(pseudo, 0, 0, 0, id.protocol)
	sum := checksum(append(pseudo, data...))
	if sum == 0 && id.protocol == unix.IPPROTO_UDP {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(data[checksumAt:], sum)
	return data
}

// checksum is the checksum of RFC 1071.
func checksum(data []byte) uint16 {
	var sum uint32
	for ; len(data) >= 2; data = data[2:] {
		sum += uint32(binary.BigEndian.Uint16(data))
	}
	if len(data) == 1 {
		sum += uint32(data[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// datagram puts a header of IP in front of a segment.
func datagram(source, destination netip.Addr, protocol uint8, segment []byte) []byte {
	const ttl = 64
	var h []byte
	if source.Is4() {
		h = []byte{4<<4 | 5, 0}
		h = binary.BigEndian.AppendUint16(h, uint16(20+len(segment)))
		h = append(h, 0, 0, 0x40, 0, ttl, protocol, 0, 0) // "don't fragment"
		h = append(append(h, source.AsSlice()...), destination.AsSlice()...)
		binary.BigEndian.PutUint16(h[10:], checksum(h))
	} else {
		h = []byte{6 << 4, 0, 0, 0}
		h = binary.BigEndian.AppendUint16(h, uint16(len(segment)))
		h = append(h, protocol, ttl)
		h = append(append(h, source.AsSlice()...), destination.AsSlice()...)
	}
	return append(h, segment...)
}
