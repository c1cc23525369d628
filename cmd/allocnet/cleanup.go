package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/sandbox"
)

func newCleanup(a *app) *cobra.Command {
	var audit, force, destroy, orphans bool
	c := &cobra.Command{
		Use:   "cleanup ((--audit | --force) [ID]... | --orphans)",
		Short: "Find or remove what allocations left on the host",
		Long: `Find or remove what allocations left on the host: links, rules, leases, connection
tracking entries. No plugin is run.

Without an ID it checks every allocation whose operation was interrupted or whose
network namespace is gone. An ID need not have a record; --network says where it was. For an allocation that is
set up, use teardown. --force accepts the IDs of runtimes as ls shows them, --audit
also any unique prefix of at least 4 hexadecimal digits. Allocations on which an
operation works are waited for. Without an ID, one that is set up by then is left out,
and by --audit also one that is torn down and has left nothing.

--destroy also destroys the network namespaces of the records in ` + sandbox.DefaultDir + `,
where setup --create makes them. --orphans only destroys the network namespaces that
setup --create made for allocations that no longer exist.`,
		Example: `  allocnet cleanup --audit
  allocnet cleanup --force web
  allocnet cleanup --force --destroy`,
		Annotations:       exits("leftovers were found (--audit)"),
		ValidArgsFunction: a.completeIDs,
		RunE: func(c *cobra.Command, ids []string) error {
			if a.flags.chosen && len(ids) == 0 {
				return usagef("--network says where allocations of the given IDs were: name an ID")
			}
			if orphans {
				return a.destroyOrphans(c.Context(), ids)
			}
			return a.cleanup(c.Context(), ids, force, destroy)
		},
	}
	c.Flags().BoolVar(&audit, "audit", false, "only list what is found")
	c.Flags().BoolVar(&force, "force", false, "remove what is found, and the record")
	c.Flags().BoolVar(&destroy, "destroy", false, "with --force: destroy the network namespaces too")
	c.Flags().BoolVar(&orphans, "orphans", false, "destroy network namespaces of allocations that no longer exist")
	c.MarkFlagsOneRequired("audit", "force", "orphans")
	c.MarkFlagsMutuallyExclusive("audit", "destroy")
	c.MarkFlagsMutuallyExclusive("audit", "force", "orphans")
	c.MarkFlagsMutuallyExclusive("orphans", "destroy")
	return c
}

// cleanupResult is the result for one allocation: the objects that were found or
// removed.
type cleanupResult struct {
	ID string `json:"id"`
	// State is why the allocation was checked.
	State allocationState `json:"state"`
	// Found is the result of an audit; for a live allocation, the objects of its network.
	Found   []configurator.Leftover `json:"found,omitzero"`
	Removed []configurator.Leftover `json:"removed,omitzero"`
	// Destroyed reports whether a network namespace was destroyed.
	Destroyed bool   `json:"destroyed"`
	Error     string `json:"error,omitempty"`
	Kind      string `json:"kind,omitempty"` // of the error

	netns string // may be destroyed
}

// allocationState is the state of an allocation with regard to its objects on the host.
type allocationState string

const (
	stateLive        allocationState = "live"          // it is set up
	stateInterrupted allocationState = "interrupted"   // an operation did not end
	stateNetnsGone   allocationState = "netns gone"    // it is set up, but its network namespace is gone
	stateNoRecord    allocationState = "no record"     // it is not set up
	stateUnreadable  allocationState = "record broken" // the record cannot be read
)

