package policystate

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// Member returns the member with a key, or nil if there is none.
func (s *Store) Member(key string) (*Member, error) {
	m := &Member{Key: key}
	if found, err := read(s.member(key), m); !found || err != nil {
		return nil, err
	}
	return m, nil
}

// labels returns the names by which members are found.
func (m *Member) labels() []string {
	var names []string
	if m.Allocation != "" {
		names = append(names, AllocationKey(m.Allocation))
	}
	for _, key := range slices.Sorted(maps.Keys(m.Labels)) {
		names = append(names, LabelKey(key, m.Labels[key]))
	}
	return names
}

// PutMember adds a member or replaces it. is is the member that it replaces; nil if there is
// none. Its file goes first, so that DeleteMember finds what an interrupted call has left. If the
// labels or the policy change, the member is Changing until EndChange.
func (s *Session) PutMember(m, is *Member) error {
	now := m.labels()
	m.Changing, m.Stale = false, nil
	if is != nil {
		m.Changing = is.Changing || is.Policy != m.Policy || !slices.Equal(is.labels(), now)
		for _, label := range slices.Concat(is.labels(), is.Stale) {
			if !slices.Contains(now, label) && !slices.Contains(m.Stale, label) {
				m.Stale = append(m.Stale, label)
			}
		}
	}
	if is == nil || !m.equal(is) {
		if err := write(s.member(m.Key), m); err != nil {
			return err
		}
	}
	for _, label := range now { // also of one that is the same: a former call may not have ended
		if err := mark(s.by("members", label), m.Key); err != nil {
			return err
		}
	}
	return nil
}

// equal reports whether two members are equal.
func (m *Member) equal(o *Member) bool {
	return m.Owner == o.Owner && m.Allocation == o.Allocation && m.Policy == o.Policy && m.Former == o.Former &&
		m.Changing == o.Changing && m.Gone == o.Gone && slices.Equal(m.Stale, o.Stale) &&
		maps.Equal(m.Labels, o.Labels) && slices.Equal(m.Addresses, o.Addresses)
}

// EndChange records that a member is only in the selections of its labels, and has no connections that
// its policy denies.
func (s *Session) EndChange(m *Member) error {
	if !m.Changing {
		return nil
	}
	for _, label := range m.Stale {
		if err := unmark(s.by("members", label), m.Key); err != nil {
			return err
		}
	}
	m.Changing, m.Stale = false, nil
	return write(s.member(m.Key), m)
}

// Retire removes a member from its labels and leaves its policies in its file, for their removal.
// DeleteMember follows.
func (s *Session) Retire(m *Member) error {
	if err := s.unmarkLabels(m); err != nil {
		return err
	}
	return write(s.member(m.Key), &Member{Owner: m.Owner, Allocation: m.Allocation, Policy: m.Policy, Former: m.Former, Gone: true})
}

// DeleteMember removes a member. The file with its labels goes last, so that an interrupted
// removal can be repeated.
func (s *Session) DeleteMember(m *Member) error {
	if err := s.unmarkLabels(m); err != nil {
		return err
	}
	return removeFile(s.member(m.Key))
}

func (s *Session) unmarkLabels(m *Member) error {
	for _, label := range slices.Concat(m.labels(), m.Stale) {
		if err := unmark(s.by("members", label), m.Key); err != nil {
			return err
		}
	}
	return nil
}

// Members returns all members, or those with a label if that is not "".
func (s *Store) Members(label string) ([]*Member, error) {
	dir, suffix := s.by("members", label), ""
	if label == "" {
		dir, suffix = s.dir+"/members", ".json"
	}
	keys, err := list(dir, suffix, 0)
	if err != nil {
		return nil, err
	}
	var members []*Member
	for _, key := range keys {
		m, err := s.Member(key)
		if err != nil {
			return nil, err
		}
		if m != nil {
			members = append(members, m)
		}
	}
	return members, nil
}

// SelectionsOf returns the selections that a member may be in: those without a label, and those
// with one of its labels or of its former ones. The caller compares their selectors.
func (s *Session) SelectionsOf(m *Member) ([]Selection, error) {
	var found []Selection
	for _, label := range slices.Concat(m.labels(), m.Stale, []string{anyLabel}) {
		names, err := list(s.by("selections", label), "", 0)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			n, err := s.selectionNamed(name)
			if err != nil {
				return nil, err
			}
			if n != nil {
				found = append(found, *n)
			}
		}
	}
	return found, nil
}

// maxKnown bounds the selections that are kept in memory.
const maxKnown = 1024

// selectionNamed returns a selection, or nil if it does not exist. Its name is a digest of what it is, so
// its file is read once.
func (s *Store) selectionNamed(name string) (*Selection, error) {
	s.mu.Lock()
	n := s.known[name]
	s.mu.Unlock()
	if n != nil {
		return n, nil
	}
	n = &Selection{}
	if exists, err := read(s.selection(name), n); !exists || err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxKnown || s.known == nil {
		s.known = map[string]*Selection{}
	}
	s.known[name] = n
	return n, nil
}

// DropOrphans removes what processes have left that died during a change: labels that no member
// has, and drafts of files. The store is locked exclusively.
func (s *Session) DropOrphans() error {
	labels, err := list(filepath.Join(s.dir, "members", "by"), "", 0)
	errs := []error{err}
	for _, label := range labels {
		keys, err := list(s.by("members", label), "", 0)
		errs = append(errs, err)
		for _, key := range keys {
			m, err := s.Member(key)
			if err == nil && (m == nil || !slices.Contains(m.labels(), label)) {
				err = unmark(s.by("members", label), key)
			}
			errs = append(errs, err)
		}
		errs = append(errs, rmdir(s.by("members", label))) // its last member has left it
	}
	for _, dir := range []string{"members", "policies", "selections"} {
		errs = append(errs, s.dropDrafts(dir))
	}
	return errors.Join(errs...)
}

// dropDrafts removes the drafts in a directory. The store is locked exclusively.
func (s *Session) dropDrafts(dir string) error {
	drafts, err := list(filepath.Join(s.dir, dir), draftSuffix, 0)
	errs := []error{err}
	for _, name := range drafts {
		errs = append(errs, os.RemoveAll(filepath.Join(s.dir, dir, name+draftSuffix)))
	}
	return errors.Join(errs...)
}
