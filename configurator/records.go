package configurator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/netns"
	"github.com/allocnet/allocnet/internal/state/record"
)

// List returns the records of all allocations, sorted by ID. For records that cannot be read,
// it joins a *RecordError each; it returns the other records with the error.
//
// While an Update is going on, or after it was interrupted, a record has the ports, labels, policy,
// limits and revision from before it, although the kernel may have the new ones already.
func (c *Configurator) List(ctx context.Context) ([]Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	stored, err := c.store.List()
	errs := []error{err}
	records := make([]Record, 0, len(stored))
	for _, r := range stored {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if r.Pool != "" { // not an allocation yet
			continue
		}
		public, err := c.public(r)
		errs = append(errs, err)
		records = append(records, *public)
	}
	return records, errors.Join(errs...)
}

// Get returns the record of one allocation. It returns ErrNotFound if there is none, and a
// *RecordError if it cannot be read. During an Update, the record is that of List.
func (c *Configurator) Get(ctx context.Context, id string) (*Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r, err := c.load(id)
	if err != nil {
		return nil, err
	}
	public, err := c.public(r)
	public.NetnsGone = public.NetnsGone || r.Netns != "" && netns.IsGone(r)
	return public, err
}

// public converts a record to its exported type. The result is never nil.
func (c *Configurator) public(r *record.Record) (*Record, error) {
	public, err := plan.Public(r)
	waiting, waitErr := c.waiting(r)
	public.Waiting = waiting
	return public, errors.Join(err, waitErr)
}

// waiting returns the host ports of a record for which it waits.
func (c *Configurator) waiting(r *record.Record) (list []PortWait, err error) {
	holders, err := c.store.PortHolders(r)
	for _, h := range holders {
		list = append(list, PortWait{ID: h.ID, Mapping: h.Mapping, Other: h.Other})
	}
	return list, err
}

// load reads a record. It returns ErrNotFound if there is none.
func (c *Configurator) load(id string) (*record.Record, error) {
	if err := plan.ValidateID(id); err != nil {
		return nil, err
	}
	r, err := c.store.Get(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %q has no record in %s", ErrNotFound, id, c.cfg.StateDir)
	}
	return r, err
}

// unreadable reports whether an error means that no version of allocnet can read a record. A
// newer version can read a record that it wrote.
func unreadable(err error) bool {
	var corrupt *record.CorruptError
	return errors.As(err, &corrupt) && !errors.Is(err, record.ErrNewer)
}

// summaries collects the records of a report. It is safe for concurrent use.
type summaries struct {
	mu   sync.Mutex
	byID map[string]Record
}

func (s *summaries) add(one Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byID == nil {
		s.byID = map[string]Record{}
	}
	s.byID[one.ID] = one
}

// of returns the summaries of allocations, in the order of the IDs.
func (s *summaries) of(ids []string) []Record {
	var list []Record
	for _, id := range ids {
		if one, ok := s.byID[id]; ok {
			list = append(list, one)
		}
	}
	return list
}
