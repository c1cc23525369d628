package rtnl

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// deletionGroup is the interface group of links that are about to be deleted together. The
// number spells "doom" in ASCII.
const deletionGroup = names.GuardedGroup + 1

// disconnectedGroup is the interface group of links that SetDown took down.
const disconnectedGroup = deletionGroup + 1

// deleter deletes links in batches. For every request to delete, the kernel waits for
// several RCU grace periods while it holds its configuration lock; links that are
// deleted by one request share that wait. A deletion starts at once if no other one is
// running. Deletions that arrive in the meantime are queued, and the next request makes
// all of them.
type deleter struct {
	socket *sock.Socket
	mu     sync.Mutex
	queue  []*deletion
	busy   bool
}

type deletion struct {
	index int // when its turn comes, the name may be that of another link
	done  chan error
}

func (d *deleter) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.socket != nil {
		_ = d.socket.Close()
	}
}

// DeleteLink deletes a link by its name, and with one end of a veth the other end.
// Links that are deleted at the same time are deleted by one request. If the link does
// not exist, found is false and err is nil. If the context ends first, the link may be
// deleted all the same.
func (h *Host) DeleteLink(ctx context.Context, name string) (found bool, err error) {
	index, err := h.Index(name)
	if errors.Is(err, unix.ENODEV) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("delete link: %w", err)
	}
	one := &deletion{index: index, done: make(chan error, 1)}
	h.deleter.mu.Lock()
	h.deleter.queue = append(h.deleter.queue, one)
	if !h.deleter.busy {
		h.deleter.busy = true
		go h.deleter.run()
	}
	h.deleter.mu.Unlock()
	select {
	case <-ctx.Done():
		return false, fmt.Errorf("delete link %q: %w", name, ctx.Err())
	case err := <-one.done:
		if errors.Is(err, unix.ENODEV) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("delete link %q: %w", name, err)
		}
		return true, nil
	}
}

// run makes deletions until the queue is empty.
func (d *deleter) run() {
	for {
		d.mu.Lock()
		batch := d.queue
		d.queue = nil
		d.busy = len(batch) > 0
		d.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		d.delete(batch)
	}
}

func (d *deleter) delete(batch []*deletion) {
	if err := d.open(); err != nil {
		for _, one := range batch {
			one.done <- err
		}
		return
	}
	if len(batch) == 1 {
		batch[0].done <- d.deleteOne(batch[0].index)
		return
	}
	var marked []*deletion
	for _, one := range batch {
		if err := d.mark(one.index); err != nil {
			one.done <- err
			continue
		}
		marked = append(marked, one)
	}
	if len(marked) == 0 {
		return
	}
	err := d.deleteGroup()
	for _, one := range marked {
		one.done <- err
	}
}

// deleteOne deletes one link by its index, because the kernel walks all links for a group.
// It marks the link all the same: the group is part of the kernel's notification, and
// tells that allocnet itself has deleted the link.
func (d *deleter) deleteOne(index int) error {
	if err := d.mark(index); err != nil {
		return err
	}
	err := do(d.socket, func(r *sock.Requests) {
		r.Begin("", unix.RTM_DELLINK, unix.NLM_F_ACK)
		putLink(r, index, 0)
	})
	if errors.Is(err, unix.ENODEV) {
		return nil // a batch of another process has just deleted it
	}
	return err
}

// open opens the socket for the first deletion.
func (d *deleter) open() (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.socket == nil {
		d.socket, err = openConn()
	}
	return err
}

// mark moves a link to the group of links to be deleted.
func (d *deleter) mark(index int) error {
	return do(d.socket, func(r *sock.Requests) {
		r.Begin("", unix.RTM_NEWLINK, unix.NLM_F_ACK)
		putLink(r, index, 0)
		r.Uint32(unix.IFLA_GROUP, deletionGroup)
	})
}

// deleteGroup deletes all marked links. If there is none, a batch of another process
// has already deleted them, because the group is the same for all processes.
func (d *deleter) deleteGroup() error {
	err := do(d.socket, func(r *sock.Requests) {
		r.Begin("", unix.RTM_DELLINK, unix.NLM_F_ACK)
		putLink(r, 0, 0)
		r.Uint32(unix.IFLA_GROUP, deletionGroup)
	})
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}
