package ruleset

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// socket is a nfnetlink socket with its buffers. The kernel works while it is
// sent to, so that every answer is there as soon as sending returns, and nothing
// here ever waits but for another user of the socket.
type socket struct {
	mu  sync.Mutex
	fd  int
	out buffer
	in  []byte
	seq uint32
}

// atOnce is how many single requests go into one system call: the answers to
// more may not fit into what the socket can hold.
const atOnce = 16

func openSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	// Errors need not repeat the message that they are about.
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	// The kernel makes no answer longer than 32 KiB.
	return &socket{fd: fd, in: make([]byte, 64<<10), seq: 1}, nil
}

func (s *socket) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return nil
	}
	fd := s.fd
	s.fd = -1
	return unix.Close(fd)
}

// failure is what the kernel says of one message.
type failure struct {
	what  string
	errno unix.Errno
}

func (f failure) Error() string { return f.what + ": " + f.errno.Error() }
func (f failure) Unwrap() error { return f.errno }

// failures are those of one transaction, of which nothing was done.
type failures []failure

func (f failures) Error() string {
	words := make([]string, len(f))
	for i, one := range f {
		words[i] = one.Error()
	}
	return strings.Join(words, "; ")
}

// Is finds an errno among the failures.
func (f failures) Is(target error) bool {
	for _, one := range f {
		if errors.Is(one.errno, target) {
			return true
		}
	}
	return false
}

// commit does what build puts into the buffer in one transaction: all or
// nothing.
func (s *socket) commit(ctx context.Context, build func(*buffer)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.begin(ctx); err != nil {
		return err
	}
	s.out.boundary(unix.NFNL_MSG_BATCH_BEGIN)
	build(&s.out)
	last := len(s.out.labels) - 1
	if last == 0 {
		return nil
	}
	s.out.acknowledge()
	s.out.boundary(unix.NFNL_MSG_BATCH_END)
	if err := s.send(); err != nil {
		return err
	}
	var all failures
	for done := false; !done; {
		err := s.receive(func(i int, h header, payload []byte) {
			if h.kind != unix.NLMSG_ERROR {
				return
			}
			if errno := errnoOf(payload); errno != 0 {
				all = append(all, failure{s.out.labels[i], errno})
			}
			// What fails as a whole is answered at the first message.
			done = done || i == last || i == 0
		})
		if err != nil {
			return err
		}
	}
	if len(all) > 0 {
		return all
	}
	return nil
}

// get makes n requests of one answer each, which is handed over with the index
// of its request.
func (s *socket) get(ctx context.Context, n int, build func(b *buffer, i int), each func(i int, payload []byte, err error)) error {
	for base := 0; base < n; base += atOnce {
		if err := s.getSome(ctx, base, min(atOnce, n-base), build, each); err != nil {
			return err
		}
	}
	return nil
}

func (s *socket) getSome(ctx context.Context, base, n int, build func(b *buffer, i int), each func(i int, payload []byte, err error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.begin(ctx); err != nil {
		return err
	}
	for i := range n {
		build(&s.out, base+i)
	}
	if err := s.send(); err != nil {
		return err
	}
	for answers := 0; answers < n; {
		err := s.receive(func(i int, h header, payload []byte) {
			answers++
			if h.kind == unix.NLMSG_ERROR {
				each(base+i, nil, failure{s.out.labels[i], errnoOf(payload)})
				return
			}
			each(base+i, payload, nil)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// dump hands over every answer to a request for all of something. The error is
// EINTR when the ruleset changed meanwhile: then some may be missing.
func (s *socket) dump(ctx context.Context, build func(*buffer), each func(payload []byte)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.begin(ctx); err != nil {
		return err
	}
	build(&s.out)
	if err := s.send(); err != nil {
		return err
	}
	var errno unix.Errno
	for done := false; !done; {
		err := s.receive(func(_ int, h header, payload []byte) {
			if h.flags&unix.NLM_F_DUMP_INTR != 0 {
				errno = unix.EINTR
			}
			switch h.kind {
			case unix.NLMSG_ERROR, unix.NLMSG_DONE:
				done = true
				if e := errnoOf(payload); e != 0 {
					errno = e
				}
			default:
				each(payload)
			}
		})
		if err != nil {
			return err
		}
	}
	if errno != 0 {
		return failure{s.out.labels[0], errno}
	}
	return nil
}

// begin is called with the lock before every request.
func (s *socket) begin(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.fd < 0 {
		return os.ErrClosed
	}
	s.out.reset(s.seq)
	return nil
}

// send sends the buffer, and makes the socket's own larger where it must be.
func (s *socket) send() error {
	s.out.finish()
	s.seq += uint32(len(s.out.labels))
	_, err := unix.Write(s.fd, s.out.data)
	if errors.Is(err, unix.EMSGSIZE) {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, len(s.out.data)); err != nil {
			return fmt.Errorf("make room for a transaction of %d bytes: %w", len(s.out.data), err)
		}
		_, err = unix.Write(s.fd, s.out.data)
	}
	if err != nil {
		return fmt.Errorf("send to nf_tables: %w", err)
	}
	return nil
}

type header struct{ kind, flags uint16 }

// receive takes one answer of the kernel and hands over its messages, with the
// index of the request. What answers an earlier request is dropped.
func (s *socket) receive(each func(i int, h header, payload []byte)) error {
	n, err := unix.Read(s.fd, s.in)
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the answer of nf_tables: %w", err)
	}
	for data := s.in[:n]; len(data) >= unix.SizeofNlMsghdr; {
		length := int(binary.NativeEndian.Uint32(data))
		if length < unix.SizeofNlMsghdr || length > len(data) {
			return fmt.Errorf("read the answer of nf_tables: %w", unix.EBADMSG)
		}
		h := header{kind: binary.NativeEndian.Uint16(data[4:]), flags: binary.NativeEndian.Uint16(data[6:])}
		if i := binary.NativeEndian.Uint32(data[8:]) - s.out.first; i < uint32(len(s.out.labels)) {
			each(int(i), h, data[unix.SizeofNlMsghdr:length])
		}
		data = data[min(len(data), (length+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
	}
	return nil
}

// errnoOf reads what NLMSG_ERROR and NLMSG_DONE begin with.
func errnoOf(payload []byte) unix.Errno {
	if len(payload) < 4 {
		return 0
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(payload)))
}
