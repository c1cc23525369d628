package sockdiag

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Ports are what is asked for of a protocol: with IPv4, sockets of both families are
// looked at, as those of IPv6 may take it as well.
type Ports struct {
	Protocol uint8 // unix.IPPROTO_TCP or unix.IPPROTO_UDP
	Numbers  []uint16
	Only6    bool // sockets of IPv6 alone
}

// Look returns the sockets that listen on the ports in the network namespace of the
// calling thread, sorted by protocol and port. The kernel chooses them: the cost does
// not grow with connections, and little with listeners on other ports.
func Look(wanted ...Ports) ([]Listener, error) {
	s, err := open()
	if err != nil {
		return nil, err
	}
	defer s.close()
	var found []Listener
	for _, w := range wanted {
		ports := slices.Compact(slices.Sorted(slices.Values(w.Numbers)))
		if len(ports) == 0 {
			continue
		}
		each := func(answer []byte) {
			if l, ok := parse(answer, w.Protocol, ports); ok {
				found = append(found, l)
			}
		}
		if err := s.list(w, ports, each); err != nil {
			return nil, fmt.Errorf("list sockets of protocol %d: %w", w.Protocol, err)
		}
	}
	return found, nil
}

// list asks for the sockets of each family.
func (s *socket) list(w Ports, ports []uint16, each func(answer []byte)) error {
	switch {
	case w.Only6:
		return s.dump(byFamily, request(w.Protocol, unix.AF_INET6, ports), each)
	case w.Protocol == unix.IPPROTO_TCP:
		return s.dump(tcp, tcpRequest(ports), each)
	}
	err := s.dump(byFamily, request(w.Protocol, unix.AF_INET, ports), each)
	if err == nil {
		err = s.dump(byFamily, request(w.Protocol, unix.AF_INET6, ports), each)
	}
	return err
}

// socket is one to the kernel, unknown to the runtime's poller: the kernel works while it
// is sent to, and nothing waits.
type socket struct {
	fd  int
	seq uint32
}

func open() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, os.NewSyscallError("open sock_diag", err)
	}
	return &socket{fd: fd}, nil
}

func (s *socket) close() { _ = unix.Close(s.fd) }

// messageSize is the longest that the kernel makes of a dump.
const messageSize = 32 << 10

var buffers = sync.Pool{New: func() any { return new([messageSize]byte) }}

// Types of requests.
const (
	tcp      = 18 // TCPDIAG_GETSOCK
	byFamily = 20 // SOCK_DIAG_BY_FAMILY
)

// dump hands over every answer to a request, each valid during the call.
func (s *socket) dump(kind uint16, body []byte, each func(answer []byte)) error {
	s.seq++
	m := make([]byte, 0, unix.SizeofNlMsghdr+len(body))
	m = binary.NativeEndian.AppendUint32(m, uint32(unix.SizeofNlMsghdr+len(body)))
	m = binary.NativeEndian.AppendUint16(m, kind)
	m = binary.NativeEndian.AppendUint16(m, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	m = binary.NativeEndian.AppendUint32(m, s.seq)
	m = append(binary.NativeEndian.AppendUint32(m, 0), body...)
	if _, err := unix.Write(s.fd, m); err != nil {
		return os.NewSyscallError("send to sock_diag", err)
	}
	in := buffers.Get().(*[messageSize]byte)
	defer buffers.Put(in)
	for {
		n, err := unix.Read(s.fd, in[:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("read the answer of sock_diag", err)
		}
		if done, err := s.eachMessage(in[:n], each); done || err != nil {
			return err
		}
	}
}

// eachMessage takes apart what was read. It is done with the last one.
func (s *socket) eachMessage(data []byte, each func(answer []byte)) (done bool, err error) {
	for len(data) >= unix.SizeofNlMsghdr {
		length := int(binary.NativeEndian.Uint32(data))
		if length < unix.SizeofNlMsghdr || length > len(data) {
			return true, os.NewSyscallError("read the answer of sock_diag", unix.EBADMSG)
		}
		payload := data[unix.SizeofNlMsghdr:length]
		switch binary.NativeEndian.Uint16(data[4:]) {
		case unix.NLMSG_DONE, unix.NLMSG_ERROR:
			if len(payload) < 4 {
				return true, os.NewSyscallError("read the answer of sock_diag", unix.EBADMSG)
			}
			if errno := int32(binary.NativeEndian.Uint32(payload)); errno != 0 {
				return true, unix.Errno(-errno)
			}
			return true, nil
		default:
			each(payload)
		}
		data = data[min(len(data), (length+3)&^3):]
	}
	return false, nil
}
