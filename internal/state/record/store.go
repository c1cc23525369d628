package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/state/boot"
	"github.com/allocnet/allocnet/internal/state/statedir"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

const suffix = ".json"

// Store stores the records below one state directory. It is safe for concurrent
// use, also by several processes. To change a record, hold its lock.
type Store struct {
	state string // the state directory
	dir   string // of the records
	index index  // of their reservations
	locks string // the file whose byte ranges are the locks
	pools string // the directory of the pools of living processes
	idle  *idleLocks
	guard statedir.Guard
	boot  func() (string, error)
	queue chan struct{} // has an element while this process holds or awaits the lock of the reservations
}

// CorruptError reports a record that cannot be read.
type CorruptError = allocnet.RecordError

// ErrNewer is found by errors.Is if a newer allocnet wrote the record.
var ErrNewer = allocnet.ErrNewer

// Open returns the store below stateDir. It creates no directory; the first
// write or lock does.
func Open(stateDir string) *Store {
	s := &Store{
		state: stateDir,
		dir:   filepath.Join(stateDir, "allocs"),
		index: index(filepath.Join(stateDir, "claims")),
		locks: filepath.Join(stateDir, "lock"),
		pools: filepath.Join(stateDir, poolsDir),
		boot:  boot.ID,
		queue: make(chan struct{}, 1),
	}
	s.idle = newIdleLocks(s)
	return s
}

// InBoot sets the function that returns the ID of this boot of the host, and returns the
// store. The default is boot.ID. Call it before the first operation.
func (s *Store) InBoot(id func() (string, error)) *Store {
	s.boot = id
	return s
}

// checkDirs returns an error if other users can change the files of the store,
// or could when the files were written. The directories include the leases of
// the embedded network, the network policies and libcni's cache.
func (s *Store) checkDirs() error {
	return s.guard.Check(s.state, "allocs", "claims", "leases", "leases/allocnet", "leases/.allocnet", "leases/.allocnet/allocnet",
		"leases/.allocnet/.former", "leases/.allocnet/.former/allocnet", sandboxesDir, poolsDir,
		"policies", "policies/members", "policies/policies", "policies/groups", "policies/selections",
		"warm", "cni-cache", "cni-cache/results")
}

func (s *Store) file(id string) string { return filepath.Join(s.dir, id+suffix) }

// draft returns the path at which a record is written before it replaces the
// existing one. It is not the path of a record, and always the same: the next
// write overwrites what a crash left.
func (s *Store) draft(id string) string { return filepath.Join(s.dir, "."+id+suffix) }

// Get reads the record of an allocation. If there is none, errors.Is finds
// fs.ErrNotExist; if it is invalid, errors.As finds a *CorruptError.
func (s *Store) Get(id string) (*Record, error) {
	file := s.file(id)
	data, err := readFile(file)
	if errors.Is(err, statedir.ErrNotOurs) {
		return nil, &CorruptError{ID: id, File: file, Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("read record: %w", fault(s.state, err))
	}
	r, err := decode(data, id)
	if err == nil && r.ID != id {
		err = fmt.Errorf("it belongs to allocation %q", r.ID)
	}
	if err != nil {
		return nil, &CorruptError{ID: id, File: file, Err: err}
	}
	if r.Boot != "" {
		current, err := s.boot()
		r.FormerBoot = err == nil && r.Boot != current
	}
	return r, nil
}

// Has reports whether there is a record of an allocation, readable or not, or there may be
// one.
func (s *Store) Has(id string) bool {
	var stat unix.Stat_t
	return unix.Lstat(s.file(id), &stat) != unix.ENOENT
}

// decode parses the record of an allocation with the lines that follow it. An
// incomplete last line does not count, unless it is the first line.
func decode(data []byte, id string) (*Record, error) {
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
		if took, err := applyTaking(line, id, &r); took || err != nil {
			if err != nil {
				return nil, err
			}
			continue
		}
		var o outcome
		if json.Unmarshal(line, &o) != nil {
			continue // an incomplete outcome of a crash, followed by another one
		}
		if err := o.apply(&r); err != nil {
			return nil, err
		}
	}
	switch r.Phase {
	case Adding, Ready, Deleting, Pooled:
	default:
		return nil, fmt.Errorf("unknown phase %q", r.Phase)
	}
	return &r, nil
}

// Put writes a whole record and adds its reservations to the index. It does not
// look for conflicts: see Reserve.
func (s *Store) Put(r *Record) error {
	text, err := textOf(r)
	if err != nil {
		return err
	}
	if err := s.addAll(r.ID, r.reservations()); err != nil {
		return err
	}
	return s.write(r.ID, text)
}

// Update writes the outcome of an ADD: the phase, the time and the results of a
// record, and that no addresses are noted. All other fields keep the values of
// Put. It appends a line to the file, which is less work than replacing the
// file; an incomplete line does not count. If the last of the attachments of r is the
// Pending one of Put, then r has none Pending. A record with Differs is replaced.
func (s *Store) Update(r *Record) error {
	if !r.Differs() && appendFile(s.file(r.ID), appendOutcome(make([]byte, 0, 2<<10), r)) == nil {
		return nil
	}
	return s.replace(r)
}

// Acknowledge records that an allocation is disconnected; see Record.Acknowledged. It
// removes the host ports from r and from the index, so that another allocation may
// publish them. The caller holds the lock of the allocation and sets the time of r.
func (s *Store) Acknowledge(r *Record) error {
	var errs []error
	for _, c := range reservationsOf(r.Netns, r.reservedPorts())[1:] { // the first is the network namespace
		errs = append(errs, s.index.release(r.ID, c))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("release host ports of allocation %q: %w", r.ID, fault(s.state, err))
	}
	r.Phase, r.Acknowledged, r.Ports, r.RequestedPorts = Deleting, true, nil, nil
	r.Capabilities = maps.Clone(r.Capabilities)
	delete(r.Capabilities, portmap.Capability)
	return s.replace(r)
}

