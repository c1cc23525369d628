package rtnl

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// nsids chooses the numbers (netnsid) by which the host's network namespace refers to
// sandboxes. The kernel looks for the number of a link's peer in every message about the
// link, walking all numbers from the lowest: with 10,000 sandboxes, that takes 0.1 ms per
// message. Without a request the kernel chooses the lowest free number, so new sandboxes
// come last. nsids chooses them in descending order, so that they come first.
//
// A number belongs to its namespace, and ends with it.
type nsids struct {
	mu    sync.Mutex
	links int   // so far
	last  int32 // chosen; 0 for none
	taken int   // choices in a row that the kernel refused
}

const (
	highestNSID  = 1 << 30
	smallestNSID = 1 << 20 // the numbers below are left to the kernel and other programs
	// mostTaken is the number of refusals in a row after which the numbers are read
	// again. The reason can be another process that chooses numbers, or namespaces that
	// have numbers already.
	mostTaken = 64
)

// choose returns the number for the sandbox of a new link. It returns false for the first
// link of the process: to read the existing numbers is worthwhile for several links only.
func (n *nsids) choose(read func() (lowest int32, err error)) (id int32, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.links++; n.links == 1 {
		return 0, false
	}
	if n.last == 0 || n.taken >= mostTaken {
		lowest, err := read()
		if err != nil {
			return 0, false
		}
		n.last, n.taken = lowest, 0
	}
	if n.last--; n.last < smallestNSID {
		n.last = highestNSID
	}
	return n.last, true
}

// chosen notes the kernel's answer to the request with a number.
func (n *nsids) chosen(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.taken++; err == nil {
		n.taken = 0
	}
}

// lowestNSID reads the lowest of the numbers that nsids of this or another process has
// chosen, or the number before the first one.
func (h *Host) lowestNSID() (lowest int32, err error) {
	lowest = highestNSID
	err = dump(&h.conns, func(r *sock.Requests) {
		r.Begin("list numbers of network namespaces", unix.RTM_GETNSID, unix.NLM_F_DUMP)
		r.Append(unix.AF_UNSPEC, 0, 0, 0)
	}, func(payload []byte) error {
		sock.EachAttribute(sock.After(4, payload), func(kind uint16, value []byte) {
			if id := int32(sock.Uint32(value)); kind == unix.NETNSA_NSID && id >= smallestNSID {
				lowest = min(lowest, id)
			}
		})
		return nil
	})
	return lowest, err
}

// putNSID appends the request that gives a number to a network namespace.
func putNSID(r *sock.Requests, namespace int, id int32) {
	r.Begin("number network namespace", unix.RTM_NEWNSID, unix.NLM_F_ACK)
	r.Append(unix.AF_UNSPEC, 0, 0, 0)
	r.Uint32(unix.NETNSA_FD, uint32(namespace))
	r.Uint32(unix.NETNSA_NSID, uint32(id))
}
