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
// opened. It is safe for concurrent use, and holds two descriptors until Close.
type Conn struct {
	socket *netlink.Conn
	// noFilter: the kernel does not delete by a filter. noText: it does not show
	// entries as text.
	noFilter, noText atomic.Bool

	mu      sync.Mutex
	counter *os.File // nil until there is one
}

// Open opens the connection. It needs no connection tracking in the kernel.
func Open() (*Conn, error) {
	socket, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open connection tracking: %w", err)
	}
	return &Conn{socket: socket}, nil
}

// Close gives the descriptors back. Nothing may run that uses them.
func (c *Conn) Close() error {
	err := c.socket.Close()
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
	return c.socket.Execute(netlink.Message{
		Header: netlink.Header{Type: kind, Flags: netlink.Request | flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, attributes...),
	})
}

// isUnsupported reports whether the kernel does not know a request.
func isUnsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}
