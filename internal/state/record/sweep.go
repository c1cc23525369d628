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

// Sweep removes what crashes left: claims that no record has, empty directories of
// claims, and drafts of records and claims. It leaves alone the allocations that are
// locked, so it may run beside all other operations.
func (s *Store) Sweep(ctx context.Context) error {
	if err := s.checkDirs(); err != nil {
		return fmt.Errorf("sweep state directory: %w", fault(s.state, err))
	}
	claimed := map[string][]claim{}
	var errs []error
	for _, c := range s.claims.all() {
		ids, err := s.claims.holders(c)
		errs = append(errs, err)
		for _, id := range ids {
			claimed[id] = append(claimed[id], c)
		}
	}
	for id, claims := range claimed {
		s.prune(id, claims)
	}
	for _, c := range s.claims.all() {
		// An operation that enters a claim just now makes the directory again.
		if err := unix.Rmdir(s.claims.thing(c.thing)); err != nil && err != unix.ENOTEMPTY && err != unix.ENOENT {
			errs = append(errs, pathError("remove", s.claims.thing(c.thing), err))
		}
	}
	errs = append(errs, s.sweepDrafts(ctx), s.trimWarm())
	return errors.Join(errs...)
}

// sweepDrafts removes drafts. It holds the lock of the claims, because the holder may
// complete the index, with drafts of all allocations.
func (s *Store) sweepDrafts(ctx context.Context) error {
	unlock, err := s.LockClaims(ctx)
	if err != nil {
		return fmt.Errorf("sweep state directory: %w", fault(s.state, err))
	}
	defer unlock()
	var errs []error
	for _, id := range drafts(s.dir, suffix) {
		errs = append(errs, s.removeDraft(id, s.draft(id)))
	}
	for _, id := range drafts(string(s.claims), "") {
		errs = append(errs, s.removeDraft(id, s.claims.draft(id)))
	}
	return errors.Join(errs...)
}

// drafts are the allocations of which there is a draft in a directory.
func drafts(dir, suffix string) []string {
	entries, _ := os.ReadDir(dir) // what is missed is found the next time
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

// mostWarm is more than the number of configured networks of a host. The networks that
// allocations bring along may have any number of names.
const mostWarm = 1024

// trimWarm removes all first-use markers if there are too many of them: the next ADD on
// each network then runs alone.
func (s *Store) trimWarm() error {
	entries, err := os.ReadDir(s.warmDir())
	if errors.Is(err, fs.ErrNotExist) || len(entries) <= mostWarm {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, remove(filepath.Join(s.warmDir(), e.Name())))
	}
	return errors.Join(errs...)
}
