package record

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
)

// Sweep removes what crashes left: reservations without a record, empty
// directories of reservations, drafts, and files of pools. It skips locked
// allocations, so it may run concurrently with all other operations.
func (s *Store) Sweep(ctx context.Context) error {
	if err := s.checkDirs(); err != nil {
		return fmt.Errorf("sweep state directory: %w", fault(s.state, err))
	}
	reserved := map[string][]reservation{}
	var errs []error
	for _, c := range s.index.all() {
		ids, err := s.index.holders(c)
		errs = append(errs, err)
		for _, id := range ids {
			reserved[id] = append(reserved[id], c)
		}
	}
	for id, reservations := range reserved {
		s.prune(id, reservations)
	}
	for _, c := range s.index.all() {
		// An operation that adds a reservation at this moment creates the
		// directory again.
		if err := unix.Rmdir(s.index.dir(c.key)); err != nil && err != unix.ENOTEMPTY && err != unix.ENOENT {
			errs = append(errs, pathError("remove", s.index.dir(c.key), err))
		}
	}
	errs = append(errs, s.sweepDrafts(ctx), s.SweepPools(), s.trimMarkers())
	return errors.Join(errs...)
}

// sweepDrafts removes drafts. It holds the lock of the reservations, because a
// holder of that lock may be completing the index, with drafts for all
// allocations.
func (s *Store) sweepDrafts(ctx context.Context) error {
	unlock, err := s.LockReservations(ctx)
	if err != nil {
		return fmt.Errorf("sweep state directory: %w", fault(s.state, err))
	}
	defer unlock()
	var errs []error
	for _, id := range drafts(s.dir, suffix) {
		errs = append(errs, s.removeDraft(id, s.draft(id)))
	}
	for _, id := range drafts(string(s.index), "") {
		errs = append(errs, s.removeDraft(id, s.index.draft(id)))
	}
	return errors.Join(errs...)
}

// drafts returns the allocations that have a draft in a directory.
func drafts(dir, suffix string) []string {
	entries, _ := os.ReadDir(dir) // the next sweep finds a missed draft
	var ids []string
	for _, e := range entries {
		id, hidden := strings.CutPrefix(e.Name(), ".")
		id, whole := strings.CutSuffix(id, suffix)
		if hidden && whole && !e.IsDir() && names.ValidateContainer(id) == nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// removeDraft removes a draft, unless its allocation is locked.
func (s *Store) removeDraft(id, draft string) error {
	unlock, ok := s.tryLock(id)
	if !ok {
		return nil
	}
	defer unlock()
	return remove(draft)
}

// maxMarkers is more than the number of configured networks of a host. Networks
// whose configuration is part of a request may have any number of names.
const maxMarkers = 1024

// trimMarkers removes all first-use markers if there are too many. The next ADD
// on each network then runs alone.
func (s *Store) trimMarkers() error {
	entries, err := os.ReadDir(s.markerDir())
	if errors.Is(err, fs.ErrNotExist) || len(entries) <= maxMarkers {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, remove(filepath.Join(s.markerDir(), e.Name())))
	}
	return errors.Join(errs...)
}
