package kernel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/sandbox"
)

// Host is rtnetlink in the namespace that the process lives in. It is safe for
// concurrent use and holds three descriptors until Close.
type Host struct {
	*netlink.Handle
	create  requester
	deleter *deleter
}

// OpenHost opens the host's sockets.
func OpenHost() (*Host, error) {
	handle, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	h := &Host{Handle: handle}
	if h.create, err = openRequester(); err != nil {
		h.Close()
		return nil, err
	}
	if h.deleter, err = newDeleter(); err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// Close gives the descriptors back. Nothing may run that uses them.
func (h *Host) Close() {
	h.Handle.Close()
	h.create.close()
	h.deleter.close()
}

// Sandbox is rtnetlink in an allocation's namespace. It is safe for concurrent
// use and holds three descriptors until Close.
type Sandbox struct {
	*netlink.Handle
	*sandbox.Sandbox
	requester requester
}

// OpenSandbox opens the namespace at a path, which must not be the host's own,
// and a socket in it. The error says what package sandbox says.
func OpenSandbox(path string) (*Sandbox, error) {
	ns, err := sandbox.Open(path)
	if err != nil {
		return nil, err
	}
	s := &Sandbox{Sandbox: ns}
	err = ns.Do(func() (err error) {
		if s.Handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
			return err
		}
		s.requester, err = openRequester()
		return err
	})
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("open rtnetlink in %q: %w", path, err)
	}
	return s, nil
}

// Close gives the descriptors back.
func (s *Sandbox) Close() error {
	if s.Handle != nil {
		s.Handle.Close()
	}
	s.requester.close()
	return s.Sandbox.Close()
}

// requester is a socket for the requests that netlink's Handle cannot make.
type requester map[int]*nl.SocketHandle

func openRequester() (requester, error) {
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	return requester{unix.NETLINK_ROUTE: {Socket: s}}, nil
}

func (r requester) close() {
	for _, s := range r {
		s.Close()
	}
}

// request starts one that is acknowledged.
func (r requester) request(kind, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags|unix.NLM_F_ACK)
	req.Sockets = r
	return req
}

// IsNotFound reports whether an error says that a link is not there.
func IsNotFound(err error) bool {
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing) || errors.Is(err, unix.ENODEV)
}
