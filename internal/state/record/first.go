package record

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/statedir"
)

// firstPatience bounds how long an ADD waits for another one to be the first of
// its network: one that hangs must not hold up the others for long.
const firstPatience = 3 * time.Second

// First lets the first ADD of a kind go alone: plugins create what all
// allocations of a host share, such as chains, and several that do so at once
// get in each other's way. Much of that is also the same for all networks, so there
// is one lock for all kinds. The kinds are names that can be file names. It
// returns at once where an ADD of each kind has succeeded since the host was
// started. The returned function must be called when the ADD has ended.
func (s *Store) First(ctx context.Context, kinds ...string) (done func(succeeded bool), err error) {
	if s.warm(kinds) {
		return func(bool) {}, nil
	}
	l, err := s.openLocks()
	if err != nil {
		return nil, err
	}
	patient, cancel := context.WithTimeout(ctx, patience(ctx))
	defer cancel()
	if err := l.take(patient, writeLock, offsetFirst); err != nil && ctx.Err() != nil {
		l.close()
		return nil, fmt.Errorf("wait for the first allocation of a network: %w", err)
	}
	if s.warm(kinds) {
		l.close()
		return func(bool) {}, nil
	}
	return func(succeeded bool) {
		if succeeded {
			s.setWarm(kinds)
		}
		l.close()
	}, nil
}

// patience is little of the time that the caller has left.
func patience(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(firstPatience, time.Until(deadline)/4)
	}
	return firstPatience
}

func (s *Store) warmDir() string { return filepath.Join(s.state, "warm") }

func (s *Store) warmFile(kind string) string {
	return filepath.Join(s.warmDir(), kind)
}

func (s *Store) warm(kinds []string) bool {
	for _, kind := range kinds {
		if _, err := os.Lstat(s.warmFile(kind)); err != nil {
			return false
		}
	}
	return true
}

// setWarm may fail: then the next ADD goes alone, too.
func (s *Store) setWarm(kinds []string) {
	if os.MkdirAll(s.warmDir(), 0o700) != nil || statedir.CheckDirs(s.warmDir()) != nil {
		return
	}
	for _, kind := range kinds {
		if fd, err := openFile(s.warmFile(kind), unix.O_WRONLY|unix.O_CREAT); err == nil {
			unix.Close(fd)
		}
	}
}
