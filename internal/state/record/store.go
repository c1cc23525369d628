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
	"time"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/state/statedir"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

const suffix = ".json"

// Store keeps the records below one state directory. It is safe for concurrent
// use, also by several processes; who changes a record holds its lock.
type Store struct {
	state  string // the state directory
	dir    string // of the records
	claims index  // of what they claim
	locks  string // the file whose byte ranges are the locks
	guard  statedir.Guard
	turn   chan struct{} // holds an element while this process has the lock of the claims, or waits for it
}

// CorruptError is a record that cannot be read back.
type CorruptError = allocnet.RecordError

// ErrNewer is found by errors.Is where a newer allocnet wrote the record.
var ErrNewer = allocnet.ErrNewer

// Open returns the store below stateDir. The directories are made when something
// is to be written or locked, so that looking changes nothing.
func Open(stateDir string) *Store {
	return &Store{
		state:  stateDir,
		dir:    filepath.Join(stateDir, "allocs"),
		claims: index(filepath.Join(stateDir, "claims")),
		locks:  filepath.Join(stateDir, "lock"),
		turn:   make(chan struct{}, 1),
	}
}

// checkDirs returns an error if other users can change the files of the store, or
// could when these were written. The leases are those of the embedded network, and the cache is libcni's.
func (s *Store) checkDirs() error {
	return s.guard.Check(s.state, "allocs", "claims", "leases", "leases/allocnet", "leases/.allocnet", "leases/.allocnet/allocnet", sandboxesDir,
		"warm", "cni-cache", "cni-cache/results")
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
	if errors.Is(err, statedir.ErrNotOurs) {
		return nil, &CorruptError{ID: id, File: file, Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("read record: %w", fault(s.state, err))
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

// decode reads a record, and the outcomes behind it. The last line counts only if it
// ends, unless it is the first.
func decode(data []byte) (*Record, error) {
	first, more, _ := bytes.Cut(data, []byte{'\n'})
	var r Record
	if err := json.Unmarshal(first, &r); err != nil {
		return nil, err
	}
	if r.Version > Version {
		return nil, fmt.Errorf("format %d: %w (this one reads up to %d)", r.Version, ErrNewer, Version)
	}
	if r.Version < 1 {
		return nil, errors.New("no format version")
	}
	for line := range bytes.Lines(more) {
		if !bytes.HasSuffix(line, []byte{'\n'}) || len(line) == 1 {
			continue
		}
		var o outcome
		if json.Unmarshal(line, &o) != nil {
			continue // what a crash left of one, and another one behind it
		}
		if err := o.apply(&r); err != nil {
			return nil, err
		}
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
	text, err := textOf(r)
	if err != nil {
		return err
	}
	return s.put(r, r.claims(), text)
}

// put is Put of a record whose claims and text are at hand.
func (s *Store) put(r *Record, claims []claim, text []byte) error {
	for _, c := range claims {
		if err := s.claims.enter(r.ID, c); err != nil {
			return err
		}
	}
	return s.write(r.ID, text)
}

// Update writes what came of an ADD: the phase, the time and the results of a record,
// and that no addresses are noted. All else is as it was put. It is added to what is
// there as a line: less work than a file of its own, and before it is complete it
// does not count.
func (s *Store) Update(r *Record) error {
	if appendFile(s.file(r.ID), appendOutcome(make([]byte, 0, 2<<10), r)) == nil {
		return nil
	}
	return s.replace(r)
}

// appendOutcome adds the line of a record's outcome. An empty line before it ends
// what a crash may have left of another one. Results are JSON in one line.
func appendOutcome(b []byte, r *Record) []byte {
	b = append(append(b, "\n{\"phase\":\""...), r.Phase...)
	b = r.Updated.AppendFormat(append(b, `","updated":"`...), time.RFC3339Nano)
	b = append(b, `","results":[`...)
	for i, a := range r.Attachments {
		if i > 0 {
			b = append(b, ',')
		}
		if a.Result == nil {
			b = append(b, "null"...)
		}
		b = append(b, a.Result...)
	}
	return append(b, "]}\n"...)
}

// outcome is what a line says that was added to a record.
type outcome struct {
	Phase   Phase             `json:"phase"`
	Updated time.Time         `json:"updated"`
	Results []json.RawMessage `json:"results"` // of each attachment
}

func (o *outcome) apply(r *Record) error {
	if len(o.Results) != len(r.Attachments) {
		return fmt.Errorf("results of %d attachments, and there are %d", len(o.Results), len(r.Attachments))
	}
	r.Phase, r.Updated, r.Addresses = o.Phase, o.Updated, nil
	for i, result := range o.Results {
		if string(result) == "null" {
			result = nil
		}
		r.Attachments[i].Result = result
	}
	return nil
}

// replace writes a record whole.
func (s *Store) replace(r *Record) error {
	text, err := textOf(r)
	if err != nil {
		return err
	}
	return s.write(r.ID, text)
}

// textOf is a record as its file has it.
func textOf(r *Record) ([]byte, error) {
	r.Version = Version
	text, err := encode(r)
	if err != nil {
		return nil, fmt.Errorf("encode record of allocation %q: %w", r.ID, err)
	}
	return text, nil
}

// write replaces the file of a record.
func (s *Store) write(id string, text []byte) error {
	err := replaceFile(s.file(id), s.draft(id), text)
	if errors.Is(err, fs.ErrNotExist) { // somebody swept the state directory
		if err = os.MkdirAll(s.dir, 0o700); err == nil {
			err = replaceFile(s.file(id), s.draft(id), text)
		}
	}
	if err != nil {
		return fmt.Errorf("write record of allocation %q: %w", id, fault(s.state, err))
	}
	return nil
}

// encode makes a line.
func encode(v any) ([]byte, error) {
	b := bytes.NewBuffer(make([]byte, 0, 2<<10)) // as much as most records have
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// Delete removes a record and gives back what it claims; none is no error.
func (s *Store) Delete(id string) error {
	claimed := s.claimed(id)
	errs := []error{remove(s.file(id)), remove(s.draft(id)), remove(s.claims.draft(id))}
	if errs[0] == nil {
		for _, c := range claimed {
			errs = append(errs, s.claims.leave(id, c))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove record: %w", fault(s.state, err))
	}
	return nil
}

// claimed returns the claims that an allocation may have: those of its record, or all
// claims if there is no record, because a crash may have come between the claims and
// the record, or if the record does not identify its namespace.
func (s *Store) claimed(id string) []claim {
	var part struct {
		Netns     string
		Namespace sandbox.Identity
		Ports     []portmap.Mapping
	}
	data, err := readFile(s.file(id))
	first, _, _ := bytes.Cut(data, []byte{'\n'})
	if err != nil || json.Unmarshal(first, &part) != nil {
		return s.claims.all()
	}
	if part.Namespace == (sandbox.Identity{}) {
		return s.claims.all() // made up where the record was lost: the claims are those of that one
	}
	r := Record{Netns: part.Netns, Namespace: part.Namespace, Ports: part.Ports}
	return r.claims()
}

// IDs are the allocations that have a record, readable or not, sorted. What
// somebody else put into the directory is none.
func (s *Store) IDs() ([]string, error) {
	if err := s.checkDirs(); err != nil {
		return nil, fmt.Errorf("list records: %w", fault(s.state, err))
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list records: %w", fault(s.state, err))
	}
	var ids []string
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), suffix)
		if ok && e.Type().IsRegular() && names.ValidateContainer(id) == nil {
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
