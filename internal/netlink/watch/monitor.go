package watch

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Monitor tells whether other programs have changed something since an earlier moment. It
// reads the notifications when it is asked, so it runs no goroutine: the kernel queues the
// notifications of a change before the call returns that made it. It is safe for concurrent
// use.
type Monitor struct {
	mu      sync.Mutex
	rules   *sock.Listener
	links   *sock.Listener
	changes *changes
	reader  transaction
	now     uint64
	all     uint64         // the last change that can concern every network
	link    map[int]uint64 // the last change of a link, by index
}

const (
	// monitorBuffer is the size of a receive buffer in bytes. If it is full, everything
	// counts as changed.
	monitorBuffer = 1 << 20
	// maxMonitored bounds the changed links that are remembered. If there are more, all
	// links count as changed.
	maxMonitored = 4096
)

// NewMonitor returns a Monitor of the network namespace of the calling thread.
func NewMonitor() (*Monitor, error) {
	m := &Monitor{changes: newChanges(), link: map[int]uint64{}}
	m.reader.changes = m.changes
	rules, links := rulesOptions(monitorBuffer), linksOptions(monitorBuffer)
	rules.DrainOnly, links.DrainOnly = true, true
	var err error
	if m.rules, err = sock.Listen(rules); err != nil {
		return nil, err
	}
	if m.links, err = sock.Listen(links); err != nil {
		return nil, errors.Join(err, m.rules.Close())
	}
	return m, nil
}

// Now returns the present moment.
func (m *Monitor) Now() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.read()
	return m.now
}

// Changed reports whether, since a moment that Now has returned, another program may have
// changed the rules, one of the links, or an address or a route of these links. Changes of this
// process's own sockets do not count.
func (m *Monitor) Changed(since uint64, links []int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.read()
	if m.all > since {
		return true
	}
	for _, index := range links {
		if m.link[index] > since {
			return true
		}
	}
	return false
}

// Close releases the sockets. Everything counts as changed from then on.
func (m *Monitor) Close() error {
	return errors.Join(m.rules.Close(), m.links.Close())
}

// read reads the notifications that have arrived.
func (m *Monitor) read() {
	err := errors.Join(m.rules.Drain(m.reader.notified), m.links.Drain(m.linkNotified))
	if err == nil && len(m.changes.take()) == 0 && len(m.link) <= maxMonitored {
		return
	}
	m.now++
	m.all = m.now
	clear(m.link)
}

func (m *Monitor) linkNotified(n *sock.Notification) {
	if n.Kind == unix.RTM_NEWROUTE {
		if n.Flags&unix.NLM_F_REPLACE != 0 { // of a route over any link
			m.now++
			m.all = m.now
		}
		return
	}
	index, ok := linkOf(n)
	if !ok {
		return
	}
	m.now++
	if m.link[index] = m.now; index == allLinks {
		m.all = m.now
	}
}
