package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/configurator"
)

func newTeardown(a *app) *cobra.Command {
	var netns string
	var destroy bool
	c := &cobra.Command{
		Use:   "teardown ID",
		Short: "Take away all that an allocation has on the host",
		Long: `Take away all that an allocation has on the host: run DEL, look for what it left,
and remove that by force.

What was never set up is no failure. Where the record was lost, --netns and
--network help to find everything.`,
		Args:              oneID,
		ValidArgsFunction: a.completeIDs,
		RunE: func(c *cobra.Command, args []string) error {
			return a.teardown(c, args[0], netns, destroy)
		},
	}
	c.Flags().StringVar(&netns, "netns", "", "path of the network namespace, where the record was lost (default /run/netns/ID)")
	c.Flags().BoolVar(&destroy, "destroy", false, "destroy the network namespace too")
	return c
}

type teardownReport struct {
	ID        string `json:"id"`
	Destroyed bool   `json:"destroyed"` // there was a network namespace, and it was destroyed
	// Forced is what DEL did not remove; not known where the daemon did it, whose
	// events tell.
	Forced []configurator.Leftover `json:"forced,omitzero"`
}

func (a *app) teardown(c *cobra.Command, id, netns string, destroy bool) error {
	report := teardownReport{ID: id}
	a.onForced = func(_ string, removed []configurator.Leftover) { report.Forced = append(report.Forced, removed...) }
	conf, err := a.service()
	if err != nil {
		return err
	}
	if _, own := conf.(*configurator.Configurator); own {
		report.Forced = []configurator.Leftover{}
	}
	if err := usableID(conf, id); err != nil {
		return err
	}
	path := netnsPath(id, netns)
	r, err := conf.Get(id)
	if err == nil && netns == "" {
		path = r.Netns
	}
	anothers := err == nil && r.NetnsGone && filepath.Clean(r.Netns) == filepath.Clean(path)
	if destroy {
		if err := netnsOwners(conf).checkFree(path, id); err != nil {
			return err
		}
	}
	done := a.progress("tearing down %s", id)
	defer done()
	there := seen(path)
	gone := configurator.Allocation{ID: id, Netns: path, Networks: a.flags.networks, OwnNetns: destroy}
	if err := conf.Teardown(c.Context(), gone); err != nil {
		return err
	}
	if destroy && there != nil && !anothers {
		// Where it does not lie with those that the configurator makes, it is still there.
		if now := seen(path); now != nil && os.SameFile(there, now) {
			if _, err := destroyNetns(path); err != nil {
				return err
			}
		}
		report.Destroyed = true
	}
	done()
	if a.flags.json {
		return a.out.json(report)
	}
	a.out.printf("%s %s is torn down\n", a.out.paint(green, a.mark()), a.out.paint(bold, id))
	if destroy && !report.Destroyed {
		a.out.printf("its network namespace was not at %s\n", path)
	}
	a.printForced(report.Forced)
	return nil
}
