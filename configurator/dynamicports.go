package configurator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/allocnet/allocnet/internal/listeners"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// PortRange is a range of host ports, including both ends.
type PortRange struct{ First, Last int }

// DefaultDynamicPorts is the range of host ports that are picked for ports without a number. It
// ends before the range from which Linux takes ports for outgoing connections
// (net.ipv4.ip_local_port_range, 32768 to 60999).
var DefaultDynamicPorts = PortRange{20000, 32000}

// ParsePortRange reads a range as "20000-32000".
func ParsePortRange(text string) (PortRange, error) {
	first, last, found := strings.Cut(text, "-")
	var r PortRange
	var errs [2]error
	r.First, errs[0] = strconv.Atoi(first)
	r.Last, errs[1] = strconv.Atoi(last)
	if !found || errors.Join(errs[:]...) != nil || !r.valid() {
		return PortRange{}, fmt.Errorf("%q is not a range of ports: write it as 20000-32000", text)
	}
	return r, nil
}

// String returns the range as ParsePortRange reads it.
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

func (r PortRange) valid() bool { return 1 <= r.First && r.First <= r.Last && r.Last <= 65535 }

func (r PortRange) size() int { return r.Last - r.First + 1 }

// picker replaces ports without a number by free host ports. It reserves nothing: a number that
// another operation gets first is refused like any other, and the caller picks again.
type picker struct {
	*Configurator
	id     string
	wanted []portmap.Port
	next   int // the next candidate, as an offset in the range
	tried  int
	picked map[int]bool // of the last pick
	kept   bool         // the last pick has the numbers of the record
}

// pickerFor returns a picker for the ports of an allocation; nil if all of them have a number.
func (c *Configurator) pickerFor(id string, ports []portmap.Port) *picker {
	if !slices.ContainsFunc(ports, func(p portmap.Port) bool { return p.Value == 0 }) {
		return nil
	}
	return &picker{Configurator: c, id: id, wanted: ports, next: rand.IntN(c.cfg.DynamicPorts.size())}
}

// keep returns the ports with the numbers that an earlier Setup of the allocation has picked;
// nil if there are none.
func (k *picker) keep() []portmap.Port {
	r, err := k.store.Get(k.id)
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
func (k *picker) has(r *record.Record, p portmap.Port) bool {
	mappings, err := portmap.Mappings([]portmap.Port{p}, portmap.Options{IgnoreHostIP: k.cfg.IgnorePortMappingHostIP})
	return err == nil && !slices.ContainsFunc(mappings, func(m portmap.Mapping) bool {
		return !slices.ContainsFunc(r.Ports, func(is portmap.Mapping) bool { return unlabelled(is) == unlabelled(m) })
	})
}

// pick returns the ports with numbers that seem to be free. Every call tries others.
func (k *picker) pick(ctx context.Context) ([]portmap.Port, error) {
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
			return nil, fmt.Errorf("%w: %w", ErrInvalidAllocation,
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
func (k *picker) candidate() (int, error) {
	all := k.cfg.DynamicPorts
	if k.tried == all.size() {
		return 0, fmt.Errorf("pick a host port for allocation %q: %w of %s", k.id, ErrNoPort, all)
	}
	k.tried++
	k.next = (k.next + 1) % all.size()
	return all.First + k.next, nil
}

// isFree reports whether neither an allocation nor a process of the host seems to have a port.
func (k *picker) isFree(p portmap.Port) bool {
	mappings, err := portmap.Mappings([]portmap.Port{p}, portmap.Options{IgnoreHostIP: k.cfg.IgnorePortMappingHostIP})
	if err != nil {
		return true // Setup returns the error
	}
	return !k.store.IsReserved(p.Value) && listeners.Unused(mappings)
}

// again reports whether an error is about a number that was picked, so that others may do.
func (k *picker) again(err error) bool {
	var conflict *portmap.ConflictError
	var taken *PortTakenError
	var listener *ListenerError
	switch {
	case errors.As(err, &conflict):
		return k.picked[conflict.Mapping.HostPort] && conflict.OtherID != k.id
	case errors.As(err, &taken):
		return k.picked[taken.Mapping.HostPort]
	case errors.As(err, &listener):
		return k.picked[listener.Mapping.HostPort]
	}
	return false
}

// setUpPicked is Setup of an allocation with ports that have no number.
func (c *Configurator) setUpPicked(ctx context.Context, a Allocation, k *picker) (*Status, error) {
	ports := k.keep()
	for {
		var err error
		if ports == nil {
			if ports, err = k.pick(ctx); err != nil {
				return nil, err
			}
		}
		a.Ports = ports
		status, err := c.setUpNumbered(ctx, a)
		kept := k.kept
		switch ports = nil; {
		case err == nil, ctx.Err() != nil:
			return status, err
		case k.again(err):
		case errors.Is(err, ErrDifferent) && !kept: // another Setup of the ID was quicker
			if ports = k.keep(); ports == nil {
				return nil, err
			}
		default:
			return nil, err
		}
	}
}
