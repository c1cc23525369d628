package hostports

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// Picker replaces ports without a number by free host ports of a range. It reserves nothing: a number
// that another operation gets first is refused like any other, and the caller picks again. It is for
// one goroutine.
type Picker struct {
	PickerOptions
	wanted []portmap.Port
	next   int // the next candidate, as an offset in the range
	tried  int
	picked map[int]bool // of the last pick
	kept   bool         // the last pick has the numbers of the record
}

// PickerOptions are the allocation of a Picker, and the range from which it picks.
type PickerOptions struct {
	Store        *record.Store
	ID           string
	First, Last  int  // the range, including both ends
	IgnoreHostIP bool // see portmap.Options
}

// NewPicker returns a Picker for the ports of an allocation; nil if all of them have a number.
func NewPicker(o PickerOptions, ports []portmap.Port) *Picker {
	if !slices.ContainsFunc(ports, func(p portmap.Port) bool { return p.Value == 0 }) {
		return nil
	}
	return &Picker{PickerOptions: o, wanted: ports, next: rand.IntN(o.size())}
}

func (o *PickerOptions) size() int { return o.Last - o.First + 1 }

// Keep returns the ports with the numbers that an earlier Setup of the allocation has picked;
// nil if there are none.
func (k *Picker) Keep() []portmap.Port {
	r, err := k.Store.Get(k.ID)
	if err != nil {
		return nil
	}
	ports := slices.Clone(k.wanted)
	used := map[int]bool{}
	for i, p := range ports {
		if p.Value != 0 {
			continue
		}
		n := slices.IndexFunc(r.Ports, func(m portmap.Mapping) bool {
			ports[i].Value = m.HostPort
			return !used[m.HostPort] && k.has(r, ports[i])
		})
		if n < 0 {
			return nil
		}
		used[r.Ports[n].HostPort] = true
	}
	k.picked, k.kept = used, true
	return ports
}

// has reports whether a record has all mappings of a port.
func (k *Picker) has(r *record.Record, p portmap.Port) bool {
	mappings, err := portmap.Mappings([]portmap.Port{p}, portmap.Options{IgnoreHostIP: k.IgnoreHostIP})
	return err == nil && !slices.ContainsFunc(mappings, func(m portmap.Mapping) bool {
		return !slices.ContainsFunc(r.Ports, func(is portmap.Mapping) bool {
			is.Label = m.Label
			return is == m
		})
	})
}

// Pick returns the ports with numbers that seem to be free. Every call tries others.
func (k *Picker) Pick(ctx context.Context) ([]portmap.Port, error) {
	ports := slices.Clone(k.wanted)
	used := map[int]bool{}
	for _, p := range ports {
		for n := range max(p.Range, 1) {
			used[p.Value+n] = true
		}
	}
	k.picked, k.kept = map[int]bool{}, false
	for i, p := range ports {
		if p.Value != 0 {
			continue
		}
		if p.Range > 1 {
			return nil, fmt.Errorf("%w: %w", allocnet.ErrInvalidAllocation,
				&portmap.PortError{Index: i, Label: p.Label, Field: "range", Value: strconv.Itoa(p.Range), Reason: "must be 1 for a port without a number"})
		}
		for ports[i].Value == 0 {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			candidate, err := k.candidate()
			if err != nil {
				return nil, err
			}
			if p.Value = candidate; !used[candidate] && k.isFree(p) {
				ports[i], used[candidate], k.picked[candidate] = p, true, true
			}
		}
	}
	return ports, nil
}

// candidate returns the next number of the range, and ErrNoPort after the last one.
func (k *Picker) candidate() (int, error) {
	if k.tried == k.size() {
		return 0, fmt.Errorf("pick a host port for allocation %q: %w of %d-%d", k.ID, allocnet.ErrNoPort, k.First, k.Last)
	}
	k.tried++
	k.next = (k.next + 1) % k.size()
	return k.First + k.next, nil
}

// isFree reports whether neither an allocation nor a process of the host seems to have a port.
func (k *Picker) isFree(p portmap.Port) bool {
	mappings, err := portmap.Mappings([]portmap.Port{p}, portmap.Options{IgnoreHostIP: k.IgnoreHostIP})
	if err != nil {
		return true // Setup returns the error
	}
	return !k.Store.IsReserved(p.Value) && Unused(mappings)
}

// Again reports whether an error is about a number that was picked, so that others may do.
func (k *Picker) Again(err error) bool {
	var conflict *portmap.ConflictError
	var taken *allocnet.PortTakenError
	var listener *allocnet.ListenerError
	switch {
	case errors.As(err, &conflict):
		return k.picked[conflict.Mapping.HostPort] && conflict.OtherID != k.ID
	case errors.As(err, &taken):
		return k.picked[taken.Mapping.HostPort]
	case errors.As(err, &listener):
		return k.picked[listener.Mapping.HostPort]
	}
	return false
}

// Kept reports whether the last ports were those of Keep.
func (k *Picker) Kept() bool { return k.kept }
