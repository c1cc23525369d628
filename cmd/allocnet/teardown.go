package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/sandbox"
)

func newTeardown(a *app) *cobra.Command {
	var netns string
	var destroy, gone bool
	c := &cobra.Command{
		Use:   "teardown ID",
		Short: "Remove everything an allocation has on the host",
		Long: `Remove everything an allocation has on the host: run DEL, look for leftovers, and
remove those by force.

An ID that is not set up is not an error. If the record was lost, --netns and
--network help to find everything.

--destroy also destroys the network namespace in the record, or the one that
setup --create made. It destroys no other one, even if --netns names it.

With --gone, an allocation whose network namespace exists is kept, and so is what the
host has of an allocation without a record.

With --json, "forced" lists the leftovers of DEL. If the daemon removes them, it is
omitted: the events of the daemon report them.`,
		Args:              oneID,
		ValidArgsFunction: a.completeIDs,
		RunE: func(c *cobra.Command, args []string) error {
			if gone && a.flags.chosen {
				return usagef("--gone has the networks from the record: omit --network")
			}
			if gone {
				return a.teardownGone(c.Context(), args[0])
			}
			return a.teardown(c, args[0], netns, destroy)
		},
	}
	c.Flags().StringVar(&netns, "netns", "", "path of the network namespace, if the record was lost (default /run/netns/ID)")
	c.Flags().BoolVar(&destroy, "destroy", false, "destroy the network namespace too")
	c.Flags().BoolVar(&gone, "gone", false, "only if the network namespace of the record no longer exists")
	c.MarkFlagsMutuallyExclusive("gone", "netns")
	c.MarkFlagsMutuallyExclusive("gone", "destroy")
	return c
}

type teardownReport struct {
	ID        string `json:"id"`
	Destroyed bool   `json:"destroyed"` // a network namespace was destroyed
	// Kept reports that --gone did nothing.
	Kept bool `json:"kept,omitempty"`
	// Forced are the leftovers of DEL. It is omitted if the daemon removed them; its events
	// report them.
	Forced []configurator.Leftover `json:"forced,omitzero"`
}

// complete makes an empty list of the leftovers if this process has removed none.
func (r *teardownReport) complete(conf allocnet.Service) {
	if !asksDaemon(conf) {
		r.Forced = orEmpty(r.Forced)
	}
}

// teardownGone tears down an allocation whose network namespace no longer exists.
func (a *app) teardownGone(ctx context.Context, id string) error {
	var report teardownReport
	a.onForced = func(_ string, removed []configurator.Leftover) { report.Forced = append(report.Forced, removed...) }
	conf, err := a.service()
	if err != nil {
		return err
	}
	if err := usableID(ctx, conf, id); err != nil {
		return err
	}
	if report.ID, err = wholeID(ctx, conf, id, isPrefix(shownID)); err != nil {
		return err
	}
	done := a.progress("tearing down %s", report.ID)
	defer done()
	gone, err := conf.TeardownGone(ctx, report.ID)
	if err != nil {
		return err
	}
	report.Kept = !gone
	report.complete(conf)
	done()
	if a.flags.json {
		return a.out.JSON(report)
	}
	outcome := "is torn down"
	if report.Kept {
		outcome = "is kept: its network namespace exists, or it has no record"
	}
	a.out.Printf("%s %s %s\n", a.out.Paint(term.Green, a.out.Mark()), a.out.Paint(term.Bold, report.ID), outcome)
	a.printForced(report.Forced)
	return nil
}

// teardown tears down an allocation. With destroy it also destroys the network
// namespace if it is known to belong to the allocation.
func (a *app) teardown(c *cobra.Command, id, netns string, destroy bool) error {
	var report teardownReport
	a.onForced = func(_ string, removed []configurator.Leftover) { report.Forced = append(report.Forced, removed...) }
	conf, err := a.service()
	if err != nil {
		return err
	}
	if err := usableID(c.Context(), conf, id); err != nil {
		return err
	}
	if id, err = wholeID(c.Context(), conf, id, isPrefix(shownID)); err != nil {
		return err
	}
	a.warnOfShort(c.Context(), conf, id)
	report.ID = id
	path := netnsPath(id, netns)
	r, err := conf.Get(c.Context(), id)
	if err == nil && netns == "" {
		path = r.Netns
	}
	found := !errors.Is(err, configurator.ErrNotFound)
	own, there := recordedNetns(r), identityAt(path)
	if destroy {
		if err := netnsOwners(c.Context(), conf).checkFree(path, id); err != nil {
			return err
		}
	}
	done := a.progress("tearing down %s", id)
	defer done()
	gone := configurator.Allocation{ID: id, Netns: path, Networks: a.flags.networks, OwnNetns: destroy, Wait: true}
	if err = conf.Teardown(c.Context(), gone); err != nil {
		return err
	}
	report.complete(conf)
	if destroy {
		report.Destroyed, err = destroyOwn(path, there, own)
		if err != nil {
			return err
		}
	}
	done()
	if a.flags.json {
		return a.out.JSON(report)
	}
	outcome := "is torn down"
	if !found {
		outcome = "has no record; nothing of it is left on the host"
	}
	a.out.Printf("%s %s %s\n", a.out.Paint(term.Green, a.out.Mark()), a.out.Paint(term.Bold, id), outcome)
	if destroy && !report.Destroyed {
		a.printKept(path)
	}
	a.printForced(report.Forced)
	return nil
}

// printKept says why a network namespace was not destroyed.
func (a *app) printKept(path string) {
	if identityAt(path) == (sandbox.Identity{}) {
		a.out.Printf("no network namespace at %s\n", path)
		return
	}
	a.out.Printf("network namespace %s is kept: it is not known to belong to the allocation\n", path)
}

// destroyOwn destroys the network namespace that was at a path before the teardown, if it
// belongs to the allocation and the teardown has not destroyed it. destroyed reports
// whether the namespace existed and is gone now.
func destroyOwn(path string, there, own sandbox.Identity) (destroyed bool, err error) {
	none := sandbox.Identity{}
	switch now := identityAt(path); {
	case there == none:
		return false, nil
	case now == none || !now.Is(there):
		return true, nil
	case own == none || !own.Is(there):
		return false, nil
	}
	return destroyNetns(path)
}
