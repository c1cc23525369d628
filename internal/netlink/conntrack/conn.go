package conntrack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Conn is the connection tracking of the network namespace in which it was
// opened. It is safe for concurrent use, and holds up to two descriptors until Close.
type Conn struct {
	// open opens the socket when it is needed for the first time.
	open   func() (*netlink.Conn, error)
	opened atomic.Bool
	// noFilter: the kernel does not delete by a filter. noText: it does not show
	// entries as text.
	noFilter, noText atomic.Bool

	addresses addressQueue

	mu      sync.Mutex
	counter *os.File // nil until there is one
}

// New makes a connection, which is opened when it is needed. It needs no
// connection tracking in the kernel.
func New() *Conn {
	c := &Conn{}
	c.open = sync.OnceValues(func() (*netlink.Conn, error) {
		c.opened.Store(true)
		socket, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
		if err != nil {
			return nil, fmt.Errorf("open connection tracking: %w", err)
		}
		return socket, nil
	})
	return c
}

// Close gives the descriptors back. Nothing may run that uses them.
func (c *Conn) Close() error {
	var err error
	if c.opened.Load() {
		if socket, openErr := c.open(); openErr == nil {
			err = socket.Close()
		}
	}
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
	getEntries    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	deleteEntries = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2
)

// execute sends a request for a family and returns the answers.
func (c *Conn) execute(ctx context.Context, kind netlink.HeaderType, flags netlink.HeaderFlags, family uint8, attributes []byte) ([]netlink.Message, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	socket, err := c.open()
	if err != nil {
		return nil, err
	}
	return socket.Execute(netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request | flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attributes...),
	})
}

// isUnsupported reports whether the kernel does not know a request.
func isUnsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}
