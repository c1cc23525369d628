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
	next   int          // the next candidate, as an offset in the range
	tried  int          // how many candidates of the range the current pass has had
	spare  []int        // candidates that were picked together with one that was taken
	passes int          // how often the range may be searched again
	lost   bool         // another operation was quicker
	picked map[int]bool // of the last pick
}

// maxPasses bounds how often the range is searched: a number that another operation has reserved may
// be free again when that one has failed.
const maxPasses = 3

// PickerOptions are the allocation of a Picker, and the range from which it picks.
type PickerOptions struct {
	Store        *record.Store
	ID           string
	First, Last  int  // the range, including both ends
	IgnoreHostIP bool // see portmap.Options
	// Freed are ports of the allocation that the same change unpublishes.
	Freed []portmap.Port
}

// NewPicker returns a Picker for the ports of an allocation; nil if all of them have a number.
func NewPicker(o PickerOptions, ports []portmap.Port) *Picker {
	if !slices.ContainsFunc(ports, func(p portmap.Port) bool { return p.Value == 0 }) {
		return nil
	}
	return &Picker{PickerOptions: o, wanted: ports, next: rand.IntN(o.size()), passes: maxPasses}
}

func (o *PickerOptions) size() int { return o.Last - o.First + 1 }

// Keep returns the ports with the numbers that an earlier Setup of the allocation has picked;
// nil if there are none.
func (k *Picker) Keep() []portmap.Port {
	r, err := k.Store.Get(k.ID)
	if err != nil {
		return nil
	}
	recorded := r.Ports
	if slices.Contains(r.Unserved, portmap.Capability) { // it has no ports, only requested ones
		recorded, _ = portmap.Mappings(r.RequestedPorts, portmap.Options{IgnoreHostIP: k.IgnoreHostIP})
	}
	ports := slices.Clone(k.wanted)
	used, picked := k.numbers(), map[int]bool{}
	for i, p := range ports {
		if p.Value != 0 {
			continue
		}
		n := slices.IndexFunc(recorded, func(m portmap.Mapping) bool {
			ports[i].Value = m.HostPort
			return !used[m.HostPort] && k.isIn(recorded, ports[i])
		})
		if n < 0 {
			return nil
		}
		used[recorded[n].HostPort], picked[recorded[n].HostPort] = true, true
	}
	k.picked = picked
	return ports
}

// numbers returns the numbers of the wanted ports that have one.
func (k *Picker) numbers() map[int]bool {
	numbers := map[int]bool{}
	for _, p := range k.wanted {
		for n := range max(p.Range, 1) {
			numbers[p.Value+n] = p.Value != 0
		}
	}
	return numbers
}

// isIn reports whether mappings contain all those of a port.
func (k *Picker) isIn(recorded []portmap.Mapping, p portmap.Port) bool {
	mappings, err := portmap.Mappings([]portmap.Port{p}, portmap.Options{IgnoreHostIP: k.IgnoreHostIP})
	return err == nil && !slices.ContainsFunc(mappings, func(m portmap.Mapping) bool {
		return !slices.ContainsFunc(recorded, func(is portmap.Mapping) bool {
			is.Label = m.Label
			return is == m
		})
	})
}

// Pick returns the ports with numbers that seem to be free. Every call tries others.
func (k *Picker) Pick(ctx context.Context) ([]portmap.Port, error) {
	ports := slices.Clone(k.wanted)
	used := k.numbers()
	k.picked = map[int]bool{}
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
			if p.Value = candidate; used[candidate] {
				continue
			}
			free, err := k.isFree(p)
			if err != nil {
				return nil, fmt.Errorf("pick a host port for allocation %q: look whether %d is in use: %w", k.ID, candidate, err)
			}
			if free {
				ports[i], used[candidate], k.picked[candidate] = p, true, true
			}
		}
	}
	return ports, nil
}

// candidate returns the next number of the range, and ErrNoPort after the last one.
func (k *Picker) candidate() (int, error) {
	if n := len(k.spare); n > 0 {
		candidate := k.spare[n-1]
		k.spare = k.spare[:n-1]
		return candidate, nil
	}
	if k.tried == k.size() && k.lost && k.passes > 1 {
		k.tried, k.passes = 0, k.passes-1
	}
	if k.tried == k.size() {
		return 0, fmt.Errorf("pick a host port for allocation %q: %w of %d-%d", k.ID, allocnet.ErrNoPort, k.First, k.Last)
	}
	k.tried++
	k.next = (k.next + 1) % k.size()
	return k.First + k.next, nil
}

// isFree reports whether neither an allocation nor a process of the host seems to have a port. An error
// means that the host is exhausted.
func (k *Picker) isFree(p portmap.Port) (bool, error) {
	mappings, err := portmap.Mappings([]portmap.Port{p}, portmap.Options{IgnoreHostIP: k.IgnoreHostIP})
	if err != nil {
		return true, nil // Setup returns the error
	}
	if !k.isFreed(p.Value) && k.Store.IsReserved(p.Value) {
		return false, nil
	}
	return Unused(mappings)
}

// isFreed reports whether the same change unpublishes a port of the allocation.
func (k *Picker) isFreed(port int) bool {
	return slices.ContainsFunc(k.Freed, func(p portmap.Port) bool { return p.Value <= port && port < p.Value+max(p.Range, 1) })
}

// Again reports whether an error is about a number that was picked, so that others may do.
func (k *Picker) Again(err error) bool {
	taken, ok := k.taken(err)
	if !ok {
		return false
	}
	k.lost = true
	for n := range k.picked {
		if n != taken {
			k.spare = append(k.spare, n)
		}
	}
	return true
}

// taken returns the picked number that an error is about.
func (k *Picker) taken(err error) (port int, ok bool) {
	var conflict *portmap.ConflictError
	var taken *allocnet.PortTakenError
	var listener *allocnet.ListenerError
	switch {
	case errors.As(err, &conflict):
		port = conflict.Mapping.HostPort
		return port, k.picked[port] && (conflict.OtherID != k.ID || k.isFreed(port))
	case errors.As(err, &taken):
		port = taken.Mapping.HostPort
	case errors.As(err, &listener):
		port = listener.Mapping.HostPort
	}
	return port, k.picked[port]
}
