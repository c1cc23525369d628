package conntrack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Conn is the connection tracking of the network namespace in which it was
// opened. It is safe for concurrent use, and holds two descriptors until Close.
type Conn struct {
	socket *netlink.Conn
	// noFilter: the kernel does not delete by a filter.
	noFilter atomic.Bool

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

const counterPath = "/proc/sys/net/netfilter/nf_conntrack_count"

// empty reports whether there is nothing to delete. An open file is read in a few
// microseconds. Where there is none, the kernel tracks nothing.
func (c *Conn) empty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counter == nil {
		file, err := os.Open(counterPath)
		if err != nil {
			return errors.Is(err, fs.ErrNotExist)
		}
		c.counter = file
	}
	var text [20]byte
	n, _ := c.counter.ReadAt(text[:], 0)
	count, err := strconv.Atoi(string(bytes.TrimSpace(text[:n])))
	return err == nil && count == 0
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
