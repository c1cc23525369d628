package record

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/portmap"
)

// NetnsError reports that a network namespace belongs to another allocation.
type NetnsError struct {
	Netns   string // path in the requesting allocation
	ID      string // of the requesting allocation
	OtherID string // of the allocation that has it
}

// Error implements error.
func (e *NetnsError) Error() string {
	return fmt.Sprintf("network namespace %q of allocation %q is that of allocation %q", e.Netns, e.ID, e.OtherID)
}

// ContainerError reports that objects of an allocation would have the same owner as those of
// another one.
type ContainerError struct {
	ContainerID string
	ID          string // of the requesting allocation
	OtherID     string // of the allocation that has the container
	// Interface reports that both have an interface of the container, of the same name in the same
	// network. Otherwise, the container is named as one of the two.
	Interface bool
}

// Error implements error.
func (e *ContainerError) Error() string {
	if e.Interface {
		return fmt.Sprintf("the interface of allocation %q in container %q is that of allocation %q", e.ID, e.ContainerID, e.OtherID)
	}
	return fmt.Sprintf("container %q of allocation %q is that of allocation %q", e.ContainerID, e.ID, e.OtherID)
}

// Reserve writes a record, unless another record has its network namespace, one
// of its host ports, or its interface in the same container. Other interfaces of one
// container do not conflict. On a conflict Reserve writes nothing, and errors.As finds a
// *NetnsError, a *ContainerError, or a
// *portmap.ConflictError with both mappings and IDs. The time it takes depends on
// the number of the record's ports, not on the number of records. The caller holds
// the lock of the allocation.
//
// With WaitForPorts, host ports do not conflict, apart from those that an update adds. Reserve then sets
// PortOrder.
//
// A record that may conflict but cannot be read is not a conflict; Reserve passes
// the error to warn.
func (s *Store) Reserve(ctx context.Context, r *Record, warn func(error)) error {
	text, err := textOf(r) // before taking the lock
	if err != nil {
		return err
	}
	order := r.PortOrder
	return s.reserve(ctx, r, r.reservations(), warn, func() error {
		if r.PortOrder != order {
			if text, err = textOf(r); err != nil {
				return err
			}
		}
		return s.write(r.ID, text)
	})
}

// reserve adds reservations of a record to the index, unless other records have
// them, and calls write, which writes the record.
func (s *Store) reserve(ctx context.Context, r *Record, reservations []reservation, warn func(error), write func() error) error {
	unlock, err := s.LockReservations(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.completeIndex(warn); err != nil {
		return err
	}
	holders, created, err := s.holders(r.ID, reservations)
	if err == nil {
		err = s.addNamesakes(r, holders)
	}
	if err == nil {
		err = s.checkHolders(r, holders, warn)
	}
	if err != nil {
		for _, c := range created {
			_ = unix.Rmdir(s.index.dir(c.key)) // an empty directory is not a reservation
		}
		return err
	}
	if err = s.addAll(r.ID, reservations); err == nil {
		err = write()
	}
	if err != nil {
		return errors.Join(err, s.releaseAll(r.ID, reservations))
	}
	return nil
}

// addAll adds reservations of an allocation to the index.
func (s *Store) addAll(id string, reservations []reservation) error {
	for _, c := range reservations {
		if err := s.index.add(id, c); err != nil {
			return err
		}
	}
	return nil
}

// holders returns the allocations other than id that, according to the index,
// have one of the requested reservations. If a reservation has no directory
// yet, holders creates it, which is the quickest test.
func (s *Store) holders(id string, reservations []reservation) (holders map[string][]reservation, created []reservation, err error) {
	holders = map[string][]reservation{}
	look := func(c reservation) error {
		ids, err := s.index.holders(c)
		for _, other := range ids {
			if other != id {
				holders[other] = append(holders[other], c)
			}
		}
		return err
	}
	overlapping, err := s.index.overlapping(reservations)
	for _, c := range overlapping {
		err = errors.Join(err, look(c))
	}
	if err != nil {
		return nil, nil, err
	}
	for _, c := range reservations {
		if unix.Mkdir(s.index.dir(c.key), 0o700) == nil {
			created = append(created, c)
		} else if err := look(c); err != nil {
			return nil, created, err
		}
	}
	return holders, created, nil
}

// addNamesakes adds the allocations that may have the container of r to the holders.
func (s *Store) addNamesakes(r *Record, holders map[string][]reservation) error {
	ids, err := s.namesakes(r)
	for _, id := range ids {
		holders[id] = append(holders[id], containerReservation(r.Container()))
	}
	return err
}

// namesakes returns the allocations that may have the container of r: one that is named as the
// container, and those that have reserved it.
func (s *Store) namesakes(r *Record) ([]string, error) {
	if r.Slot != "" {
		return nil, nil
	}
	ids, err := s.index.holders(containerReservation(r.Container()))
	if r.ContainerID != "" {
		if _, missing := os.Lstat(s.file(r.ContainerID)); missing == nil {
			ids = append(ids, r.ContainerID)
		}
	}
	return slices.DeleteFunc(ids, func(id string) bool { return id == r.ID }), err
}

// Namesake returns the ID of an allocation with a record whose objects on the host have the same owner
// as those of r, which has no record; "" if there is none.
func (s *Store) Namesake(r *Record) (string, error) {
	ids, err := s.namesakes(r)
	if err == nil && !s.index.isComplete() {
		ids, err = s.IDs()
	}
	for _, id := range ids {
		other, err := s.Get(id)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return "", err
		case id != r.ID && sameOwner(r, other):
			return id, nil
		}
	}
	return "", err
}

