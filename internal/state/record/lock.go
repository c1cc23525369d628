package record

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The locks are byte ranges of one file, held as open file description locks
// (fcntl(2), F_OFD_SETLK): they exclude goroutines and processes alike, go away
// with the process that held them, and leave no file per allocation behind.
const (
	offsetClaims = 2 // exclusive between looking for conflicts and recording
	offsetFirst  = 3 // exclusive to the first ADD of a network, whichever it is
	offsetIDs    = 1 << 10
	// offsetNetworks is where each network has two: the gate, held by GC while it
	// waits, so that newcomers do not starve it, and the network itself, shared by
	// every operation on it and exclusive to GC.
	offsetNetworks = 1<<62 + 1<<20
)

const (
	readLock  = unix.F_RDLCK
	writeLock = unix.F_WRLCK
)

const (
	firstPoll = 100 * time.Microsecond
	lastPoll  = 50 * time.Millisecond
	// lastClaimsPoll is short, because the lock of the claims is held for shorter.
	lastClaimsPoll = time.Millisecond
)

// Lock waits until no other operation works on the allocation. The returned function
// gives the lock back.
//
// An operation begins here, so that this also makes sure of the state directory.
func (s *Store) Lock(ctx context.Context, id string) (unlock func(), err error) {
	if err := s.checkDirs(); err != nil {
		return nil, fmt.Errorf("lock allocation %q: state directory: %w", id, fault(s.state, err))
	}
	return s.lockOffsets(ctx, fmt.Sprintf("allocation %q", id), offsetOf(id))
}

// Share waits until no GC of the networks runs, and keeps them from one. It comes
// after the lock of the allocation.
func (s *Store) Share(ctx context.Context, networks []string) (unlock func(), err error) {
	l, err := s.openLocks()
	if err != nil {
		return nil, err
	}
	var gates []int64
	for _, name := range networks {
		gates = append(gates, gateOf(name))
	}
	slices.Sort(gates) // all take them in one order, so that none waits in a circle
	for _, gate := range slices.Compact(gates) {
		// The gate is only passed: waiting for it lets a waiting GC go first.
		if err = l.take(ctx, readLock, gate); err == nil {
			err = l.take(ctx, readLock, gate+1)
		}
		if err == nil {
			err = l.release(gate)
		}
		if err != nil {
			l.close()
			return nil, fmt.Errorf("share networks %q with others: %w", networks, err)
		}
	}
	return l.close, nil
}

// LockNetwork waits until no operation on a network runs and keeps new ones out. Who
// has it must not wait for another lock but that of the claims.
func (s *Store) LockNetwork(ctx context.Context, name string) (unlock func(), err error) {
	return s.lockOffsets(ctx, fmt.Sprintf("network %q", name), gateOf(name), gateOf(name)+1)
}

// LockClaims excludes every other one between looking at what all records claim,
// host ports and network namespaces, and writing a record. It is held for a
// moment only. Claim takes it by itself.
func (s *Store) LockClaims(ctx context.Context) (unlock func(), err error) {
	const what = "host ports and namespaces"
	// Within the process it goes from one to the next, without polling.
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("lock %s: %w", what, ctx.Err())
	}
	release, err := s.lockOffsets(ctx, what, offsetClaims)
	if err != nil {
		<-s.turn
		return nil, err
	}
	return sync.OnceFunc(func() { release(); <-s.turn }), nil
}

// tryLock takes the lock of an allocation if nobody has it. It may be called with
// any other lock held.
func (s *Store) tryLock(id string) (unlock func(), ok bool) {
	l, err := s.openLocks()
	if err != nil {
		return nil, false
	}
	if l.set(writeLock, offsetOf(id)) != nil {
		l.close()
		return nil, false
	}
	return l.close, true
}

func (s *Store) lockOffsets(ctx context.Context, what string, offsets ...int64) (func(), error) {
	l, err := s.openLocks()
	if err != nil {
		return nil, err
	}
	for _, o := range offsets {
		if err := l.take(ctx, writeLock, o); err != nil {
			l.close()
			return nil, fmt.Errorf("lock %s: %w", what, err)
		}
	}
	return l.close, nil
}

// offsetOf spreads the IDs over the file; two that meet merely wait for each other.
func offsetOf(id string) int64 { return offsetIDs + int64(hash(id)>>2) }

// gateOf does that for networks; the offset after it is the network itself.
func gateOf(network string) int64 { return offsetNetworks + 2*int64(hash(network)>>4) }

func hash(text string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(text))
	return h.Sum64()
}

// lockFile is the lock file, opened for one holder of locks.
type lockFile struct{ fd int }

func (s *Store) openLocks() (*lockFile, error) {
	fd, err := openFile(s.locks, unix.O_RDWR|unix.O_CREAT)
	if errors.Is(err, fs.ErrNotExist) { // somebody swept the state directory
		if err = os.MkdirAll(s.dir, 0o700); err == nil {
			fd, err = openFile(s.locks, unix.O_RDWR|unix.O_CREAT)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", fault(s.state, err))
	}
	return &lockFile{fd}, nil
}

func (l *lockFile) take(ctx context.Context, kind int16, offset int64) error {
	wait, last := firstPoll, lastPoll
	if offset == offsetClaims {
		last = lastClaimsPoll
	}
	for {
		err := l.set(kind, offset)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
			wait = min(2*wait, last)
		}
	}
}

func (l *lockFile) release(offset int64) error { return l.set(unix.F_UNLCK, offset) }

func (l *lockFile) set(kind int16, offset int64) error {
	for {
		err := unix.FcntlFlock(uintptr(l.fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: offset, Len: 1})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// close gives all locks back. To call it again does no harm.
func (l *lockFile) close() {
	if l.fd >= 0 {
		_ = unix.Close(l.fd)
		l.fd = -1
	}
}
