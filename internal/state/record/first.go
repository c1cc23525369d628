package record

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/allocnet/allocnet/internal/smallfile"
	"github.com/allocnet/allocnet/internal/state/statedir"
)

// maxFirstWait bounds how long an ADD waits for the first ADD of its network, in case
// that one hangs.
const maxFirstWait = 3 * time.Second

// maxBoot is more than the length of the ID of a boot.
const maxBoot = 128

// First makes the first ADD of a kind run alone. Plugins create objects that
// all allocations of a host share, such as chains, and concurrent plugins that
// create them interfere with each other. Most of these objects are also the
// same for all networks, so there is one lock for all kinds. Kinds are valid
// file names. First returns at once if an ADD of each kind has succeeded since
// boot. The caller calls done after the ADD.
func (s *Store) First(ctx context.Context, kinds ...string) (done func(succeeded bool), err error) {
	if s.used(kinds) {
		return func(bool) {}, nil
	}
	l, err := s.openLocks()
	if err != nil {
		return nil, err
	}
	waitCtx, cancel := context.WithTimeout(ctx, firstWait(ctx))
	defer cancel()
	if err := l.take(waitCtx, writeLock, offsetFirst, 1); err != nil && ctx.Err() != nil {
		l.close()
		return nil, fmt.Errorf("wait for the first allocation of a network: %w", err)
	}
	if s.used(kinds) {
		l.close()
		return func(bool) {}, nil
	}
	return func(succeeded bool) {
		if succeeded {
			s.markUsed(kinds)
		}
		l.close()
	}, nil
}

// firstWait returns how long to wait: a fraction of the caller's remaining
// time.
func firstWait(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return min(maxFirstWait, time.Until(deadline)/4)
	}
	return maxFirstWait
}

func (s *Store) markerDir() string { return filepath.Join(s.state, "warm") }

func (s *Store) markerFile(kind string) string {
	return filepath.Join(s.markerDir(), kind)
}

// used reports whether there is a marker of this boot for each kind.
func (s *Store) used(kinds []string) bool {
	current, err := s.boot()
	if err != nil {
		return false
	}
	for _, kind := range kinds {
		made, err := smallfile.ReadOwn(s.markerFile(kind), maxBoot)
		if err != nil || string(made) != current {
			return false
		}
	}
	return true
}

// markUsed writes first-use markers, which contain the ID of this boot. If it fails, the next ADD of the
// kind also runs alone.
func (s *Store) markUsed(kinds []string) {
	current, err := s.boot()
	if err != nil || os.MkdirAll(s.markerDir(), 0o700) != nil || statedir.CheckDirs(s.markerDir()) != nil {
		return
	}
	for _, kind := range kinds {
		_ = smallfile.WriteOwn(s.markerFile(kind), []byte(current))
	}
}
