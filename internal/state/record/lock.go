package record

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The locks are byte ranges of one file, held as open file description locks
// (fcntl(2), F_OFD_SETLK). They exclude goroutines and processes alike,
// disappear with the process that holds them, and need no file per allocation.
const (
	offsetReservations = 2 // exclusive between looking for conflicts and recording
	offsetFirst        = 3 // exclusive to the first ADD of any network
	offsetIDs          = 1 << 10
	// offsetNetworks is the offset of the networks, which have two bytes each.
	// The second is the network itself: shared by every operation on it,
	// exclusive to GC. The first is the entry lock: GC holds it while it waits
	// for the second, so that new operations do not starve it.
	offsetNetworks = 1<<62 + 1<<20
)

const (
	readLock  = unix.F_RDLCK
	writeLock = unix.F_WRLCK
)

const (
	firstPoll = 100 * time.Microsecond
	lastPoll  = 50 * time.Millisecond
	// lastReservationsPoll is shorter, because the lock of the reservations is
	// held only briefly.
	lastReservationsPoll = time.Millisecond
)

// Lock waits until no other operation works on the allocation. The returned function
// releases the lock.
//
// Every operation begins here, so Lock also checks the state directory.
func (s *Store) Lock(ctx context.Context, id string) (unlock func(), err error) {
	if err := s.checkDirs(); err != nil {
		return nil, fmt.Errorf("lock allocation %q: state directory: %w", id, fault(s.state, err))
	}
	return s.lockOffsets(ctx, fmt.Sprintf("allocation %q", id), offsetOf(id))
}

// Share waits until no GC of the networks runs, and prevents one until unlock
// is called. The caller takes the lock of the allocation first.
func (s *Store) Share(ctx context.Context, networks []string) (unlock func(), err error) {
	l, err := s.openLocks()
	if err != nil {
		return nil, err
	}
	var offsets []int64
	for _, name := range networks {
		offsets = append(offsets, networkOffset(name))
	}
	slices.Sort(offsets) // one order for all prevents deadlocks
	for _, offset := range slices.Compact(offsets) {
		// The entry lock is taken together with the network itself, and only briefly. So
		// a waiting GC, which holds it, goes first.
		if err = l.take(ctx, readLock, offset, 2); err == nil {
			err = l.release(offset, 1)
		}
		if err != nil {
			l.close()
			return nil, fmt.Errorf("share networks %q with others: %w", networks, err)
		}
	}
	return l.close, nil
}

// LockNetwork waits until no operation on a network runs, and prevents new
// ones. Its holder must not wait for any other lock but that of the
// reservations.
func (s *Store) LockNetwork(ctx context.Context, name string) (unlock func(), err error) {
	return s.lockOffsets(ctx, fmt.Sprintf("network %q", name), networkOffset(name), networkOffset(name)+1)
}

// LockReservations takes the lock under which host ports and network namespaces
// of all records are compared and a record is written. It is held only briefly.
// Reserve takes it itself.
func (s *Store) LockReservations(ctx context.Context) (unlock func(), err error) {
	const object = "host ports and namespaces"
	// Within the process, the channel hands the lock over without polling.
	select {
	case s.queue <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("lock %s: %w", object, ctx.Err())
	}
	release, err := s.lockOffsets(ctx, object, offsetReservations)
	if err != nil {
		<-s.queue
		return nil, err
	}
	return sync.OnceFunc(func() { release(); <-s.queue }), nil
}

// tryLock takes the lock of an allocation if it is free. It may be called with
// any other lock held.
func (s *Store) tryLock(id string) (unlock func(), ok bool) {
	l, err := s.openLocks()
	if err != nil {
		return nil, false
	}
	if l.set(writeLock, offsetOf(id), 1) != nil {
		l.close()
		return nil, false
	}
	return l.close, true
}

// TryLocks takes the locks of those allocations that no other operation works on, and
// returns their IDs in the given order. It does not wait. The returned function releases
// all of them.
func (s *Store) TryLocks(ids []string) (locked []string, unlock func(), err error) {
	if err := s.checkDirs(); err != nil {
		return nil, nil, fmt.Errorf("lock %d allocations: state directory: %w", len(ids), fault(s.state, err))
	}
	l, err := s.openLocks()
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		if l.set(writeLock, offsetOf(id), 1) == nil {
			locked = append(locked, id)
		}
	}
	return locked, l.close, nil
}

func (s *Store) lockOffsets(ctx context.Context, object string, offsets ...int64) (func(), error) {
	l, err := s.openLocks()
	if err != nil {
		return nil, err
	}
	for _, o := range offsets {
		if err := l.take(ctx, writeLock, o, 1); err != nil {
			l.close()
			return nil, fmt.Errorf("lock %s: %w", object, err)
		}
	}
	return l.close, nil
}

// offsetOf maps an ID to an offset by its hash. Two IDs with the same offset
// only wait for each other.
func offsetOf(id string) int64 { return offsetIDs + int64(hash(id)>>2) }

// networkOffset returns the offset of a network's entry lock. The next offset
// is the network itself.
func networkOffset(network string) int64 { return offsetNetworks + 2*int64(hash(network)>>4) }

func hash(text string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(text))
	return h.Sum64()
}
