package conntrack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Conn gives access to the connection tracking of the network namespace in which it is
// used. It is safe for concurrent use, and holds a few descriptors until Close.
type Conn struct {
	sockets interface {
		sock.Exchanger
		Close() error
	}
	// noFilter: the kernel cannot delete by a filter. noText: the kernel does not
	// show entries as text.
	noFilter, noText atomic.Bool

	addresses addressQueue

	// anywhere: each use can be in another network namespace.
	anywhere bool

	mu      sync.Mutex
	counter *os.File // nil until it is opened
}

// New returns a Conn, whose sockets are opened when they are needed. The kernel need
// not have connection tracking.
func New() *Conn { return &Conn{sockets: &sock.Pool{Protocol: unix.NETLINK_NETFILTER}} }

// Here returns a connection that acts in the network namespace of the calling thread.
// It shares the sockets of the process, and Close does nothing.
func Here() *Conn {
	return &Conn{sockets: here{sock.Here{Protocol: unix.NETLINK_NETFILTER}}, anywhere: true}
}

type here struct{ sock.Here }

func (here) Close() error { return nil }

// Close closes the descriptors. No other method may be running.
func (c *Conn) Close() error {
	err := c.sockets.Close()
	if c.counter != nil {
		err = errors.Join(err, c.counter.Close())
	}
	if err != nil {
		return fmt.Errorf("close connection tracking: %w", err)
	}
	return nil
}

// Message types of linux/netfilter/nfnetlink_conntrack.h.
const (
	changeEntry   = 0 // IPCTNL_MSG_CT_NEW
	getEntries    = 1 // IPCTNL_MSG_CT_GET
	deleteEntries = 2 // IPCTNL_MSG_CT_DELETE
)

// begin begins a request for a family.
func begin(r *sock.Requests, kind, flags uint16, family uint8) {
	r.BeginNetfilter("", unix.NFNL_SUBSYS_CTNETLINK, kind, flags, family)
}

// delete makes one request that deletes the entries that its attributes identify.
func (c *Conn) delete(ctx context.Context, family uint8, attributes func(*sock.Requests)) error {
	return c.request(ctx, deleteEntries, family, attributes)
}

// request makes one request about the entries that its attributes identify.
func (c *Conn) request(ctx context.Context, kind uint16, family uint8, attributes func(*sock.Requests)) error {
	return sock.Build(func(r *sock.Requests) {
		begin(r, kind, unix.NLM_F_ACK, family)
		attributes(r)
	}, func(r *sock.Requests) error {
		var failed error
		err := c.sockets.Exchange(ctx, r, func(_ int, _ []byte, err error) { failed = err })
		if err == nil {
			err = failed
		}
		return err
	})
}

// isUnsupported reports whether the error means that the kernel does not support the
// request.
func isUnsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}
