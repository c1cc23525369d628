package lease

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/flock"
	"github.com/allocnet/allocnet/internal/state/statedir"
)

// queues limits polling for the lock of a directory to one goroutine of this process.
// flock alone would be correct, because each call opens the file again, but all waiting
// goroutines would poll.
var queues sync.Map // directory -> chan struct{}

// dirLock is the lock of a directory while an operation holds it.
type dirLock struct {
	fd    int // of the lock file
	queue chan struct{}
}

func (l *dirLock) unlock() {
	unix.Close(l.fd)
	<-l.queue
}

// lock waits for the lock of the directory. The error is fs.ErrNotExist if the
// directory does not exist.
func (s *Store) lock(ctx context.Context) (*dirLock, error) { return s.lockWith(ctx, unix.O_CREAT) }

// lockWith is lock with additional flags for opening the lock file.
func (s *Store) lockWith(ctx context.Context, flags int) (*dirLock, error) {
	value, _ := queues.LoadOrStore(s.dir, make(chan struct{}, 1))
	queue := value.(chan struct{})
	select {
	case queue <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("lock leases of network %q: %w", s.network, ctx.Err())
	}
	fd, err := s.flock(ctx, flags)
	if err != nil {
		<-queue
		return nil, fmt.Errorf("lock leases of network %q: %w", s.network, err)
	}
	return &dirLock{fd, queue}, nil
}

// flock opens and locks the lock file. Closing the descriptor releases the lock.
func (s *Store) flock(ctx context.Context, flags int) (int, error) {
	for {
		if err := ctx.Err(); err != nil {
			return -1, err
		}
		file := s.dir + "/lock"
		fd, err := openFile(file, unix.O_RDWR|flags)
		if errors.Is(err, unix.EROFS) { // an operation that has to write something names that file
			fd, err = openFile(file, unix.O_RDONLY|flags)
		}
		if err != nil {
			return -1, statedir.Unwritable(file, &fs.PathError{Op: "open", Path: file, Err: err})
		}
		if err := flock.Wait(ctx, fd, unix.LOCK_EX); err != nil {
			unix.Close(fd)
			return -1, err
		}
		var stat unix.Stat_t
		if err := unix.Fstat(fd, &stat); err == nil && stat.Nlink > 0 {
			return fd, nil
		}
		unix.Close(fd) // the lock file was removed meanwhile
	}
}
