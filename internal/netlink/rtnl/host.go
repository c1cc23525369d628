package rtnl

import (
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/sandbox"
)

// Host configures the network namespace of the process through rtnetlink. Its own
// methods do what every allocation needs; the embedded netlink.Handle does the rest.
// Host is safe for concurrent use. Until Close it holds a few descriptors: one for
// deletions, and one for each of the requests that run at the same time.
type Host struct {
	*netlink.Handle
	conns     sock.Pool
	strict    sock.Pool // for listings that the kernel filters
	deleter   *deleter
	limits    limits
	routeMTUs mtuCache
	nsids     nsids
}

// OpenHost returns a Host without open sockets: they are opened when they are needed.
func OpenHost() *Host {
	// A Handle without sockets opens one for every request, in the network
	// namespace of the calling thread, which is the host's.
	return &Host{
		Handle: &netlink.Handle{}, conns: sock.Pool{Protocol: unix.NETLINK_ROUTE},
		strict:  sock.Pool{Protocol: unix.NETLINK_ROUTE, Strict: true},
		deleter: &deleter{}, limits: limits{root: "/proc"},
	}
}

// Close closes the descriptors. No other method may be running.
func (h *Host) Close() {
	_, _ = h.conns.Close(), h.strict.Close()
	h.deleter.close()
}

// Apply makes the changes of a batch in the host's network namespace.
func (h *Host) Apply(b *Batch) error { return apply(&h.conns, b) }

// Do calls a function in the network namespace of the host, which is that of the process.
func (h *Host) Do(do func() error) error { return do() }

// Sandbox configures an allocation's network namespace through rtnetlink. It is safe
// for concurrent use. It holds two descriptors until Close, and a third one once Handle
// was called.
type Sandbox struct {
	*sandbox.Sandbox
	lent bool // the caller closes the embedded Sandbox
	conn *sock.Socket

	mu     sync.Mutex
	handle *netlink.Handle
}

// OpenSandbox opens the network namespace at a path, which must not be the host's own,
// and a socket in it. The errors are those of sandbox.Open.
func OpenSandbox(path string) (*Sandbox, error) { return openSandbox(path, sandbox.Open) }

// OpenAnySandbox is like OpenSandbox, but also opens the network namespace of the
// process itself.
func OpenAnySandbox(path string) (*Sandbox, error) { return openSandbox(path, sandbox.OpenAny) }

func openSandbox(path string, open func(string) (*sandbox.Sandbox, error)) (*Sandbox, error) {
	ns, err := open(path)
	if err != nil {
		return nil, err
	}
	s, err := EnterSandbox(ns)
	if err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	s.lent = false
	return s, nil
}

// EnterSandbox opens a socket in a network namespace that is already open. The caller
// still has to close ns; Sandbox.Close does not.
func EnterSandbox(ns *sandbox.Sandbox) (*Sandbox, error) {
	s := &Sandbox{Sandbox: ns, lent: true}
	err := ns.Do(func() (err error) {
		s.conn, err = openConn()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", ns.Path(), err)
	}
	return s, nil
}

// Handle returns a netlink.Handle in the sandbox, for operations that Sandbox does not
// have. It is opened at the first call and closed with the sandbox.
func (s *Sandbox) Handle() (*netlink.Handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handle != nil {
		return s.handle, nil
	}
	err := s.Do(func() (err error) {
		s.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink in %q: %w", s.Path(), err)
	}
	return s.handle, nil
}

// Apply makes the changes of a batch in the sandbox.
func (s *Sandbox) Apply(b *Batch) error { return apply(s.conn, b) }

// Close closes the descriptors, except for a namespace that was given to EnterSandbox.
func (s *Sandbox) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.handle != nil {
		s.handle.Close()
		s.handle = nil
	}
	if s.lent {
		return s.conn.Close()
	}
	return errors.Join(s.conn.Close(), s.Sandbox.Close())
}

// IsNotFound reports whether an error means that a link does not exist.
func IsNotFound(err error) bool {
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing) || errors.Is(err, unix.ENODEV)
}
