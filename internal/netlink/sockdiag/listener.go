package sockdiag

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Listener is a TCP socket that listens on a port, or a UDP socket that receives
// packets of any sender on it.
type Listener struct {
	Protocol uint8 // unix.IPPROTO_TCP or unix.IPPROTO_UDP
	// Address is the address to which the socket is bound; the unspecified address
	// of a family stands for every address of that family.
	Address netip.AddrPort
	// Only6 is true for an IPv6 socket that does not accept IPv4.
	Only6 bool
	UID   uint32 // of the user who made it
	Inode uint32 // of the socket; 0 if no process has it open
}

// Takes reports whether packets to an address of the host can reach the listener. The
// unspecified address of a family stands for any address of that family.
func (l *Listener) Takes(ip netip.Addr) bool {
	own := l.Address.Addr()
	if own.IsUnspecified() {
		return own.Is4() == ip.Is4() || own.Is6() && !l.Only6
	}
	return own == ip || ip.IsUnspecified() && own.Is4() == ip.Is4()
}

// Sizes and types of linux/inet_diag.h.
const (
	socketIDSize = 48 // struct inet_diag_sockid
	answerSize   = 72 // struct inet_diag_msg

	attributeBytecode = 1  // INET_DIAG_REQ_BYTECODE
	attributeOnly6    = 11 // INET_DIAG_SKV6ONLY
	attributeMark     = 15 // INET_DIAG_MARK
)

// The states of TCP, which the kernel uses for UDP sockets as well.
const (
	stateClosed = 7  // of a UDP socket that is not connected
	stateListen = 10 // of a TCP socket
)

// request returns the body of a request, a struct inet_diag_req_v2, for the sockets of
// a protocol and a family that receive on one of the ports. The ports must be sorted.
func request(protocol, family uint8, ports []uint16) func(*sock.Requests) {
	state := uint32(1 << stateListen)
	if protocol == unix.IPPROTO_UDP {
		state = 1 << stateClosed
	}
	return func(r *sock.Requests) {
		r.Append(family, protocol, 0, 0)
		putState(r, state)
		putSocketID(r, ports)
		putFilter(r, ports)
	}
}

// tcpRequest returns the body of a TCPDIAG_GETSOCK request, a struct inet_diag_req. The
// kernel answers it with the TCP sockets of both families.
func tcpRequest(ports []uint16) func(*sock.Requests) {
	return func(r *sock.Requests) {
		r.Append(0, 0, 0, 0)
		putSocketID(r, ports)
		putState(r, 1<<stateListen)
		putState(r, 0) // idiag_dbs
		putFilter(r, ports)
	}
}

func putState(r *sock.Requests, states uint32) {
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], states)
	r.Append(b[:]...)
}

// putSocketID appends a struct inet_diag_sockid. It contains the port if there is only
// one, because the kernel compares that first.
func putSocketID(r *sock.Requests, ports []uint16) {
	var id [socketIDSize]byte
	if len(ports) == 1 {
		binary.BigEndian.PutUint16(id[:], ports[0])
	}
	r.Append(id[:]...)
}

// putFilter appends a filter if there are several ports.
func putFilter(r *sock.Requests, ports []uint16) {
	if len(ports) > 1 {
		r.Attribute(attributeBytecode, bytecode(ranges(ports)))
	}
}

// portRange is a range of consecutive ports.
type portRange struct{ first, last uint16 }

// mostRanges is the maximum number of ranges in the program that the kernel runs for
// each socket.
const mostRanges = 64

// ranges returns the ranges of sorted ports. If these are more than mostRanges, it
// returns one range that contains all ports.
func ranges(ports []uint16) []portRange {
	var rows []portRange
	for _, p := range ports {
		if last := len(rows) - 1; last >= 0 && int(p) <= int(rows[last].last)+1 {
			rows[last].last = p
		} else {
			rows = append(rows, portRange{p, p})
		}
	}
	if len(rows) > mostRanges {
		return []portRange{{ports[0], ports[len(ports)-1]}}
	}
	return rows
}

// Instructions of the kernel's filter.
const (
	jump    = 1 // INET_DIAG_BC_JMP
	atLeast = 2 // INET_DIAG_BC_S_GE
	atMost  = 3 // INET_DIAG_BC_S_LE

	instruction = 4 // bytes
	perRange    = 2*2*instruction + instruction
)

// bytecode returns a filter that accepts the ports of the ranges. Each instruction
// contains two distances in bytes to the next instruction, one for a condition that
// holds and one for a condition that does not. A jump to the end of the program accepts
// a socket; a jump one instruction beyond the end rejects it.
func bytecode(ranges []portRange) []byte {
	b := make([]byte, 0, len(ranges)*perRange)
	add := func(code, yes uint8, no int) {
		b = append(b, code, yes)
		b = binary.NativeEndian.AppendUint16(b, uint16(no))
	}
	for i, r := range ranges {
		next, end := perRange, (len(ranges)-i)*perRange
		if i == len(ranges)-1 {
			next = perRange + instruction
		}
		add(atLeast, 2*instruction, next)
		add(0, 0, int(r.first))
		add(atMost, 2*instruction, next-2*instruction)
		add(0, 0, int(r.last))
		add(jump, instruction, end-4*instruction)
	}
	return b
}

// parse reads one answer. It compares the port again, because some kernels filter less
// than requested, and leaves out the sockets of Unused.
func parse(answer []byte, protocol uint8, ports []uint16) (l Listener, ok bool) {
	if len(answer) < answerSize {
		return l, false
	}
	port := binary.BigEndian.Uint16(answer[4:])
	if _, wanted := slices.BinarySearch(ports, port); !wanted {
		return l, false
	}
	var ip netip.Addr
	if answer[0] == unix.AF_INET {
		ip = netip.AddrFrom4([4]byte(answer[8:12]))
	} else {
		ip = netip.AddrFrom16([16]byte(answer[8:24])).Unmap()
	}
	l = Listener{
		Protocol: protocol, Address: netip.AddrPortFrom(ip, port),
		UID: binary.NativeEndian.Uint32(answer[64:]), Inode: binary.NativeEndian.Uint32(answer[68:]),
	}
	ok = true
	sock.EachAttribute(answer[answerSize:], func(kind uint16, value []byte) {
		switch {
		case kind == attributeOnly6 && len(value) > 0:
			l.Only6 = value[0] != 0
		case kind == attributeMark && len(value) == 4:
			ok = binary.NativeEndian.Uint32(value) != probeMark
		}
	})
	return l, ok
}
