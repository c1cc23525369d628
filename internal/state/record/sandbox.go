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

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/sandbox"
)

// Sandbox is a network namespace that goes with an allocation: one that was made for
// it, or is to be destroyed with it. It is noted before it has a name, and until it is
// gone, whether or not the allocation has a record.
type Sandbox struct {
	Path     string           `json:"path"`
	Identity sandbox.Identity `json:"identity"`
	// Boot identifies the boot of the host in which the identity is valid: the next one
	// uses the same numbers again.
	Boot string `json:"boot"`
	// Scope is that of the allocation.
	Scope string `json:"scope,omitempty"`
}

// sandboxesDir is their directory below the state directory.
const sandboxesDir = "sandboxes"

func (s *Store) sandboxes() string { return filepath.Join(s.state, sandboxesDir) }

func (s *Store) sandboxFile(id string) string { return filepath.Join(s.sandboxes(), id+suffix) }

func (s *Store) sandboxDraft(id string) string { return filepath.Join(s.sandboxes(), "."+id+suffix) }

// Sandboxes returns the namespaces that go with an allocation. The caller holds the
// lock of the allocation if it changes them.
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
	return list, nil
}

// PutSandboxes replaces the list of the namespaces that go with an allocation. The
// caller holds the lock of the allocation.
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

// AddSandbox adds one to the namespaces that go with an allocation, unless it is there.
func (s *Store) AddSandbox(id string, one Sandbox) error {
	list, err := s.Sandboxes(id)
	if err != nil || slices.Contains(list, one) {
		return err
	}
	return s.PutSandboxes(id, append(list, one))
}

// WithSandboxes are the IDs of the allocations that namespaces go with, or that a crash
// left a draft of, sorted.
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
	candidates, err := s.claimants(wanted)
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

// claimants returns the allocations that may have the network namespace of a record:
// all, if the index of claims is not complete.
func (s *Store) claimants(r *Record) ([]string, error) {
	if _, err := os.Lstat(s.claims.complete()); err != nil {
		return s.IDs()
	}
	byIdentity, err := s.claims.holders(r.claims()[0])
	if err != nil {
		return nil, err
	}
	byPath, err := s.claims.holders(claimsOf(r.Netns, nil)[0])
	return append(byIdentity, byPath...), err
}
