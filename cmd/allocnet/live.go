package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
)

// liveIDs returns the IDs of the allocations for which the live IDs of gc stand, and as unknown
// those that match no record. A live ID stands for the allocation of that ID and for all
// attachments of the container of that ID. A short form that matches several attachments of one
// container stands for all of them. Unknown IDs are in both lists, because an allocation may have
// lost its record.
func liveIDs(ctx context.Context, conf allocnet.Service, given []string) (live, unknown []string, err error) {
	if len(given) == 0 {
		return nil, nil, nil
	}
	records, _ := conf.List(ctx) // GC reports unreadable records
	for _, id := range given {
		_, err := conf.Get(ctx, id)
		if errors.Is(err, configurator.ErrInvalidAllocation) {
			return nil, nil, err
		}
		live = append(live, id)
		found := attachmentsOf(id, records)
		if len(found) == 0 && errors.Is(err, configurator.ErrNotFound) {
			if found, err = ofOneContainer(id, records); err != nil {
				return nil, nil, err
			}
			if len(found) == 0 {
				unknown = append(unknown, id)
			}
		}
		live = append(live, found...)
	}
	return live, unknown, nil
}

// attachmentsOf returns the IDs of the allocations with a container ID.
func attachmentsOf(container string, records []configurator.Record) (found []string) {
	for i := range records {
		if records[i].ContainerID == container {
			found = append(found, records[i].ID)
		}
	}
	return found
}

// ofOneContainer returns the allocations for which a short form stands. Those of several
// containers are an error.
func ofOneContainer(short string, records []configurator.Record) ([]string, error) {
	found := standingFor(short, records, isPrefix(shownID))
	for _, id := range found {
		if container(id) != container(found[0]) {
			return nil, ambiguous(short, found)
		}
	}
	return found, nil
}

// container returns the ID of a runtime without the interface.
func container(id string) string {
	digits, _, _ := runtimeID(id)
	return digits
}

// requireKnown warns of live IDs that match nothing. It returns an error if gc would remove an
// allocation that such an ID may mean, or if it would remove any although no live ID matches
// anything: they are then more likely IDs of another kind than those of a host without networks.
func (a *app) requireKnown(ctx context.Context, conf allocnet.Service, scope configurator.Scope, unknown []string) error {
	if len(unknown) == 0 {
		return nil
	}
	plan, err := conf.PlanGC(ctx, scope)
	if plan == nil {
		return err
	}
	unknown = slices.DeleteFunc(unknown, func(id string) bool { return slices.Contains(plan.Kept, id) }) // without a record
	if err := meaningRemoved(unknown, plan); err != nil {
		return err
	}
	if len(plan.Removed) > 0 && !slices.ContainsFunc(scope.Live, func(id string) bool { return !slices.Contains(unknown, id) }) {
		return stepError{
			usagef("match live IDs: no allocation has any of the IDs %s, and %s would be removed: %s",
				someOf(unknown), term.Plural(len(plan.Removed), "allocation"), someOf(plan.Removed)),
			"give the IDs that `allocnet ls` prints; if no allocation is live, pass --none",
		}
	}
	for _, id := range unknown {
		a.warn("live allocation %q is not set up", id)
	}
	return nil
}

// meaningRemoved returns an error if live IDs that match nothing may mean allocations to remove.
func meaningRemoved(unknown []string, plan *configurator.GCReport) error {
	containers := map[string]string{} // an ID that would be too long is a hash of the container's
	for i := range plan.Records {
		containers[plan.Records[i].ID] = plan.Records[i].ContainerID
	}
	for i, live := range unknown {
		var found []string
		for _, id := range plan.Removed {
			if mayMean(live, id) || mayMean(live, containers[id]) {
				found = append(found, id)
			}
		}
		if len(found) == 0 {
			continue
		}
		step := fmt.Sprintf("%s; if it is not live, `allocnet teardown %s` removes it", suggestion(found), shortID(found[0]))
		if len(found) > 1 {
			step = suggestion(found) + "; `allocnet teardown ID` removes one that is not live"
		}
		if more := unknown[i+1:]; len(more) > 0 {
			step += "; other live IDs that match nothing: " + someOf(more)
		}
		if isPrefix(minPrefix)(live, found[0]) {
			return stepError{usagef("live ID %q: too short for %s: %s", live, term.Plural(len(found), "allocation"), someOf(found)), step}
		}
		return stepError{usagef("live ID %q: no allocation has this ID, but it may mean %s, which would be removed", live, someOf(found)), step}
	}
	return nil
}

// mayMean reports whether a live ID without an allocation may name one in another form: the
// beginning of its ID, or of the part after a hyphen, if a program generated it, or that whole
// part. containerd's clients put its namespace before the name or ID of a container, as in
// "default-web.eth0".
func mayMean(live, id string) bool {
	if isPrefix(minPrefix)(live, id) {
		return true
	}
	ext := filepath.Ext(id)
	tail, live, more := strings.TrimSuffix(id, ext), strings.TrimSuffix(live, ext), true
	for more {
		if tail == live || len(live) >= minPrefix && isGenerated(tail) && strings.HasPrefix(tail, live) {
			return true
		}
		_, tail, more = strings.Cut(tail, "-")
	}
	return false
}

// isGenerated reports whether a text looks like a UUID or the ID of a runtime's container.
func isGenerated(text string) bool {
	return len(text) >= 32 && strings.Trim(text, "0123456789abcdef-") == ""
}
