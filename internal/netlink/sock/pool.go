package sock

import (
	"context"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Pool is as many sockets of a protocol as are used at the same time, so that no request waits for another one that
// waits in the kernel. They are opened when they are needed, in the network namespace of the calling thread. It is safe
// for concurrent use.
type Pool struct {
	Protocol int

	mu     sync.Mutex
	idle   []*Socket
	closed bool
}

// mostIdle sockets are kept for the next burst.
const mostIdle = 8

// Do lends a socket to a function.
func (p *Pool) Do(act func(*Socket) error) error {
	s, err := p.take()
	if err != nil {
		return err
	}
	defer p.give(s)
	return act(s)
}

// Exchange is Socket.Exchange.
func (p *Pool) Exchange(ctx context.Context, r *Requests, each func(i int, payload []byte, err error)) error {
	return p.Do(func(s *Socket) error { return s.Exchange(ctx, r, each) })
}

// Dump is Socket.Dump.
func (p *Pool) Dump(ctx context.Context, r *Requests, each func(payload []byte) error) error {
	return p.Do(func(s *Socket) error { return s.Dump(ctx, r, each) })
}

func (p *Pool) take() (*Socket, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, os.ErrClosed
	}
	if last := len(p.idle) - 1; last >= 0 {
		s := p.idle[last]
		p.idle = p.idle[:last]
		return s, nil
	}
	return Open(p.Protocol)
}

func (p *Pool) give(s *Socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) < mostIdle && !p.closed {
		p.idle = append(p.idle, s)
		return
	}
	_ = s.Close()
}

// Close closes the sockets, those that are in use after their last request. Later requests return os.ErrClosed.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var first error
	for _, s := range p.idle {
		if err := s.Close(); first == nil {
			first = err
		}
	}
	p.idle, p.closed = nil, true
	return first
}

// home is the network namespace in which the process started. A thread can be in another one later, also the first.
var home = identify("/proc/self/ns/net")

type identity struct{ device, inode uint64 }

// identify is the zero identity if the file cannot be looked at.
func identify(path string) identity {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return identity{}
	}
	return identity{stat.Dev, stat.Ino}
}

// shared are the process's sockets in home, which stay open.
var shared = map[int]*Pool{
	unix.NETLINK_ROUTE:     {Protocol: unix.NETLINK_ROUTE},
	unix.NETLINK_NETFILTER: {Protocol: unix.NETLINK_NETFILTER},
	unix.NETLINK_SOCK_DIAG: {Protocol: unix.NETLINK_SOCK_DIAG},
}

// Lend lends a socket in the network namespace of the calling thread to a function: one of the process's own where
// that is the namespace in which the process started. In any other it opens one and closes it, because an open socket
// would keep the namespace.
func Lend(protocol int, act func(*Socket) error) error {
	if home != (identity{}) && identify("/proc/thread-self/ns/net") == home {
		return shared[protocol].Do(act)
	}
	s, err := Open(protocol)
	if err != nil {
		return err
	}
	defer s.Close()
	return act(s)
}

// Here makes requests in the network namespace of the calling thread: see Lend.
type Here struct{ Protocol int }

// Exchange is Socket.Exchange.
func (h Here) Exchange(ctx context.Context, r *Requests, each func(i int, payload []byte, err error)) error {
	return Lend(h.Protocol, func(s *Socket) error { return s.Exchange(ctx, r, each) })
}

// Dump is Socket.Dump.
func (h Here) Dump(ctx context.Context, r *Requests, each func(payload []byte) error) error {
	return Lend(h.Protocol, func(s *Socket) error { return s.Dump(ctx, r, each) })
}