// BeginUpdate writes a record whose Update is set, before Reserve reserves its host ports: so
// the ports are known to be the allocation's even if Reserve is interrupted.
func (s *Store) BeginUpdate(r *Record) error { return s.replace(r) }

// EndUpdate records that an update is done: r has the host ports that the allocation keeps.
// It releases those among before that r no longer has. The caller holds the lock of the
// allocation.
func (s *Store) EndUpdate(r *Record, before []portmap.Mapping) error {
	if err := s.Put(r); err != nil {
		return err
	}
	kept := r.reservations()
	had := reservationsOf(r.Netns, before)[1:] // the first is the network namespace
	// The allocation may have had some of before in the other form: single ports or blocks.
	others, err := s.index.overlapping(had)
	if err != nil {
		return err
	}
	var errs []error
	for _, c := range append(had, others...) {
		if !slices.ContainsFunc(kept, func(k reservation) bool { return k.key == c.key }) {
			errs = append(errs, s.index.release(r.ID, c))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("release host ports of allocation %q: %w", r.ID, fault(s.state, err))
	}
	return nil
}

// appendOutcome appends the line of a record's outcome, preceded by an empty
// line that ends an incomplete outcome of a crash. Results are JSON in one
// line.
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

// outcome is a line appended to a record.
type outcome struct {
	Phase   Phase             `json:"phase"`
	Updated time.Time         `json:"updated"`
	Results []json.RawMessage `json:"results"` // of each attachment
}

func (o *outcome) apply(r *Record) error {
	if r.Pending != nil && len(o.Results) == len(r.Attachments)+1 { // a DEL of the whole allocation
		r.Attachments, r.Pending = append(r.Attachments, *r.Pending), nil
	}
	if len(o.Results) != len(r.Attachments) {
		return fmt.Errorf("results of %d attachments instead of %d", len(o.Results), len(r.Attachments))
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

// replace writes a whole record.
func (s *Store) replace(r *Record) error {
	text, err := textOf(r)
	if err != nil {
		return err
	}
	return s.write(r.ID, text)
}

// textOf returns the content of a record's file, without outcomes.
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
	if errors.Is(err, fs.ErrNotExist) { // the state directory was removed
		if err = os.MkdirAll(s.dir, 0o700); err == nil {
			err = replaceFile(s.file(id), s.draft(id), text)
		}
	}
	if err != nil {
		return fmt.Errorf("write record of allocation %q: %w", id, fault(s.state, err))
	}
	return nil
}

// encode returns v as one line of JSON.
func encode(v any) ([]byte, error) {
	b := bytes.NewBuffer(make([]byte, 0, 2<<10)) // as much as most records have
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// Delete removes a record and its reservations. A missing record is not an
// error.
func (s *Store) Delete(id string) error {
	reserved := s.reserved(id)
	errs := []error{remove(s.file(id)), remove(s.draft(id)), remove(s.index.draft(id))}
	if errs[0] == nil {
		for _, c := range reserved {
			errs = append(errs, s.index.release(id, c))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove record: %w", fault(s.state, err))
	}
	return nil
}

// reserved returns the reservations that an allocation may have. They are those
// of its record. They are all reservations if there is no record, because of a
// crash before the record was written, or if the record does not identify its
// namespace or has an update.
func (s *Store) reserved(id string) []reservation {
	var owner struct {
		ContainerID string
		Netns       string
		Namespace   sandbox.Identity
		Ports       []portmap.Mapping
		Update      *Aim
	}
	data, err := readFile(s.file(id))
	first, more, _ := bytes.Cut(data, []byte{'\n'})
	if err != nil || json.Unmarshal(first, &owner) != nil {
		return s.index.all()
	}
	if owner.Namespace == (sandbox.Identity{}) || owner.Update != nil {
		return s.index.all() // of the lost record, if this one is guessed; in both forms, if an update has begun
	}
	r := Record{ContainerID: owner.ContainerID, Netns: owner.Netns, Namespace: owner.Namespace, Ports: owner.Ports, Update: owner.Update}
	for line := range bytes.Lines(more) {
		_, _ = applyTaking(line, id, &r)
	}
	return r.reservations()
}

// IDs returns the sorted IDs of the allocations that have a record, readable or
// not: something else than a file under the name of a record is one that cannot be read.
// It ignores files with other names, which other programs have made.
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
		if ok && names.ValidateContainer(id) == nil {
			ids = append(ids, id)
		}
	}
	sort.Strings(ids)
	return ids, nil
}

// Empty reports whether no allocation has a record, readable or not. It reads only the beginning of the directory.
func (s *Store) Empty() (bool, error) {
	dir, err := os.OpenFile(s.dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("list records: %w", fault(s.state, err))
	}
	defer dir.Close()
	for {
		entries, err := dir.Readdirnames(16)
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, fmt.Errorf("list records: %w", fault(s.state, err))
		}
		if slices.ContainsFunc(entries, func(name string) bool { return strings.HasSuffix(name, suffix) && name[0] != '.' }) {
			return false, nil
		}
	}
}

// List reads all records, sorted by ID. It omits records that cannot be read
// and joins their errors.
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
		case !errors.Is(err, fs.ErrNotExist): // removed meanwhile
			errs = append(errs, err)
		}
	}
	return records, errors.Join(errs...)
}
