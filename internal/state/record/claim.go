package record

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/portmap"
)

// NetnsError says that a network namespace is that of another allocation.
type NetnsError struct {
	Netns   string // as the allocation that wants it has it
	ID      string // of that allocation
	OtherID string // of the one that has it
}

func (e *NetnsError) Error() string {
	return fmt.Sprintf("network namespace %q of allocation %q is that of allocation %q", e.Netns, e.ID, e.OtherID)
}

// Claim puts a record, if no other record has its network namespace or one of its
// host ports, but for those of the same container. Otherwise nothing is written, and errors.As finds a *NetnsError, or
// a *portmap.ConflictError with both mappings and IDs. The time it takes depends
// on the record's own ports, not on how many records there are. The caller holds
// the lock of the allocation.
//
// A record that is in the way but cannot be read is no conflict, since nobody
// knows; warn is told of it.
func (s *Store) Claim(ctx context.Context, r *Record, warn func(error)) error {
	text, err := textOf(r) // others need not wait for that
	if err != nil {
		return err
	}
	unlock, err := s.LockClaims(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.completeIndex(warn); err != nil {
		return err
	}
	claims := r.claims()
	holders, begun, err := s.holders(r.ID, claims)
	if err == nil {
		err = s.ask(r, holders, warn)
	}
	if err != nil {
		for _, c := range begun {
			_ = unix.Rmdir(s.claims.thing(c.thing)) // an empty directory is nobody's claim
		}
		return err
	}
	if err := s.put(r, claims, text); err != nil {
		return errors.Join(err, s.abandon(r.ID, claims))
	}
	return nil
}

// holders are those other than id who are said to have some of what is claimed.
// Where there is nobody, the claim is begun: its directory is made, which is the
// quickest way to find that out.
func (s *Store) holders(id string, claims []claim) (holders map[string][]claim, begun []claim, err error) {
	holders = map[string][]claim{}
	look := func(c claim) error {
		ids, err := s.claims.holders(c)
		for _, other := range ids {
			if other != id {
				holders[other] = append(holders[other], c)
			}
		}
		return err
	}
	crossing, err := s.claims.crossing(claims)
	for _, c := range crossing {
		err = errors.Join(err, look(c))
	}
	if err != nil {
		return nil, nil, err
	}
	for _, c := range claims {
		if unix.Mkdir(s.claims.thing(c.thing), 0o700) == nil {
			begun = append(begun, c)
		} else if err := look(c); err != nil {
			return nil, begun, err
		}
	}
	return holders, begun, nil
}

// ask looks into the records of those who are said to have what r wants, by ID.
func (s *Store) ask(r *Record, holders map[string][]claim, warn func(error)) error {
	ids := make([]string, 0, len(holders))
	for id := range holders {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	for _, id := range ids {
		other, err := s.Get(id)
		switch {
		case err == nil:
			if err := conflict(r, other); err != nil {
				return err
			}
			s.prune(id, holders[id])
		case errors.Is(err, fs.ErrNotExist):
			s.prune(id, holders[id])
		default:
			warn(err)
		}
	}
	return nil
}

// conflict returns the error of two records that cannot both be. The attachments of
// one container share its host ports.
func conflict(r, other *Record) error {
	if r.SameNetns(other) {
		if share(r, other) {
			return nil
		}
		return &NetnsError{Netns: r.Netns, ID: r.ID, OtherID: other.ID}
	}
	if wanted, taken, found := portmap.FindConflict(r.Ports, other.Ports); found {
		return &portmap.ConflictError{Mapping: wanted, Other: taken, ID: r.ID, OtherID: other.ID}
	}
	return nil
}

// share reports whether two records are of one container, which has an interface
// for each of them beside the loopback interface.
func share(r, other *Record) bool {
	if r.ContainerID == "" || r.ContainerID != other.ContainerID {
		return false
	}
	for _, a := range r.Attachments {
		if !a.Loopback && slices.ContainsFunc(other.Attachments, func(b Attachment) bool { return a.IfName == b.IfName }) {
			return false
		}
	}
	return true
}

// prune removes those claims of an allocation that its record does not know. Who
// works on the allocation just now may be about to write that record: then the
// claims stay, and are found stale another time.
func (s *Store) prune(id string, claims []claim) {
	unlock, ok := s.tryLock(id)
	if !ok {
		return
	}
	defer unlock()
	r, err := s.Get(id)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return
	}
	var known []claim
	if err == nil {
		known = r.claims()
	}
	for _, c := range claims {
		if !slices.ContainsFunc(known, func(k claim) bool { return k.thing == c.thing }) {
			_ = s.claims.leave(id, c) // stale claims cost time, nothing else
		}
	}
}

// abandon gives back what was claimed for a record that could not be written.
func (s *Store) abandon(id string, claims []claim) error {
	if _, err := os.Lstat(s.file(id)); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var errs []error
	for _, c := range claims {
		errs = append(errs, s.claims.leave(id, c))
	}
	return errors.Join(errs...)
}

// completeIndex makes the index from the records where it is not known to have all
// of them. The lock of the claims is held; records that are written meanwhile
// enter their claims by themselves.
func (s *Store) completeIndex(warn func(error)) error {
	if info, err := os.Lstat(s.claims.complete()); err == nil && info.Mode().IsRegular() {
		return nil
	}
	ids, err := s.IDs()
	if err != nil {
		return err
	}
	for _, id := range ids {
		r, err := s.Get(id)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			warn(err)
			continue
		}
		for _, c := range r.claims() {
			if err := s.claims.enter(id, c); err != nil {
				return err
			}
		}
	}
	if err := os.MkdirAll(string(s.claims), 0o700); err != nil {
		return fmt.Errorf("complete index of claims: %w", fault(s.state, err))
	}
	return s.markComplete()
}

func (s *Store) markComplete() error {
	fd, err := openFile(s.claims.complete(), unix.O_CREAT|unix.O_WRONLY)
	if err != nil {
		return fmt.Errorf("complete index of claims: %w", fault(s.state, err))
	}
	return errors.Join(closeFile(fd, s.claims.complete()), remove(s.claims.completeBefore()))
}