// sameOwner reports whether objects of two allocations have the same owner: they have one container, and
// are not both interfaces of it with different names.
func sameOwner(r, other *Record) bool {
	if r.Container() != other.Container() {
		return false
	}
	if r.ContainerID == "" || other.ContainerID == "" {
		return true
	}
	return r.meets(other, func(a, b Attachment) bool { return a.Network == b.Network && a.IfName == b.IfName })
}

// checkHolders compares r with the records of the holders, by ID.
func (s *Store) checkHolders(r *Record, holders map[string][]reservation, warn func(error)) error {
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

// conflict returns an error if two records conflict. The attachments of one
// container share its host ports. If r waits for a host port of the other, conflict sets its PortOrder.
func conflict(r, other *Record) error {
	if sameOwner(r, other) {
		return &ContainerError{ContainerID: r.Container(), ID: r.ID, OtherID: other.ID, Interface: r.ContainerID != "" && other.ContainerID != ""}
	}
	if r.SameNetns(other) {
		if share(r, other) {
			return nil
		}
		return &NetnsError{Netns: r.Netns, ID: r.ID, OtherID: other.ID}
	}
	if wanted, taken, found := portmap.FindConflict(r.exclusivePorts(), other.Ports); found {
		return &portmap.ConflictError{Mapping: wanted, Other: taken, ID: r.ID, OtherID: other.ID}
	}
	if _, _, found := portmap.FindConflict(r.Ports, other.Ports); found && r.Update == nil {
		r.PortOrder = max(r.PortOrder, other.PortOrder+1)
	}
	return nil
}

// exclusivePorts returns the host ports of a record that no other allocation may have: with WaitForPorts,
// those that an update adds.
func (r *Record) exclusivePorts() []portmap.Mapping {
	switch {
	case !r.WaitForPorts:
		return r.Ports
	case r.Update == nil:
		return nil
	}
	had := r.PortsBefore()
	return slices.DeleteFunc(slices.Clone(r.Ports), func(m portmap.Mapping) bool {
		return slices.ContainsFunc(had, func(h portmap.Mapping) bool {
			return h.HostPort == m.HostPort && h.Protocol == m.Protocol && h.HostIP == m.HostIP
		})
	})
}

// PortHolder is an allocation that has host ports for which another one waits.
type PortHolder struct {
	ID string
	// Mapping is the host port of the one that waits, Other that of the holder: they overlap.
	Mapping, Other portmap.Mapping
}

// PortHolders returns, for each host port of a record, the allocation that has it if the record waits for it. It
// looks at the records of the allocations that have reserved the same host ports.
func (s *Store) PortHolders(r *Record) ([]PortHolder, error) {
	if r.PortOrder == 0 || len(r.Ports) == 0 {
		return nil, nil
	}
	wanted := reservationsOf(r.Netns, r.Ports)[1:] // the first is the network namespace
	more, err := s.index.overlapping(wanted)
	if err != nil {
		return nil, err
	}
	older := map[string]*Record{}
	for _, c := range append(wanted, more...) {
		ids, err := s.index.holders(c)
		if err != nil {
			return nil, err
		}
		for _, id := range ids {
			if other, err := s.Get(id); err == nil && other.PortOrder < r.PortOrder && !other.SameNetns(r) {
				older[id] = other
			}
		}
	}
	var holders []PortHolder
	byAge := slices.SortedFunc(maps.Values(older), func(a, b *Record) int {
		return cmp.Or(cmp.Compare(a.PortOrder, b.PortOrder), cmp.Compare(a.ID, b.ID))
	})
	for _, m := range r.Ports {
		for _, other := range byAge {
			if _, theirs, found := portmap.FindConflict([]portmap.Mapping{m}, other.Ports); found {
				holders = append(holders, PortHolder{ID: other.ID, Mapping: m, Other: theirs})
				break
			}
		}
	}
	return holders, nil
}

// share reports whether two records belong to one container and have different
// interfaces in it, apart from the loopback interface.
func share(r, other *Record) bool {
	if r.ContainerID == "" || r.ContainerID != other.ContainerID {
		return false
	}
	return !r.meets(other, func(a, b Attachment) bool { return a.IfName == b.IfName })
}

// meets reports whether two records have interfaces that are the same in some sense, apart from the
// loopback interface. A Pending attachment may have one.
func (r *Record) meets(other *Record, same func(a, b Attachment) bool) bool {
	theirs := other.withPending()
	return slices.ContainsFunc(r.withPending(), func(a Attachment) bool {
		return !a.Loopback && slices.ContainsFunc(theirs, func(b Attachment) bool { return same(a, b) })
	})
}

func (r *Record) withPending() []Attachment {
	if r.Pending == nil {
		return r.Attachments
	}
	return append(slices.Clone(r.Attachments), *r.Pending)
}

// prune removes those reservations of an allocation that its record does not
// contain. If the allocation is locked, the operation that holds the lock may
// be about to write that record. Then prune does nothing, and a later call
// removes stale reservations.
func (s *Store) prune(id string, reservations []reservation) {
	unlock, ok := s.tryLock(id)
	if !ok {
		return
	}
	defer unlock()
	r, err := s.Get(id)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return
	}
	var known []reservation
	if err == nil {
		known = r.reservations()
	}
	for _, c := range reservations {
		if !slices.ContainsFunc(known, func(k reservation) bool { return k.key == c.key }) {
			_ = s.index.release(id, c) // a stale reservation only costs time
		}
	}
}

// releaseAll removes the reservations for a record that could not be written.
func (s *Store) releaseAll(id string, reservations []reservation) error {
	if _, err := os.Lstat(s.file(id)); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var errs []error
	for _, c := range reservations {
		errs = append(errs, s.index.release(id, c))
	}
	return errors.Join(errs...)
}

// completeIndex builds the index from the records, unless it is marked as
// complete. The caller holds the lock of the reservations. Records written
// meanwhile add their own reservations.
func (s *Store) completeIndex(warn func(error)) error {
	if s.index.isComplete() {
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
		for _, c := range r.reservations() {
			if err := s.index.add(id, c); err != nil {
				return err
			}
		}
	}
	if err := os.MkdirAll(string(s.index), 0o700); err != nil {
		return fmt.Errorf("complete index of reservations: %w", fault(s.state, err))
	}
	return s.markComplete()
}

func (s *Store) markComplete() error {
	fd, err := openFile(s.index.complete(), unix.O_CREAT|unix.O_WRONLY)
	if err != nil {
		return fmt.Errorf("complete index of reservations: %w", fault(s.state, err))
	}
	return errors.Join(closeFile(fd, s.index.complete()), remove(s.index.completeBefore()))
}
