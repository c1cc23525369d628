package policystate

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Use adds a user to a policy. found is false if the policy does not exist; then make it under
// Exclusive.
func (s *Session) Use(id, key string) (found bool, err error) {
	return touch(filepath.Join(s.users(id), key))
}

// Leave removes a user from a policy. last is true if the policy has no users any more, so that
// Unused returns it.
func (s *Session) Leave(id, key string) (last bool, err error) {
	if err := remove(filepath.Join(s.users(id), key)); err != nil {
		return false, err
	}
	err = unix.Rmdir(s.users(id))
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return true, nil
	case errors.Is(err, unix.ENOTEMPTY):
		return false, nil
	}
	return false, &fs.PathError{Op: "rmdir", Path: s.users(id), Err: err}
}

// Policy returns a policy, or nil if there is none.
func (s *Store) Policy(id string) (*Policy, error) {
	p := &Policy{}
	if found, err := read(s.policy(id), p); !found || err != nil {
		return nil, err
	}
	return p, nil
}

// Policies returns the IDs of all policies.
func (s *Store) Policies() ([]string, error) {
	return list(filepath.Join(s.dir, "policies"), ".json", 0)
}

// Users returns the keys of the users of a policy.
func (s *Store) Users(id string) ([]string, error) { return list(s.users(id), "", 0) }

// ErrGroupTaken: another policy of the store has the group of links.
var ErrGroupTaken = errors.New("another policy has the group of links")

// Begin records a policy before it is made in the kernel, with its selections. From then on,
// members join these. former is what is stored of the policy; nil if nothing is. A group that is another one
// than that of former replaces it. The file of the policy goes first, so that Delete finds what an
// interrupted Begin has left.
func (s *Session) Begin(p, former *Policy) error {
	if err := write(s.policy(p.ID), p); err != nil {
		return err
	}
	if former != nil && former.Group != p.Group {
		if err := s.dropGroup(former); err != nil {
			return err
		}
	}
	if err := s.takeGroup(p); err != nil {
		return err
	}
	for _, n := range p.Selections {
		if err := s.beginSelection(&n, p.ID); err != nil {
			return err
		}
	}
	return nil
}

// beginSelection records that a policy uses a selection, which another policy may have stored.
func (s *Session) beginSelection(n *Selection, id string) error {
	if inUse, err := touch(filepath.Join(s.selecting(n.Name), id)); inUse || err != nil {
		return err
	}
	if err := s.adopt(n); err != nil {
		return err
	}
	if err := write(s.selection(n.Name), n); err != nil {
		return err
	}
	if err := mark(s.by("selections", n.label()), n.Name); err != nil {
		return err
	}
	return mark(s.selecting(n.Name), id)
}

// takeGroup makes the symbolic link of a policy's group, or returns ErrGroupTaken.
func (s *Session) takeGroup(p *Policy) error {
	err := os.Symlink(p.ID, s.group(p.Group))
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(s.group(p.Group)), 0o700); err == nil {
			err = os.Symlink(p.ID, s.group(p.Group))
		}
	}
	if errors.Is(err, fs.ErrExist) {
		var owner string
		if owner, err = os.Readlink(s.group(p.Group)); err == nil && owner != p.ID {
			err = fmt.Errorf("policy %s: %w %d: policy %s", p.ID, ErrGroupTaken, p.Group, owner)
		}
	}
	return err
}

// dropGroup removes the symbolic link of a policy's group, unless it is another policy's.
func (s *Session) dropGroup(p *Policy) error {
	owner, err := os.Readlink(s.group(p.Group))
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && owner != p.ID:
		return nil
	case err != nil:
		return err
	}
	return remove(s.group(p.Group))
}

func (n *Selection) label() string {
	if n.Label == "" {
		return anyLabel
	}
	return n.Label
}

// Publish makes a policy, which exists in the kernel by now, available to Use, with a first
// user.
func (s *Session) Publish(id, key string) error { return mark(s.users(id), key) }

