package record

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// taking is a line in the record of a slot: what the record of the allocation
// that takes the slot has in place of the slot's. It counts if the record has
// the name of that allocation.
type taking struct {
	ID             string                     `json:"id"`
	Slot           string                     `json:"slot"`
	Pool           string                     `json:"pool"`
	Scope          string                     `json:"scope,omitempty"`
	Labels         map[string]string          `json:"labels,omitempty"`
	Policy         *policy.Policy             `json:"policy,omitempty"`
	Netns          string                     `json:"netns"`
	Phase          Phase                      `json:"phase"`
	Requested      []string                   `json:"asked"`
	RequestedPorts []portmap.Port             `json:"askedPorts,omitempty"`
	Args           [][2]string                `json:"args"`
	Unserved       []string                   `json:"unserved"`
	Capabilities   map[string]json.RawMessage `json:"capabilities,omitempty"`
	Ports          []portmap.Mapping          `json:"ports,omitempty"`
	Created        time.Time                  `json:"created"`
	Updated        time.Time                  `json:"updated"`
}

// takingPrefix begins the line, of which taking is the value.
const takingPrefix = `{"taken":`

// applyTaking applies a line to the record of an allocation if it is a taking.
func applyTaking(line []byte, id string, r *Record) (took bool, err error) {
	value, took := bytes.CutPrefix(line, []byte(takingPrefix))
	if !took {
		return false, nil
	}
	value, whole := bytes.CutSuffix(value, []byte("}\n"))
	var by struct{ ID string }
	if !whole || json.Unmarshal(value, &by) != nil || by.ID != id {
		return true, nil // incomplete, or the slot was not taken after all
	}
	return true, json.Unmarshal(value, r)
}

// Slot is the open file of a slot's record. Only one goroutine at a time may use it.
type Slot struct {
	store *Store
	id    string
	fd    int
}

// OpenSlot opens the record of a slot. The caller closes it. No more than Take and Update
// of the Slot change the record until then.
func (s *Store) OpenSlot(id string) (*Slot, error) {
	fd, err := openFile(s.file(id), unix.O_WRONLY|unix.O_APPEND)
	if err != nil {
		return nil, fmt.Errorf("open record of slot %q: %w", id, fault(s.state, err))
	}
	return &Slot{store: s, id: id, fd: fd}, nil
}

// Close closes the file. It may be called again.
func (o *Slot) Close() {
	if o.fd >= 0 {
		unix.Close(o.fd)
		o.fd = -1
	}
}

// Update is Store.Update of the allocation that has taken the slot.
func (o *Slot) Update(r *Record) error {
	var stat unix.Stat_t
	err := unix.Fstat(o.fd, &stat)
	if err == nil && stat.Nlink > 0 { // else another program has replaced the file
		err = writeAll(o.fd, o.store.file(r.ID), appendOutcome(make([]byte, 0, 2<<10), r))
		if err == nil {
			return nil
		}
	}
	return o.store.replace(r)
}

// Take turns the record of the slot r.Slot into r, the record of an allocation
// with the network of the slot, in phase Adding. It writes only those fields in
// which they may differ. Errors and the time it takes are those of Reserve; on
// an error, the slot still has its record. The caller holds the lock of the
// allocation, which has no record yet, and owns the slot.
func (o *Slot) Take(ctx context.Context, r *Record, warn func(error)) error {
	s := o.store
	r.Pool, r.Phase = "", Adding
	value, err := encode(&taking{
		ID: r.ID, Slot: r.Slot, Pool: r.Pool, Scope: r.Scope, Labels: r.Labels, Policy: r.Policy, Netns: r.Netns, Phase: r.Phase, Requested: r.Requested, RequestedPorts: r.RequestedPorts,
		Args: r.Args, Unserved: r.Unserved, Capabilities: r.Capabilities, Ports: r.Ports, Created: r.Created, Updated: r.Updated,
	})
	if err != nil {
		return fmt.Errorf("encode record of allocation %q: %w", r.ID, err)
	}
	line := append(append([]byte("\n"+takingPrefix), bytes.TrimSuffix(value, []byte{'\n'})...), "}\n"...)
	reservations := r.reservations()
	write := func() error { return o.take(r, reservations[0], line) }
	if len(reservations) == 1 { // the namespace is that of the slot
		return write()
	}
	return s.reserve(ctx, r, reservations[1:], warn, write)
}

func (o *Slot) take(r *Record, namespace reservation, line []byte) error {
	s := o.store
	err := writeAll(o.fd, s.file(o.id), line)
	if err == nil {
		if err = s.rename(r, namespace); err != nil { // nothing of r stays in the record of the slot
			err = errors.Join(err, o.cut(len(line)))
		}
	}
	if err != nil {
		return fmt.Errorf("write record of allocation %q: %w", r.ID, fault(s.state, err))
	}
	return nil
}

// rename gives the file and the namespace of a slot to the allocation that takes it, or
// neither.
func (s *Store) rename(r *Record, namespace reservation) error {
	err := s.index.move(namespace, r.Slot, r.ID)
	if err == nil {
		// Not even a record that another program wrote meanwhile is replaced.
		err = unix.Renameat2(unix.AT_FDCWD, s.file(r.Slot), unix.AT_FDCWD, s.file(r.ID), unix.RENAME_NOREPLACE)
	}
	if err != nil {
		err = errors.Join(err, s.index.move(namespace, r.ID, r.Slot))
	}
	return err
}

// cut removes the last bytes of the file.
func (o *Slot) cut(n int) error {
	var stat unix.Stat_t
	if err := unix.Fstat(o.fd, &stat); err != nil {
		return err
	}
	return unix.Ftruncate(o.fd, stat.Size-int64(n))
}

// move gives a reservation to another allocation.
func (x index) move(c reservation, from, to string) error {
	err := rename(x.link(c.key, from), x.link(c.key, to))
	if errors.Is(err, fs.ErrNotExist) { // the index is not complete
		return x.add(to, c)
	}
	return err
}
