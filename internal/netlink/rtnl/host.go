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

// Host is rtnetlink in the namespace that the process lives in: its own methods
// for what every allocation needs, and netlink's Handle for the rest. It is safe
// for concurrent use and holds some descriptors until Close: one for deletions, and
// one for each of a few that work at the same time.
type Host struct {
	*netlink.Handle
	conns   sock.Pool
	deleter *deleter
	limits  limits
	wayOut  wayOut
}

// OpenHost opens nothing yet: sockets are opened when they are needed.
func OpenHost() *Host {
	// A Handle without sockets opens one for every request, in the namespace of the
	// thread, which is the host's.
	return &Host{
		Handle: &netlink.Handle{}, conns: sock.Pool{Protocol: unix.NETLINK_ROUTE},
		deleter: &deleter{}, limits: limits{root: "/proc"},
	}
}

// Close gives the descriptors back. Nothing may run that uses them.
func (h *Host) Close() {
	_ = h.conns.Close()
	h.deleter.close()
}

// Apply makes changes in the host.
func (h *Host) Apply(b *Batch) error { return apply(&h.conns, b) }

// Sandbox is rtnetlink in an allocation's namespace. It is safe for concurrent
// use and holds two descriptors until Close, and one more after Handle.
type Sandbox struct {
	*sandbox.Sandbox
	lent bool // and for another to close
	conn *sock.Socket

	mu     sync.Mutex
	handle *netlink.Handle
}

// OpenSandbox opens the namespace at a path, which must not be the host's own,
// and a socket in it. The error says what package sandbox says.
func OpenSandbox(path string) (*Sandbox, error) { return openSandbox(path, sandbox.Open) }

// OpenAnySandbox is OpenSandbox that also opens the namespace of the process itself.
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

// EnterSandbox opens a socket in a namespace that is open, which stays the
// caller's to close.
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

// Handle is netlink's, in the sandbox, for what Sandbox itself cannot do. It is
// opened at its first use, and closed with the sandbox.
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

// Apply makes changes in the sandbox.
func (s *Sandbox) Apply(b *Batch) error { return apply(s.conn, b) }

// Close gives the descriptors back.
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

// IsNotFound reports whether an error says that a link is not there.
func IsNotFound(err error) bool {
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing) || errors.Is(err, unix.ENODEV)
}
