package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// FlushAddresses deletes the entries that lead to one of the addresses, whether the
// first packet was sent to the address or redirected to it, and the entries whose first
// packet came from one. It does so for all protocols. Calls that arrive while another
// one runs share the next walk through the kernel's table.
func (c *Conn) FlushAddresses(ctx context.Context, addrs ...netip.Addr) error {
	if len(addrs) == 0 || c.count() == 0 {
		return nil
	}
	err := ctx.Err()
	if err == nil {
		err = c.addresses.flush(ctx, addrs, c.flushAddresses)
	}
	if err != nil {
		return fmt.Errorf("delete tracked connections of %v: %w", addrs, err)
	}
	return nil
}

// addressQueue collects addresses while others are being flushed.
type addressQueue struct {
	mu      sync.Mutex
	waiting []*addressFlush
	running bool
}

type addressFlush struct {
	addrs []netip.Addr
	done  chan error
}

// flush waits until the addresses have been flushed, together with those of other
// calls, whose errors it does not return. If the context ends, flush returns, but the addresses are flushed all the
// same.
func (q *addressQueue) flush(ctx context.Context, addrs []netip.Addr, do func([]netip.Addr) error) error {
	one := &addressFlush{addrs: addrs, done: make(chan error, 1)}
	q.mu.Lock()
	q.waiting = append(q.waiting, one)
	if !q.running {
		q.running = true
		go q.run(do)
	}
	q.mu.Unlock()
	select {
	case err := <-one.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (q *addressQueue) run(do func([]netip.Addr) error) {
	for {
		q.mu.Lock()
		batch := q.waiting
		q.waiting, q.running = nil, len(batch) > 0
		q.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		var addrs []netip.Addr
		for _, one := range batch {
			addrs = append(addrs, one.addrs...)
		}
		err := do(addrs)
		for _, one := range batch {
			if err != nil && len(batch) > 1 { // perhaps because of the others
				one.done <- do(one.addrs)
			} else {
				one.done <- err
			}
		}
	}
}

// flushAddresses deletes the entries of all addresses, in one walk for each family if
// possible. If it fails for one family, it continues with the other.
func (c *Conn) flushAddresses(addrs []netip.Addr) error {
	var list []netip.Addr
	for _, a := range addrs {
		if a = a.Unmap(); a.IsValid() && !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	list = c.present(list)
	var errs []error
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		of := slices.DeleteFunc(slices.Clone(list), func(a netip.Addr) bool { return a.Is4() != (family == unix.AF_INET) })
		errs = append(errs, c.flushFamily(context.Background(), family, of))
	}
	return errors.Join(errs...)
}

// fewAddresses is the maximum number of addresses for which the deletion by filters, in
// two walks each, takes less time than one walk that lists entries.
const fewAddresses = fewWalks / 2

func (c *Conn) flushFamily(ctx context.Context, family uint8, addrs []netip.Addr) error {
	var err error
	if len(addrs) <= fewAddresses {
		addrs, err = c.deleteByAddress(ctx, family, addrs)
	}
	if len(addrs) == 0 {
		return err
	}
	gone := make(map[netip.Addr]bool, len(addrs))
	for _, a := range addrs {
		gone[a] = true
	}
	return errors.Join(err, c.deleteEach(ctx, filter{family: family}, func(e *entry) bool {
		return gone[e.answers.source] || gone[e.source]
	}))
}

// deleteByAddress makes the kernel delete the entries of the addresses, and returns the
// addresses for which the kernel cannot do that. It continues after an error.
func (c *Conn) deleteByAddress(ctx context.Context, family uint8, addrs []netip.Addr) (left []netip.Addr, err error) {
	var errs []error
	for _, a := range addrs {
		deleted, err := c.deleteBy(ctx, filter{family: family, answers: a})
		if deleted {
			deleted, err = c.deleteBy(ctx, filter{family: family, source: a})
		}
		errs = append(errs, err)
		if err == nil && !deleted {
			left = append(left, a)
		}
	}
	return left, errors.Join(errs...)
}
