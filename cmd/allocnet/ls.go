package main

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
)

func newLs(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "ls",
		Aliases:           []string{"list"},
		Short:             "List the allocations",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(*cobra.Command, []string) error { return a.ls() },
	}
}

// ls prints what can be read even when some records cannot.
func (a *app) ls() error {
	conf, err := a.service()
	if err != nil {
		return err
	}
	records, listErr := conf.List()
	if a.flags.json {
		return errors.Join(listErr, a.out.json(records))
	}
	if len(records) == 0 && listErr == nil {
		where := a.flags.stateDir
		if _, asked := conf.(*client.Client); asked {
			where = "the daemon at " + a.flags.socket
		}
		a.err.printf("nothing is set up in %s\n", where)
		return nil
	}
	if len(records) == 0 {
		return listErr
	}
	rows := make([][]cell, len(records))
	for i := range records {
		rows[i] = listRow(&records[i], time.Now())
	}
	header := []string{"ID", "PHASE", "NETWORKS", "ENGINE", "ADDRESS", "PORTS", "AGE"}
	if slices.ContainsFunc(records, func(r configurator.Record) bool { return len(r.Unserved) > 0 }) {
		header = append(header, "NOT SERVED")
		for i := range rows {
			rows[i] = append(rows[i], cells(strings.Join(records[i].Unserved, ", "))...)
		}
	}
	a.out.table(header, rows)
	networks, _ := conf.Networks() // an error is that of List, or of `allocnet networks`
	a.warnOfBinaries(slices.DeleteFunc(networks, func(n configurator.Network) bool {
		return !slices.ContainsFunc(records, func(r configurator.Record) bool { return has(&r, n.Name) })
	}))
	return listErr
}

func listRow(r *configurator.Record, now time.Time) []cell {
	row := cells(r.ID, phaseOf(r), networkNames(r), string(r.Engine), addressesOf(r), shortPorts(r.Ports), age(now.Sub(r.Created)))
	row[1].style = phaseStyle(r)
	return row
}

// has reports whether an allocation has a network.
func has(r *configurator.Record, network string) bool {
	return slices.ContainsFunc(r.Networks, func(n configurator.NetworkRecord) bool { return n.Network == network })
}

const gone = "netns gone"

// phaseOf is how far an allocation has come, and whether its network namespace is gone
// meanwhile: it is not ready then, whatever its record says.
func phaseOf(r *configurator.Record) string {
	switch {
	case !r.NetnsGone:
		return string(r.Phase)
	case r.Phase == configurator.PhaseReady:
		return gone
	}
	return string(r.Phase) + ", " + gone
}

func phaseStyle(r *configurator.Record) style {
	switch {
	case r.NetnsGone:
		return red
	case r.Phase == configurator.PhaseReady:
		return green
	}
	return yellow
}
