package lease

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	firstPoll = 200 * time.Microsecond
	lastPoll  = 5 * time.Millisecond
)

// queues limits polling for the lock of a directory to one goroutine of this process.
// flock alone would be correct, because each call opens the file again, but all waiting
// goroutines would poll.
var queues sync.Map // directory -> chan struct{}

// lock waits for the lock of the directory. The error is fs.ErrNotExist if the
// directory does not exist. lock polls, because a thread in flock(2) cannot be
// cancelled: for each caller whose context ends, one thread would keep waiting.
func (s *Store) lock(ctx context.Context) (unlock func(), err error) {
	return s.lockWith(ctx, unix.O_CREAT)
}

// lockWith is lock with additional flags for opening the lock file.
func (s *Store) lockWith(ctx context.Context, flags int) (unlock func(), err error) {
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
	return func() {
		unix.Close(fd)
		<-queue
	}, nil
}

// flock opens and locks the lock file. Closing the descriptor releases the lock.
func (s *Store) flock(ctx context.Context, flags int) (int, error) {
	for {
		if err := ctx.Err(); err != nil {
			return -1, err
		}
		file := s.dir + "/lock"
		fd, err := openFile(file, unix.O_RDONLY|flags)
		if err != nil {
			return -1, &fs.PathError{Op: "open", Path: file, Err: err}
		}
		if err := waitFlock(ctx, fd); err != nil {
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

func waitFlock(ctx context.Context, fd int) error {
	for wait := firstPoll; ; wait = min(2*wait, lastPoll) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
	}
}
