package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/sandbox"
)

func newCleanup(a *app) *cobra.Command {
	var audit, force, destroy bool
	c := &cobra.Command{
		Use:   "cleanup (--audit | --force) [ID]...",
		Short: "Find or remove what allocations left on the host",
		Long: `Find or remove what allocations left on the host: links, rules, leases, connection
tracking entries. No plugin is run.

Without an ID it checks every allocation whose operation was interrupted or whose
network namespace is gone. An ID need not have a record. For an allocation that is
set up, use teardown. --force accepts the IDs of runtimes as ls shows them, --audit
also any unique prefix of at least 4 hexadecimal digits.

--destroy also destroys the network namespaces of the records in ` + sandbox.DefaultDir + `,
where setup --create makes them.`,
		Example: `  allocnet cleanup --audit
  allocnet cleanup --force web
  allocnet cleanup --force --destroy`,
		Annotations:       exits("leftovers were found (--audit)"),
		ValidArgsFunction: a.completeIDs,
		RunE: func(c *cobra.Command, ids []string) error {
			return a.cleanup(c.Context(), ids, force, destroy)
		},
	}
	c.Flags().BoolVar(&audit, "audit", false, "only list what is found")
	c.Flags().BoolVar(&force, "force", false, "remove what is found, and the record")
	c.Flags().BoolVar(&destroy, "destroy", false, "with --force: destroy the network namespaces too")
	c.MarkFlagsOneRequired("audit", "force")
	c.MarkFlagsMutuallyExclusive("audit", "destroy")
	c.MarkFlagsMutuallyExclusive("audit", "force")
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
	errs := []error{err}
	results := make([]cleanupResult, len(targets))
	for i, target := range targets {
		done := a.progress("checking %s (%d of %d)", target.ID, i+1, len(targets))
		err := target.clean(ctx, conf, force, destroy)
		done()
		errs = append(errs, err)
		results[i] = target
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
	r, err := conf.Get(ctx, id)
	switch {
	case err == nil:
		return cleanupResult{ID: id, State: recordState(r), netns: namespaceOf(r)}, nil
	case errors.Is(err, configurator.ErrInvalidAllocation):
		return cleanupResult{}, err
	case errors.Is(err, configurator.ErrNotFound):
		return cleanupResult{ID: id, State: stateNoRecord}, nil
	}
	return cleanupResult{ID: id, State: stateUnreadable}, nil
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

// clean audits one allocation or, with force, removes its objects. With destroy it also
// destroys the network namespace, unless an allocation has it.
func (r *cleanupResult) clean(ctx context.Context, conf *configurator.Configurator, force, destroy bool) (err error) {
	alloc := configurator.Allocation{ID: r.ID, Netns: netnsPath(r.ID, "")}
	recorded, _ := conf.Get(ctx, r.ID) // before Force removes the record
	own := recordedNetns(recorded)
	if force {
		r.Removed, err = conf.Force(ctx, alloc)
		r.Removed = orEmpty(r.Removed)
	} else {
		r.Found, err = conf.Audit(ctx, alloc)
		r.Found = orEmpty(r.Found)
	}
	if err == nil && destroy && isNamed(r.netns) && netnsOwners(ctx, conf)[r.netns] == "" {
		r.Destroyed, err = r.destroyNetns(own)
	}
	if err != nil {
		r.Error, r.Kind = message(err), kindOf(err).word
		return fmt.Errorf("clean up %q: %w", r.ID, err)
	}
	return nil
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
