package record

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/statedir"
)

// lockFile is a descriptor of the lock file for one holder of locks.
type lockFile struct {
	fd   int
	file fileID
	idle *idleLocks
}

// fileID identifies a file.
type fileID struct{ device, inode uint64 }

// idleLocks keeps descriptors of the lock file without locks for the next holders. To open
// and close one for each lock takes longer than the lock.
type idleLocks struct {
	mu     sync.Mutex
	files  []lockFile
	closed bool
	// expiry closes the descriptors when no operation has used one for a while, so that a
	// process without work does not keep the file system of the state directory busy.
	expiry *time.Timer
}

// idleFor is how long unused descriptors are kept.
const idleFor = time.Second

// mostIdleLocks is the number of descriptors that a store keeps: an operation holds three at a
// time, and a pool prepares namespaces beside it.
const mostIdleLocks = 8

// newIdleLocks returns the descriptors of a store, which are closed when the store is no
// longer used.
func newIdleLocks(s *Store) *idleLocks {
	i := &idleLocks{}
	runtime.AddCleanup(s, (*idleLocks).closeAll, i)
	return i
}

// take returns a descriptor of the given file, if there is one. It closes those of other
// files.
func (i *idleLocks) take(file fileID) (lockFile, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for last := len(i.files) - 1; last >= 0; last-- {
		l := i.files[last]
		i.files = i.files[:last]
		if l.file == file {
			return l, true
		}
		_ = unix.Close(l.fd)
	}
	return lockFile{}, false
}

// give keeps a descriptor that has no locks.
func (i *idleLocks) give(l lockFile) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.files) < mostIdleLocks && !i.closed {
		i.files = append(i.files, l)
		if i.expiry == nil {
			i.expiry = time.AfterFunc(idleFor, i.expire)
		} else {
			i.expiry.Reset(idleFor)
		}
		return
	}
	_ = unix.Close(l.fd)
}

// expire closes all descriptors. The next ones are kept again.
func (i *idleLocks) expire() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, l := range i.files {
		_ = unix.Close(l.fd)
	}
	i.files = nil
}

func (i *idleLocks) closeAll() {
	i.expire()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
}

// openLocks returns a descriptor of the lock file, an idle one if it is still that of the
// file at the path.
func (s *Store) openLocks() (*lockFile, error) {
	var stat unix.Stat_t
	if unix.Lstat(s.locks, &stat) == nil && statedir.CheckFileStat(s.locks, &stat) == nil {
		if l, ok := s.idle.take(fileID{stat.Dev, stat.Ino}); ok {
			return &l, nil
		}
	}
	fd, err := openFile(s.locks, unix.O_RDWR|unix.O_CREAT)
	if errors.Is(err, fs.ErrNotExist) { // the state directory was removed
		if err = os.MkdirAll(s.dir, 0o700); err == nil {
			fd, err = openFile(s.locks, unix.O_RDWR|unix.O_CREAT)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", fault(s.state, err))
	}
	l := &lockFile{fd: fd, idle: s.idle}
	if unix.Fstat(fd, &stat) == nil {
		l.file = fileID{stat.Dev, stat.Ino}
	}
	return l, nil
}

// take waits for the lock of n bytes from an offset.
func (l *lockFile) take(ctx context.Context, kind int16, offset, n int64) error {
	wait, last := firstPoll, lastPoll
	if offset == offsetReservations {
		last = lastReservationsPoll
	}
	for {
		err := l.set(kind, offset, n)
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

func (l *lockFile) release(offset, n int64) error { return l.set(unix.F_UNLCK, offset, n) }

// set sets the lock of n bytes from an offset; 0 is all bytes.
func (l *lockFile) set(kind int16, offset, n int64) error {
	for {
		err := unix.FcntlFlock(uintptr(l.fd), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Start: offset, Len: n})
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// close releases all locks. It may be called again.
func (l *lockFile) close() {
	if l.fd < 0 {
		return
	}
	if l.file != (fileID{}) && l.release(0, 0) == nil {
		l.idle.give(*l)
	} else {
		_ = unix.Close(l.fd)
	}
	l.fd = -1
}
