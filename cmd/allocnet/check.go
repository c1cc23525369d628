package main

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

func newCheck(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "check ID",
		Short: "Check whether a network is still as it was set up",
		Long: `Check whether the network of an allocation is still as it was set up, with CHECK of
every plugin. Nothing is changed, whatever the setting repair_on_check of the daemon is.
Lists networks without CHECK (cniVersion below 0.4.0, or disableCheck), requests that
setup accepted although no plugin serves them (--allow-unserved), and host ports that
lead to an older allocation.`,
		Annotations:       exits("the network is not as it was set up, or no allocation has this ID"),
		Args:              oneID,
		ValidArgsFunction: a.completeIDs,
		RunE:              func(c *cobra.Command, args []string) error { return a.check(c, args[0]) },
	}
}

// check checks an allocation and prints whether it is healthy.
func (a *app) check(c *cobra.Command, id string) error {
	conf, err := a.service()
	if err != nil {
		return err
	}
	if id, err = wholeID(c.Context(), conf, id, isPrefix(shownID)); err != nil {
		return err
	}
	done := a.progress("checking %s", id)
	err = conf.CheckOnly(c.Context(), configurator.Allocation{ID: id})
	done()
	if err != nil && !(a.flags.json && errors.Is(err, configurator.ErrUnhealthy)) {
		return notFound(c.Context(), conf, id, err)
	}
	answer := map[string]any{"id": id, "healthy": err == nil}
	var unserved, without []string
	var waiting []configurator.PortWait
	if err == nil {
		r, err := conf.Get(c.Context(), id)
		if err != nil { // torn down meanwhile, or the daemon has ended
			return err
		}
		unserved, waiting = r.Unserved, r.Waiting
		for _, n := range r.Networks {
			if conflist.LacksCheck(n.Config) {
				without = append(without, n.Network)
			}
		}
	}
	if len(without) > 0 {
		answer["noCheck"] = without
	}
	if len(waiting) > 0 {
		answer["waiting"] = waiting
	}
	if len(unserved) > 0 {
		answer["unserved"] = unserved
	}
	if a.flags.json {
		return errors.Join(err, a.out.JSON(answer))
	}
	a.out.Printf("%s %s is healthy\n", a.out.Paint(term.Green, a.out.Mark()), a.out.Paint(term.Bold, id))
	if len(without) > 0 {
		a.out.Printf("\nnot checked, because they have no CHECK: %s\n", strings.Join(without, ", "))
	}
	a.printWaiting(waiting)
	a.printUnserved(unserved)
	return nil
}
