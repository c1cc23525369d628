package hoststatus

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// allocations reads the allocations by health.
func (o *Options) allocations(ctx context.Context) (func(*client.HostStatus), []string) {
	records, err := o.Service.List(ctx)
	var problems []string
	unreadable := 0
	for _, e := range single(err) {
		problems = append(problems, text(e))
		var broken *allocnet.RecordError
		switch {
		case errors.As(e, &broken):
			unreadable++
		case len(records) == 0: // no record could be looked for
			return nil, problems
		}
	}
	found := &client.HostStatus{}
	o.addHealth(ctx, found, records)
	found.Allocations.Unreadable = unreadable
	return func(s *client.HostStatus) {
		s.Allocations, s.Waiting = found.Allocations, found.Waiting
		s.Unhealthy, s.Unchecked, s.NoCheck = found.Unhealthy, found.Unchecked, found.NoCheck
		s.Drift = append(s.Drift, found.Drift...)
	}, append(problems, found.Problems...)
}

// single returns the errors that are joined in one.
func single(err error) (list []error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			list = append(list, single(e)...)
		}
		return list
	}
	if err != nil {
		list = append(list, err)
	}
	return list
}

// addHealth adds the allocations of records by health. Those that are set up are checked. So are
// those whose network namespace is gone: their teardown may have ended since the records were read.
func (o *Options) addHealth(ctx context.Context, s *client.HostStatus, records []configurator.Record) {
	ready, changing, lost := countPhases(s, records)
	o.findInterrupted(ctx, s, changing)
	without := withoutCheck(records)
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(o.CheckTime, defaultCheckTime))
	defer cancel()
	health := o.Service.CheckAll(ctx, ready)
	ended, counts := ctx.Err() != nil, &s.Allocations
	for _, id := range ready {
		err, checked := health[id]
		damage, damaged := o.damage(id)
		switch {
		case !checked && !ended: // it has been torn down meanwhile
			counts.Total--
			o.note(id, nil)
		case checked && err == nil && without[id]:
			counts.NoCheck++
			s.NoCheck = append(s.NoCheck, id)
			o.note(id, nil)
		case checked && err == nil:
			counts.Healthy++
			o.note(id, nil)
		case lost[id] && (!checked || errors.Is(err, configurator.ErrUnhealthy)):
			counts.NetnsGone++
		case !checked && damaged:
			addUnhealthy(s, id, damage)
		case errors.Is(err, configurator.ErrUnhealthy):
			addUnhealthy(s, id, text(err))
			o.note(id, err)
		default:
			counts.Unchecked++
			s.Unchecked = append(s.Unchecked, id)
			if err != nil {
				s.Problems = append(s.Problems, text(fmt.Errorf("check %s: %w", id, err)))
				o.note(id, err)
			}
		}
	}
}

// countPhases counts the records, and those whose operation is not over. It returns the allocations to check, those
// whose operation is not over, and of the former those whose network namespace is gone.
func countPhases(s *client.HostStatus, records []configurator.Record) (ready, changing []string, lost map[string]bool) {
	lost = map[string]bool{}
	counts := &s.Allocations
	counts.Total = len(records)
	for i := range records {
		for _, w := range records[i].Waiting {
			if len(s.Waiting) < maxDrift {
				s.Waiting = append(s.Waiting, client.Waiting{ID: records[i].ID, Port: w.Mapping.Published(), Older: w.ID})
			}
		}
		switch r := &records[i]; {
		case r.Acknowledged:
			counts.Deleting++
		case r.Phase == configurator.PhaseDeleting:
			counts.Deleting++
			changing = append(changing, r.ID)
		case r.NetnsGone:
			ready, lost[r.ID] = append(ready, r.ID), true
		case r.Phase == configurator.PhaseAdding:
			counts.Adding++
			changing = append(changing, r.ID)
		default:
			ready = append(ready, r.ID)
		}
	}
	return ready, changing, lost
}

// withoutCheck returns the allocations with a network that has no CHECK: then a CHECK that finds nothing says
// little.
func withoutCheck(records []configurator.Record) map[string]bool {
	lacks := map[string]bool{} // by configuration, which most allocations share
	without := map[string]bool{}
	for i := range records {
		for _, n := range records[i].Networks {
			is, known := lacks[string(n.Config)]
			if !known {
				is = conflist.LacksCheck(n.Config)
				lacks[string(n.Config)] = is
			}
			if is {
				without[records[i].ID] = true
			}
		}
	}
	return without
}

func addUnhealthy(s *client.HostStatus, id, found string) {
	s.Allocations.Unhealthy++
	s.Unhealthy = append(s.Unhealthy, id)
	if len(s.Drift) < maxDrift {
		s.Drift = append(s.Drift, client.Drift{ID: id, Error: found})
	}
}

// damage returns what the daemon has found of an allocation, if it is unhealthy.
func (o *Options) damage(id string) (found string, unhealthy bool) {
	if o.Known == nil {
		return "", false
	}
	found, unhealthy = o.Known.Damage(id)
	return redact.Bound(found), unhealthy
}

// note adds the result of a CHECK to what the daemon knows.
func (o *Options) note(id string, err error) {
	switch {
	case o.Known == nil:
	case errors.Is(err, configurator.ErrNotChecked):
		o.Known.NotChecked(id)
	default:
		o.Known.Found(id, err)
	}
}

// findInterrupted counts those allocations that are being set up or removed on which no operation works.
func (o *Options) findInterrupted(ctx context.Context, s *client.HostStatus, changing []string) {
	if o.Host == nil {
		return
	}
	for _, id := range changing {
		phase, err := o.Host.Interrupted(ctx, id)
		switch {
		case err != nil:
			s.Problems = append(s.Problems, text(err))
		case phase == configurator.PhaseDeleting:
			s.Allocations.Deleting--
			s.Allocations.Interrupted++
		case phase == configurator.PhaseAdding:
			s.Allocations.Adding--
			s.Allocations.Interrupted++
		}
	}
}
