package policy

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// Probes of SCTP (RFC 9260) over raw sockets: a policy, and connection
// tracking, see the packets that they see of a kernel with SCTP sockets, which
// not every kernel has.

const (
	chunkInit    = 1
	chunkInitAck = 2
	sctpHeader   = 12 // ports, verification tag and checksum
)

var sctpPorts atomic.Uint32

// sctpPort returns a source port that no other probe of the process has.
func sctpPort() uint16 { return uint16(20000 + sctpPorts.Add(1)%40000) }

// sctpPacket returns a packet with a chunk that begins an association, or
// answers that. Both have the same parameters: a tag, a window, the numbers of
// streams and a sequence number.
func sctpPacket(chunk byte, from, to uint16, tag uint32) []byte {
	p := binary.BigEndian.AppendUint32(nil, uint32(from)<<16|uint32(to))
	p = binary.BigEndian.AppendUint32(p, tag)
	p = append(p, 0, 0, 0, 0, chunk, 0, 0, 20)
	p = binary.BigEndian.AppendUint32(p, uint32(from)<<16|1)
	p = append(p, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1)
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	return p
}

// sctpHeartbeat returns a packet with a heartbeat, with which connection tracking begins an association as with
// the first packet.
func sctpHeartbeat(from, to uint16, data []byte) []byte {
	const heartbeat, information = 4, 1
	p := binary.BigEndian.AppendUint32(nil, uint32(from)<<16|uint32(to))
	p = append(p, 0, 0, 0, 7, 0, 0, 0, 0, heartbeat, 0)
	p = binary.BigEndian.AppendUint16(p, uint16(8+len(data)))
	p = binary.BigEndian.AppendUint16(p, information)
	p = append(binary.BigEndian.AppendUint16(p, uint16(4+len(data))), data...)
	p = append(p, make([]byte, -len(p)&3)...)
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	return p
}

// sctpChunk returns the ports and the kind of the first chunk of a packet,
// which over IPv4 begins with the header of IP.
func sctpChunk(packet []byte, ipv4 bool) (from, to uint16, chunk byte, rest []byte) {
	if ipv4 && len(packet) > 0 {
		packet = packet[min(len(packet), 4*int(packet[0]&0xf)):]
	}
	if len(packet) < sctpHeader+8 {
		return 0, 0, 0, nil
	}
	return binary.BigEndian.Uint16(packet), binary.BigEndian.Uint16(packet[2:]), packet[sctpHeader], packet[sctpHeader:]
}

// readInitAck reports whether the probe is answered. A raw socket receives the
// answers to other probes too.
func (f *flow) readInitAck() bool {
	data := make([]byte, 200)
	for {
		n, err := unix.Read(f.fd, data)
		if err != nil {
			return false
		}
		if _, to, chunk, _ := sctpChunk(data[:n], f.to.Addr().Is4()); chunk == chunkInitAck && to == f.port {
			return true
		}
	}
}

// answerInits answers the first packets of associations to ports of the
// namespace of the thread, each from the address to which it was sent.
func answerInits(t testing.TB, ports ...int) error {
	for _, network := range []string{"ip4:132", "ip6:132"} {
		c, err := net.ListenPacket(network, "")
		if err != nil {
			return err
		}
		t.Cleanup(func() { c.Close() })
		conn, level, option := c.(*net.IPConn), unix.IPPROTO_IP, unix.IP_PKTINFO
		if network == "ip6:132" {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
		}
		raw, err := conn.SyscallConn()
		if err != nil {
			return err
		}
		var set error
		err = raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), level, option, 1) })
		if err := errors.Join(err, os.NewSyscallError("setsockopt", set)); err != nil {
			return err
		}
		go answerInitsOf(conn, network == "ip4:132", ports)
	}
	return nil
}

func answerInitsOf(c *net.IPConn, ipv4 bool, ports []int) {
	data, info := make([]byte, 200), make([]byte, 128)
	for {
		n, m, _, from, err := c.ReadMsgIP(data, info)
		if err != nil {
			return
		}
		port, own, chunk, rest := sctpChunk(data[:n], ipv4)
		if chunk == chunkInit && slices.Contains(ports, int(own)) {
			_, _, _ = c.WriteMsgIP(sctpPacket(chunkInitAck, own, port, binary.BigEndian.Uint32(rest[4:])), info[:m], from)
		}
	}
}
