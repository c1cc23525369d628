package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// socket is a netlink socket. It is not safe for concurrent use.
type socket struct {
	fd       int
	sequence uint32
	buf      []byte
}

// maxAnswer bounds what the kernel writes at once in response to requests that
// are not dumps.
const maxAnswer = 32 << 10

// openSocket opens a socket in the namespace of the calling thread.
func openSocket(protocol int) (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// With NETLINK_CAP_ACK, the response to a request does not repeat it.
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("setsockopt", err)
	}
	return &socket{fd: fd, buf: make([]byte, maxAnswer)}, nil
}

// openSocketIn opens a socket in the namespace ns. home is the namespace to
// which the thread returns.
func openSocketIn(ns, home, protocol int) (*socket, error) {
	runtime.LockOSThread()
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, os.NewSyscallError("setns", err)
	}
	s, err := openSocket(protocol)
	if backErr := unix.Setns(home, unix.CLONE_NEWNET); backErr != nil {
		// The thread stays locked, because it is in the wrong namespace for
		// other goroutines.
		return nil, errors.Join(os.NewSyscallError("setns", backErr), err)
	}
	runtime.UnlockOSThread()
	return s, err
}

func (s *socket) close() error { return os.NewSyscallError("close", unix.Close(s.fd)) }

// do sends messages at once and waits for the response to the last one. The
// kernel reports errors in any case, so only the last message requests an
// acknowledgement.
func (s *socket) do(messages ...*message) error {
	last := messages[len(messages)-1]
	last.flag(unix.NLM_F_ACK)
	return s.exchange(messages, last, nil)
}

// exchange sends messages and reads responses until the one to last. receive
// gets the kind and payload of responses that contain data.
func (s *socket) exchange(messages []*message, last *message, receive func(kind int, payload []byte)) error {
	first := s.sequence + 1
	var request []byte
	end := uint32(0)
	for _, m := range messages {
		s.sequence++
		if m == last {
			end = s.sequence
		}
		if len(messages) == 1 {
			request = m.finish(s.sequence)
			break
		}
		request = append(request, m.finish(s.sequence)...)
	}
	if err := unix.Sendto(s.fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	var errs []error
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		done := answers(s.buf[:n], func(sequence uint32, kind int, payload []byte) (done bool) {
			if kind == unix.NLMSG_ERROR {
				if code := int32(binary.NativeEndian.Uint32(payload)); code != 0 {
					errs = append(errs, fmt.Errorf("netlink message %d of %d: %w", sequence-first+1, len(messages), unix.Errno(-code)))
				}
			} else if receive != nil {
				receive(kind, payload)
			}
			return sequence == end
		})
		if done {
			return errors.Join(errs...)
		}
	}
}

// answers calls f for each message in b, until f reports that it was the last
// one.
func answers(b []byte, f func(sequence uint32, kind int, payload []byte) (done bool)) bool {
	for len(b) >= unix.NLMSG_HDRLEN {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.NLMSG_HDRLEN || size > len(b) {
			return false
		}
		kind := int(binary.NativeEndian.Uint16(b[4:]))
		if f(binary.NativeEndian.Uint32(b[8:]), kind, b[unix.NLMSG_HDRLEN:size]) {
			return true
		}
		b = b[min((size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1), len(b)):]
	}
	return false
}