// Unused returns the policies without users, and removes drafts of policies. The store is locked
// exclusively.
func (s *Session) Unused() ([]*Policy, error) {
	if err := s.dropDrafts("policies"); err != nil {
		return nil, err
	}
	ids, err := s.Policies()
	if err != nil {
		return nil, err
	}
	return s.UnusedOf(ids)
}

// UnusedOf returns those of the policies that exist and have no users. The store is locked
// exclusively.
func (s *Session) UnusedOf(ids []string) ([]*Policy, error) {
	var unused []*Policy
	for _, id := range ids {
		if err := rmdir(s.users(id)); err != nil { // its process died before its first user came, or after its last one left
			return nil, err
		}
		if _, err := os.Lstat(s.users(id)); err == nil {
			continue
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		p, err := s.Policy(id)
		if err != nil {
			return nil, err
		}
		if p != nil {
			unused = append(unused, p)
		}
	}
	return unused, nil
}

// UnusedWithout returns the names of the selections of a policy that no other one uses.
func (s *Session) UnusedWithout(p *Policy) ([]string, error) {
	var names []string
	for _, n := range p.Selections {
		some, err := list(s.selecting(n.Name), "", 2)
		if err == nil && len(some) == 0 {
			if err = s.adopt(&n); err == nil {
				some, err = list(s.selecting(n.Name), "", 2)
			}
		}
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(some, func(id string) bool { return id != p.ID }) {
			names = append(names, n.Name)
		}
	}
	return names, nil
}

// Delete removes a policy that no longer exists in the kernel. Its file goes last.
func (s *Session) Delete(p *Policy) error {
	for _, n := range p.Selections {
		if err := s.dropSelection(&n, p.ID); err != nil {
			return err
		}
	}
	if err := s.dropGroup(p); err != nil {
		return err
	}
	return removeFile(s.policy(p.ID))
}

// adopt marks the policies that use a selection if an older version has listed them in the file of the
// selection. The store is locked exclusively.
func (s *Session) adopt(n *Selection) error {
	if _, err := os.Lstat(s.selecting(n.Name)); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var former struct {
		Policies []string `json:"policies"`
	}
	if _, err := read(s.selection(n.Name), &former); err != nil || len(former.Policies) == 0 {
		return err
	}
	for _, id := range former.Policies {
		if err := mark(s.selecting(n.Name), id); err != nil {
			return err
		}
	}
	return write(s.selection(n.Name), n)
}

// dropSelection removes the use of a selection by a policy, and the selection if it was the last one.
func (s *Session) dropSelection(n *Selection, id string) error {
	if err := s.adopt(n); err != nil {
		return err
	}
	if err := unmark(s.selecting(n.Name), id); err != nil {
		return err
	}
	if _, err := os.Lstat(s.selecting(n.Name)); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := unmark(s.by("selections", n.label()), n.Name); err != nil {
		return err
	}
	return removeFile(s.selection(n.Name))
}

// NewGroup returns a number from first to last that no policy of the store has. Begin gives it
// to a policy.
func (s *Session) NewGroup(first, last uint32) (uint32, error) {
	dir := filepath.Join(s.dir, "groups")
	number := first + rand.Uint32N(last-first+1)
	for range last - first + 1 {
		_, err := os.Lstat(filepath.Join(dir, strconv.FormatUint(uint64(number), 10)))
		if errors.Is(err, fs.ErrNotExist) {
			return number, nil
		}
		if err != nil {
			return 0, err
		}
		if number++; number > last {
			number = first
		}
	}
	return 0, fmt.Errorf("%d different policies are in use, the most that are possible", last-first+1)
}

// HasGroup reports whether a policy has a group of links.
func (s *Store) HasGroup(id string, group uint32) bool {
	owner, err := os.Readlink(s.group(group))
	return err == nil && owner == id
}

func (s *Store) group(number uint32) string {
	return filepath.Join(s.dir, "groups", strconv.FormatUint(uint64(number), 10))
}
