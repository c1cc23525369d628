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

// Sweep removes what crashes left: claims that no record claims, directories of
// claims that nobody has any more, and drafts of records and claims. What somebody
// works on is left alone, so it may run beside everything.
func (s *Store) Sweep(ctx context.Context) error {
	if err := s.checkDirs(); err != nil {
		return fmt.Errorf("sweep state directory: %w", err)
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
		// Who is about to enter a claim makes the directory again.
		if err := unix.Rmdir(s.claims.thing(c.thing)); err != nil && err != unix.ENOTEMPTY && err != unix.ENOENT {
			errs = append(errs, pathError("remove", s.claims.thing(c.thing), err))
		}
	}
	errs = append(errs, s.sweepDrafts(ctx), s.trimWarm())
	return errors.Join(errs...)
}

// sweepDrafts removes drafts. The lock of the claims is held: who has it may complete
// the index, with drafts of all allocations.
func (s *Store) sweepDrafts(ctx context.Context) error {
	unlock, err := s.LockClaims(ctx)
	if err != nil {
		return fmt.Errorf("sweep state directory: %w", err)
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

// removeDraft removes a draft, unless somebody works on its allocation.
func (s *Store) removeDraft(id, draft string) error {
	unlock, ok := s.tryLock(id)
	if !ok {
		return nil
	}
	defer unlock()
	return remove(draft)
}

// mostWarm is more than a host has networks that are configured. Those that
// allocations bring along may have any number of names.
const mostWarm = 1024

// trimWarm forgets on which networks an ADD has succeeded, where they are too many:
// the next ADD of each goes alone.
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
