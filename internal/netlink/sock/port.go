package sock

import (
	"sync"

	"golang.org/x/sys/unix"
)

// The kernel names the socket whose request led to a notification by its port ID, which
// is unique for a protocol in a network namespace.

// bind makes the kernel choose a port ID, as it would do at the first request.
func bind(fd int) (port uint32, err error) {
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, err
	}
	address, err := unix.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	return address.(*unix.SockaddrNetlink).Pid, nil
}

type portKey struct {
	protocol int
	port     uint32
}

// ports counts the open sockets of this process by their port IDs. Sockets in several
// network namespaces can have the same one.
type ports struct {
	mu   sync.Mutex
	open map[portKey]int
}

var own = &ports{open: map[portKey]int{}}

func (p *ports) add(protocol int, port uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[portKey{protocol, port}]++
}

func (p *ports) remove(protocol int, port uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := portKey{protocol, port}
	if p.open[key]--; p.open[key] <= 0 {
		delete(p.open, key)
	}
}

// IsOwn reports whether an open socket of this process has a port ID.
func IsOwn(protocol int, port uint32) bool {
	own.mu.Lock()
	defer own.mu.Unlock()
	return own.open[portKey{protocol, port}] > 0
}
