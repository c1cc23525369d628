package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/allocnet/allocnet/portmap"
)

const suffix = ".json"

// Store keeps the records below one state directory. It is safe for concurrent
// use, also by several processes; who changes a record holds its lock.
type Store struct {
	dir    string        // of the records
	claims index         // of what they claim
	locks  string        // the file whose byte ranges are the locks
	turn   chan struct{} // holds an element while this process has the lock of the claims, or waits for it
}

// CorruptError is a record that cannot be read back.
type CorruptError struct {
	ID   string
	File string
	Err  error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("record of allocation %q in %s: %v", e.ID, e.File, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// ErrNewer is found by errors.Is where a newer allocnet wrote the record.
var ErrNewer = errors.New("written by a newer version of allocnet")

// Open returns the store below stateDir. The directories are made when something
// is to be written or locked, so that looking changes nothing.
func Open(stateDir string) *Store {
	return &Store{
		dir:    filepath.Join(stateDir, "allocs"),
		claims: index(filepath.Join(stateDir, "claims")),
		locks:  filepath.Join(stateDir, "lock"),
		turn:   make(chan struct{}, 1),
	}
}

func (s *Store) file(id string) string { return filepath.Join(s.dir, id+suffix) }

// draft is where a record is written before it replaces the one that is there. It
// is no record's name, and the same each time: what a crash left is overwritten.
func (s *Store) draft(id string) string { return filepath.Join(s.dir, "."+id+suffix) }

// Get reads the record of an allocation. No record: errors.Is(err,
// fs.ErrNotExist); one that cannot be understood: errors.As *CorruptError.
func (s *Store) Get(id string) (*Record, error) {
	file := s.file(id)
	data, err := readFile(file)
	if err != nil {
		return nil, fmt.Errorf("read record: %w", err)
	}
	r, err := decode(data)
	if err == nil && r.ID != id {
		err = fmt.Errorf("it is of allocation %q", r.ID)
	}
	if err != nil {
		return nil, &CorruptError{ID: id, File: file, Err: err}
	}
	return r, nil
}

func decode(data []byte) (*Record, error) {
	var r Record
	if err := json.Unmarshal(lastLine(data), &r); err != nil {
		return nil, err
	}
	if r.Version > Version {
		return nil, fmt.Errorf("format %d: %w (this one reads up to %d)", r.Version, ErrNewer, Version)
	}
	if r.Version < 1 {
		return nil, errors.New("no format version")
	}
	switch r.Phase {
	case Adding, Ready, Deleting:
	default:
		return nil, fmt.Errorf("unknown phase %q", r.Phase)
	}
	return &r, nil
}

// Put writes a record whole, and makes sure that what it claims is in the index.
// It does not ask whether another record claims the same: see Claim.
func (s *Store) Put(r *Record) error {
	for _, c := range claimsOf(r.Netns, r.Ports) {
		if err := s.claims.enter(r.ID, c); err != nil {
			return err
		}
	}
	return s.replace(r)
}

// Update writes a record whose claims are those of the one that it takes the place
// of. It is added to what is there, as another line: less work than a file of its
// own, and until the line is complete the one before it counts. Put begins anew.
func (s *Store) Update(r *Record) error {
	line, err := encode(r)
	// An empty line ends what a crash may have left of another one.
	if err == nil && appendFile(s.file(r.ID), append([]byte{'\n'}, line...)) == nil {
		return nil
	}
	return s.replace(r)
}

// replace writes a record whole.
func (s *Store) replace(r *Record) error {
	data, err := encode(r)
	if err != nil {
		return err
	}
	err = replaceFile(s.file(r.ID), s.draft(r.ID), data)
	if errors.Is(err, fs.ErrNotExist) { // somebody swept the state directory
		if err = os.MkdirAll(s.dir, 0o700); err == nil {
			err = replaceFile(s.file(r.ID), s.draft(r.ID), data)
		}
	}
	if err != nil {
		return fmt.Errorf("write record of allocation %q: %w", r.ID, err)
	}
	return nil
}

// encode makes the line of a record.
func encode(r *Record) ([]byte, error) {
	r.Version = Version
	b := bytes.NewBuffer(make([]byte, 0, 4<<10)) // as much as most records have
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		return nil, fmt.Errorf("encode record of allocation %q: %w", r.ID, err)
	}
	return b.Bytes(), nil
}

// lastLine is the last line that was written to its end; a file without one is
// taken as it is. Empty lines are none.
func lastLine(data []byte) []byte {
	end := bytes.LastIndexByte(data, '\n')
	if end < 0 {
		return data
	}
	data = bytes.TrimRight(data[:end], "\n")
	return data[bytes.LastIndexByte(data, '\n')+1:]
}

// Delete removes a record and gives back what it claims; none is no error. What an
// unreadable record claims is given back when another allocation wants it.
func (s *Store) Delete(id string) error {
	claimed := s.claimed(id)
	errs := []error{remove(s.file(id)), remove(s.draft(id)), remove(s.claims.draft(id))}
	if errs[0] == nil {
		for _, c := range claimed {
			errs = append(errs, s.claims.leave(id, c))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove record: %w", err)
	}
	return nil
}

// claimed is what the record of an allocation claims, if there is one that tells.
func (s *Store) claimed(id string) []claim {
	var r struct {
		Netns string
		Ports []portmap.Mapping
	}
	data, err := readFile(s.file(id))
	if err != nil || json.Unmarshal(lastLine(data), &r) != nil {
		return nil
	}
	return claimsOf(r.Netns, r.Ports)
}

// IDs are the allocations that have a record, readable or not, sorted. What
// somebody else put into the directory is none.
func (s *Store) IDs() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list records: %w", err)
	}
	var ids []string
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), suffix)
		if ok && e.Type().IsRegular() && utils.ValidateContainerID(id) == nil {
			ids = append(ids, id)
		}
	}
	sort.Strings(ids)
	return ids, nil
}

// List reads all records, sorted by ID. Those that cannot be read are left out
// and joined in the error.
func (s *Store) List() ([]*Record, error) {
	ids, err := s.IDs()
	if err != nil {
		return nil, err
	}
	var records []*Record
	var errs []error
	for _, id := range ids {
		r, err := s.Get(id)
		switch {
		case err == nil:
			records = append(records, r)
		case !errors.Is(err, fs.ErrNotExist): // gone meanwhile is no error
			errs = append(errs, err)
		}
	}
	return records, errors.Join(errs...)
}
