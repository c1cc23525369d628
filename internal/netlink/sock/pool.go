package sock

import (
	"context"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Pool provides sockets of one protocol, one for each request that runs at the same
// time, so that no request waits until the kernel has processed another one. The
// sockets are opened when they are needed, in the network namespace of the calling
// thread. Pool is safe for concurrent use.
type Pool struct {
	Protocol int
	// Strict lets rtnetlink filter listings by what a request contains, such as the index
	// of a link, instead of ignoring it. Linux before 4.20 always ignores it.
	Strict bool

	mu     sync.Mutex
	idle   []*Socket
	closed bool
}

// mostIdle is the maximum number of idle sockets that are kept open for the next burst.
const mostIdle = 8

// Do calls a function with a socket of the pool. The function must not keep the socket.
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

// LinkIndex is Socket.LinkIndex.
func (p *Pool) LinkIndex(name string) (index int, err error) {
	err = p.Do(func(s *Socket) error { index, err = s.LinkIndex(name); return err })
	return index, err
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
	s, err := Open(p.Protocol)
	if err == nil && p.Strict {
		_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	}
	return s, err
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

// Close closes the idle sockets. A socket that is in use is closed after its last
// request. Later requests return os.ErrClosed.
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

// home is the network namespace in which the process started. Later a thread, including
// the first one, can be in another namespace.
var home = identify("/proc/self/ns/net")

type identity struct{ device, inode uint64 }

// identify returns the device and the inode of a file; the zero identity if it cannot
// read them.
func identify(path string) identity {
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return identity{}
	}
	return identity{stat.Dev, stat.Ino}
}

// shared are the pools of sockets that the process keeps open in home.
var shared = map[int]*Pool{
	unix.NETLINK_ROUTE:     {Protocol: unix.NETLINK_ROUTE},
	unix.NETLINK_NETFILTER: {Protocol: unix.NETLINK_NETFILTER},
	unix.NETLINK_SOCK_DIAG: {Protocol: unix.NETLINK_SOCK_DIAG},
}

// Lend calls a function with a socket in the network namespace of the calling thread.
// If that is the namespace in which the process started, Lend uses a socket that the
// process keeps open. In any other namespace it opens a socket and closes it
// afterwards, because an open socket would keep the namespace alive.
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

// LinkIndex is Socket.LinkIndex.
func (h Here) LinkIndex(name string) (index int, err error) {
	err = Lend(h.Protocol, func(s *Socket) error { index, err = s.LinkIndex(name); return err })
	return index, err
}
