package watch

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/allocnet/allocnet/internal/names"
)

// Kind is a kind of change.
type Kind int

// The kinds of changes.
const (
	// Rules: something was removed from allocnet's tables, or its rules were changed.
	Rules Kind = iota
	// Foreign: a table of a firewall was removed or made again, in which there may be
	// rules for allocations.
	Foreign
	// Link: a bridge was deleted, a bridge or a port was brought down, or a port was
	// taken from its bridge.
	Link
	// Address: an address of a bridge or a veth was removed.
	Address
	// Route: a route over a bridge or a veth was removed.
	Route
	// Forwarding: the host no longer forwards packets, or not those from a bridge or a veth.
	Forwarding
	// Made: allocnet has made one of its tables.
	Made
	// Veth: the veth of an attachment was deleted, perhaps with its namespace.
	Veth
	// Destination: routes over any link were replaced, or removed while an allocation is
	// damaged. The routes of allocations are among them if they have one of the Destinations.
	Destination
	// Lost: notifications were lost, so that any change can have been made.
	Lost

	kinds
)

// String returns the name of the kind.
func (k Kind) String() string {
	return [kinds]string{"rules", "firewall", "link", "address", "route", "forwarding", "made", "veth", "destination", "lost"}[k]
}

// Change is a change, or several of the same kind, of which it describes the first one.
type Change struct {
	Kind   Kind
	Object string // such as "table ip allocnet"
	// Process and PID are the process that made the change; "" and 0 if the kernel
	// does not tell, as for links. The PID is that of the thread.
	Process string
	PID     int
	// Owners are the owners of deleted veths, maxOwners at most.
	Owners []names.Owner
	// Destinations are those of a change of the kind Destination; nil stands for any, if there
	// are more than maxDestinations.
	Destinations []netip.Prefix
}

// String describes the change, with the process if it is known.
func (c *Change) String() string {
	if c.Process == "" {
		return c.Object
	}
	return fmt.Sprintf("%s by %q (PID %d)", c.Object, c.Process, c.PID)
}

// maxOwners bounds the owners in a Change. The veths of further ones are left to the
// next comparison.
const maxOwners = 256

// maxDestinations bounds the destinations in a Change: a routing daemon may replace many routes.
const maxDestinations = 1 << 16

// changes are those that Take has not returned yet: at most one of each kind.
type changes struct {
	mu      sync.Mutex
	pending [kinds]*Change
	added   int // so far
	wake    chan struct{}
}

func newChanges() *changes { return &changes{wake: make(chan struct{}, 1)} }

func (c *changes) add(one Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.added++
	if before := c.pending[one.Kind]; before == nil {
		c.pending[one.Kind] = &one
	} else {
		before.merge(&one)
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// merge adds what a later change of the same kind concerns.
func (c *Change) merge(later *Change) {
	if len(c.Owners) < maxOwners {
		c.Owners = append(c.Owners, later.Owners...)
	}
	if c.Kind == Destination && c.Destinations != nil {
		c.Destinations = append(c.Destinations, later.Destinations...)
		if later.Destinations == nil || len(c.Destinations) > maxDestinations {
			c.Destinations = nil
		}
	}
}

// count returns the number of changes so far.
func (c *changes) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.added
}

func (c *changes) take() []Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []Change
	for i, one := range c.pending {
		if one != nil {
			list = append(list, *one)
		}
		c.pending[i] = nil
	}
	return list
}