// cleanup audits allocations or, with force, removes their objects, and prints the
// results.
func (a *app) cleanup(ctx context.Context, ids []string, force, destroy bool) error {
	conf, err := a.configurator()
	if err != nil {
		return err
	}
	targets, err := a.cleanupTargets(ctx, conf, ids, force)
	if err != nil && len(targets) == 0 {
		return err
	}
	errs, results := []error{err}, []cleanupResult{}
	how := cleaning{force: force, destroy: destroy, all: len(ids) == 0, until: time.Now().Add(removalTime)}
	for i, target := range targets {
		done := a.progress("checking %s (%d of %d)", target.ID, i+1, len(targets))
		ended, err := target.clean(ctx, conf, how)
		done()
		if !ended {
			errs, results = append(errs, err), append(results, target)
		}
	}
	if a.flags.json {
		errs = append(errs, a.out.JSON(map[string]any{"allocations": results}))
	} else {
		a.printCleanup(results)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return verdict(results)
}

// cleanupTargets returns the named allocations, or all that may have leftovers.
func (a *app) cleanupTargets(ctx context.Context, conf *configurator.Configurator, ids []string, force bool) ([]cleanupResult, error) {
	var targets []cleanupResult
	is := isPrefix(minPrefix)
	if force {
		is = isPrefix(shownID)
	}
	if len(ids) > 0 {
		for _, id := range ids {
			target, err := newTarget(ctx, conf, id, is)
			if err != nil {
				return nil, err
			}
			a.warnOfShort(ctx, conf, target.ID)
			targets = append(targets, target)
		}
		return targets, nil
	}
	records, err := conf.List(ctx)
	for i := range records {
		if state := recordState(&records[i]); state != stateLive {
			targets = append(targets, cleanupResult{ID: records[i].ID, State: state, netns: namespaceOf(&records[i])})
		}
	}
	return targets, err
}

// newTarget returns the target of cleanup for an ID or a short form.
func newTarget(ctx context.Context, conf *configurator.Configurator, short string, is shortForm) (cleanupResult, error) {
	id, err := wholeID(ctx, conf, short, is)
	if err != nil {
		return cleanupResult{}, err
	}
	target := cleanupResult{ID: id}
	r, err := conf.Get(ctx, id)
	if r != nil {
		target.netns = namespaceOf(r)
	}
	if errors.Is(err, configurator.ErrNotFound) {
		err = nil
	}
	target.State, err = stateOf(id, r, err)
	return target, err
}

// stateOf returns the state of an allocation whose record was looked for. r is nil, without an
// error, if there is none.
func stateOf(id string, r *configurator.Record, err error) (allocationState, error) {
	var broken *configurator.RecordError
	switch {
	case r != nil: // an error concerns only the results in it
		return recordState(r), nil
	case errors.As(err, &broken) && broken.ID == id:
		return stateUnreadable, nil
	case err != nil:
		return "", err
	}
	return stateNoRecord, nil
}

func recordState(r *configurator.Record) allocationState {
	switch {
	case r.Phase != configurator.PhaseReady:
		return stateInterrupted
	case r.NetnsGone || sandbox.Validate(r.Netns) != nil:
		return stateNetnsGone
	}
	return stateLive
}

// namespaceOf returns the path of an allocation's network namespace, or "" if another one
// has been mounted there since.
func namespaceOf(r *configurator.Record) string {
	if r.NetnsGone && sandbox.Validate(r.Netns) == nil {
		return ""
	}
	return r.Netns
}

const (
	// removalTime is how long an audit waits for removals behind their teardown.
	removalTime = 5 * time.Second
	removalPoll = 50 * time.Millisecond
)

// cleaning is how cleanup treats its targets.
type cleaning struct {
	force, destroy bool
	all            bool      // no target was named
	until          time.Time // the end of the wait for removals behind their teardown
}

// clean audits one allocation or, with force, removes its objects. With destroy it also
// destroys the network namespace, unless an allocation has it. ended reports that an unnamed target
// is left out of the results: the operation that worked on it has succeeded.
func (r *cleanupResult) clean(ctx context.Context, conf *configurator.Configurator, how cleaning) (ended bool, err error) {
	alloc := configurator.Allocation{ID: r.ID, Netns: netnsPath(r.ID, "")}
	if how.force {
		ended, err = r.force(ctx, conf, alloc, how)
	} else {
		ended, err = r.audit(ctx, conf, alloc, how)
	}
	if ended || err == nil {
		return ended, nil
	}
	r.Error, r.Kind = message(err), kindOf(err).word
	return false, fmt.Errorf("clean up %q: %w", r.ID, err)
}

func (r *cleanupResult) force(ctx context.Context, conf *configurator.Configurator, alloc configurator.Allocation, how cleaning) (ended bool, err error) {
	recorded, _ := conf.Get(ctx, r.ID) // before Force removes the record
	own := recordedNetns(recorded)
	r.Removed, err = conf.Force(ctx, alloc)
	r.Removed = orEmpty(r.Removed)
	if how.all && errors.Is(err, configurator.ErrSetUp) {
		return true, nil
	}
	if err == nil && how.destroy && isNamed(r.netns) && netnsOwners(ctx, conf).checkFree(r.netns, "") == nil {
		r.Destroyed, err = r.destroyNetns(own)
	}
	return false, err
}

// audit looks for objects together with the state of the allocation. It looks again until the state
// is that of the look before, of which the first one has selected the target.
func (r *cleanupResult) audit(ctx context.Context, conf *configurator.Configurator, alloc configurator.Allocation, how cleaning) (ended bool, err error) {
	for {
		found, recorded, err := conf.AuditWithRecord(ctx, alloc)
		r.Found = orEmpty(found)
		state, err := stateOf(r.ID, recorded, err)
		switch {
		case err != nil:
			return false, err
		case recorded != nil && recorded.Acknowledged && time.Now().Before(how.until):
			select {
			case <-time.After(removalPoll):
			case <-ctx.Done(): // the next look returns the error
			}
		case state == r.State:
			return how.all && !r.isDamaged(), nil
		default:
			r.State = state
		}
	}
}

// isDamaged reports whether the result of an audit is other than that of an allocation that is set
// up, or torn down.
func (r *cleanupResult) isDamaged() bool {
	return r.State != stateLive && (r.State != stateNoRecord || len(r.Found) > 0)
}

// destroyOrphans destroys the network namespaces of allocations that no longer exist.
func (a *app) destroyOrphans(ctx context.Context, ids []string) error {
	if len(ids) > 0 {
		return usagef("--orphans takes no ID: it destroys the network namespaces of all allocations that no longer exist")
	}
	conf, err := a.configurator()
	if err != nil {
		return err
	}
	destroyed, err := conf.DestroyOrphans(ctx)
	if a.flags.json {
		return errors.Join(err, a.out.JSON(map[string]any{"destroyed": orEmpty(destroyed)}))
	}
	if err == nil || len(destroyed) > 0 {
		a.out.Printf("destroyed %s\n", term.Plural(len(destroyed), "network namespace"))
	}
	for _, path := range destroyed {
		a.out.Printf("  %s %s\n", a.out.Paint(term.Red, "-"), path)
	}
	return err
}

// destroyNetns destroys the network namespace of the record, or its file that a crash left.
// It does not destroy another one that has been mounted at the path since.
func (r *cleanupResult) destroyNetns(own sandbox.Identity) (destroyed bool, err error) {
	none := sandbox.Identity{}
	if there := identityAt(r.netns); there != none && (own == none || !own.Is(there)) {
		return false, nil
	}
	return destroyNetns(r.netns)
}

// orEmpty returns a list that JSON encodes as an array, never as null.
func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// verdict returns errLeftovers if an audit found objects that no live allocation uses.
func verdict(results []cleanupResult) error {
	count := 0
	for _, r := range results {
		if r.State != stateLive && len(r.Found) > 0 {
			count++
		}
	}
	if count > 0 {
		return fmt.Errorf("%w: %s", errLeftovers, term.Plural(count, "allocation"))
	}
	return nil
}

func (a *app) printCleanup(results []cleanupResult) {
	if len(results) == 0 {
		a.out.Printf("%s no allocation is interrupted or without its network namespace\n", a.out.Paint(term.Green, a.out.Mark()))
	}
	for _, r := range results {
		if r.Error != "" && len(r.Found)+len(r.Removed) == 0 { // the error says everything
			continue
		}
		list, state := r.Found, "found"
		if r.Removed != nil {
			list, state = r.Removed, "removed"
		}
		if r.State == stateLive && r.Removed == nil {
			state = "in use"
		}
		a.out.Printf("%s (%s): %s %s\n", a.out.Paint(term.Bold, r.ID), r.State, term.Plural(len(list), "object"), state)
		a.printLeftovers(list)
		if r.Destroyed {
			a.out.Printf("  network namespace %s destroyed\n", r.netns)
		}
	}
}
