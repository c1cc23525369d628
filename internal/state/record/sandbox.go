package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/sandbox"
)

// Sandbox is a network namespace that belongs to an allocation: it was created
// for the allocation, or is destroyed with it. It is stored before it has a
// name and until it no longer exists, even if the allocation has no record.
type Sandbox struct {
	// Path is the path of the namespace. In the file it may be a directory with a slash
	// at its end: then the name of the namespace is the ID of the allocation.
	Path     string           `json:"path"`
	Identity sandbox.Identity `json:"identity"`
	// Boot identifies the boot of the host in which the identity is valid,
	// because the next boot uses the same numbers again.
	Boot string `json:"boot"`
	// Container is the CNI_CONTAINERID of the allocation if it is that of a slot.
	Container string `json:"container,omitempty"`
	// Scope is the scope of the allocation.
	Scope string `json:"scope,omitempty"`
}

// sandboxesDir is the directory of sandboxes below the state directory.
const sandboxesDir = "sandboxes"

func (s *Store) sandboxes() string { return filepath.Join(s.state, sandboxesDir) }

func (s *Store) sandboxFile(id string) string { return filepath.Join(s.sandboxes(), id+suffix) }

func (s *Store) sandboxDraft(id string) string { return filepath.Join(s.sandboxes(), "."+id+suffix) }

// Sandboxes returns the network namespaces that belong to an allocation. To
// change them, hold the lock of the allocation.
func (s *Store) Sandboxes(id string) ([]Sandbox, error) {
	data, err := readFile(s.sandboxFile(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var list []Sandbox
	if err == nil {
		if err = json.Unmarshal(data, &list); err != nil {
			err = fmt.Errorf("%s: %w: remove the file, and the network namespaces of the allocation", s.sandboxFile(id), err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read sandboxes of allocation %q: %w", id, fault(s.state, err))
	}
	for i := range list {
		if strings.HasSuffix(list[i].Path, "/") {
			list[i].Path += id
		}
	}
	return list, nil
}

// MoveSandboxes gives the network namespaces of a slot to an allocation that has
// none. If the allocation has some, it returns an error and changes nothing.
func (s *Store) MoveSandboxes(slot, id string) error {
	err := unix.Renameat2(unix.AT_FDCWD, s.sandboxFile(slot), unix.AT_FDCWD, s.sandboxFile(id), unix.RENAME_NOREPLACE)
	if err != nil {
		return fmt.Errorf("write sandboxes of allocation %q: %w", id, fault(s.state, err))
	}
	return nil
}

// PutSandboxes replaces the list of the network namespaces that belong to an
// allocation. The caller holds the lock of the allocation.
func (s *Store) PutSandboxes(id string, list []Sandbox) error {
	err := s.putSandboxes(id, list)
	if err != nil {
		return fmt.Errorf("write sandboxes of allocation %q: %w", id, fault(s.state, err))
	}
	return nil
}

func (s *Store) putSandboxes(id string, list []Sandbox) error {
	if len(list) == 0 {
		return errors.Join(remove(s.sandboxFile(id)), remove(s.sandboxDraft(id)))
	}
	data, err := encode(list)
	if err == nil {
		err = os.MkdirAll(s.sandboxes(), 0o700)
	}
	if err == nil {
		err = replaceFile(s.sandboxFile(id), s.sandboxDraft(id), data)
	}
	return err
}

// AddSandbox adds a network namespace to those of an allocation, unless it is
// in the list.
func (s *Store) AddSandbox(id string, one Sandbox) error {
	list, err := s.Sandboxes(id)
	if err != nil || slices.Contains(list, one) {
		return err
	}
	return s.PutSandboxes(id, append(list, one))
}

// WithSandboxes returns the sorted IDs of the allocations that have such a
// network namespace, or a draft that a crash left.
func (s *Store) WithSandboxes() ([]string, error) {
	entries, err := os.ReadDir(s.sandboxes())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list sandboxes: %w", fault(s.state, err))
	}
	var ids []string
	for _, e := range entries {
		id, ok := strings.CutSuffix(strings.TrimPrefix(e.Name(), "."), suffix)
		if ok && e.Type().IsRegular() && names.ValidateContainer(id) == nil {
			ids = append(ids, id)
		}
	}
	sort.Strings(ids)
	return slices.Compact(ids), nil
}

// Residents returns the allocations other than id whose records have a network
// namespace, sorted. It returns an error if one of the records cannot be read.
func (s *Store) Residents(id, path string, identity sandbox.Identity) ([]string, error) {
	wanted := &Record{Netns: path, Namespace: identity}
	candidates, err := s.netnsHolders(wanted)
	if err != nil {
		return nil, err
	}
	var residents []string
	for _, other := range candidates {
		if other == id {
			continue
		}
		r, err := s.Get(other)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case r.SameNetns(wanted):
			residents = append(residents, other)
		}
	}
	sort.Strings(residents)
	return slices.Compact(residents), nil
}

// netnsHolders returns the allocations that may have the network namespace of a
// record. These are all allocations if the index is not complete.
func (s *Store) netnsHolders(r *Record) ([]string, error) {
	if !s.index.isComplete() {
		return s.IDs()
	}
	byIdentity, err := s.index.holders(r.reservations()[0])
	if err != nil {
		return nil, err
	}
	byPath, err := s.index.holders(reservationsOf(r.Netns, nil)[0])
	return append(byIdentity, byPath...), err
}
