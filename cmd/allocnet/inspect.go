package main

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
)

func newInspect(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect ID",
		Short: "Show the record of an allocation (set changes parts of it)",
		Long: `Show the record of an allocation. --json adds the configuration of its networks and
the results of the plugins. For a runtime's ID, any unique prefix of at least 4
hexadecimal digits is accepted.`,
		Annotations:       exits("no allocation is set up under this ID"),
		Args:              oneID,
		ValidArgsFunction: a.completeIDs,
		RunE:              func(c *cobra.Command, args []string) error { return a.inspect(c.Context(), args[0]) },
	}
}

// inspect prints the record of one allocation.
func (a *app) inspect(ctx context.Context, id string) error {
	conf, err := a.service()
	if err != nil {
		return err
	}
	if id, err = wholeID(ctx, conf, id, isPrefix(minPrefix)); err != nil {
		return err
	}
	r, err := conf.Get(ctx, id)
	if err != nil {
		return notFound(ctx, conf, id, err)
	}
	if a.flags.json {
		return a.out.JSON(r)
	}
	a.printRecord(r)
	return nil
}

func (a *app) printRecord(r *configurator.Record) {
	now := time.Now()
	a.out.Table(nil, properties(
		"ID", r.ID, "Phase", phaseOf(r), "Namespace", r.Netns, "Networks", networkNames(r), "Address", addressesOf(r),
		"Engine", string(r.Engine), "Scope", r.Scope, "Labels", pairsText(r.Labels), "Bandwidth", bandwidthText(r.Bandwidth), "Args", pairsText(r.Args), "Created", when(r.Created, now), "Updated", when(r.Updated, now),
	))
	defer a.printUnserved(r.Unserved)
	defer a.printWaiting(r.Waiting)
	defer a.printPolicies(r)
	if r.Status == nil {
		a.printPorts(r.Ports)
		return
	}
	a.out.Printf("\n")
	a.printInterfaces(r.Status)
	if len(r.Status.Routes) > 0 {
		var rows [][]term.Cell
		for _, route := range r.Status.Routes {
			rows = append(rows, term.Cells(route.Destination, route.Gateway, route.Network))
		}
		a.out.Printf("\n")
		a.out.Table([]string{"ROUTE", "GATEWAY", "NETWORK"}, rows)
	}
	a.printPorts(r.Ports)
	if d := r.Status.DNS; d != nil {
		a.out.Printf("\n")
		a.out.Table(nil, properties("DNS servers", join(d.Servers), "DNS domain", d.Domain, "DNS search", join(d.Searches)))
	}
}

// printWaiting prints which host ports lead to older allocations.
func (a *app) printWaiting(list []configurator.PortWait) {
	for _, w := range list {
		a.out.Printf("%s; it leads here when that is torn down\n", w)
	}
}

// pairsText returns CNI_ARGS or labels, sorted by name.
func pairsText(pairs map[string]string) string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		texts = append(texts, name+"="+pairs[name])
	}
	return strings.Join(texts, " ")
}

// properties returns the rows of a table of names and values.
func properties(pairs ...string) [][]term.Cell {
	var rows [][]term.Cell
	for i := 0; i < len(pairs); i += 2 {
		rows = append(rows, []term.Cell{{Text: pairs[i], Style: term.Bold}, {Text: pairs[i+1], Style: term.Plain}})
	}
	return rows
}

func when(t, now time.Time) string {
	return t.Local().Format(time.DateTime) + " (" + term.Age(now.Sub(t)) + " ago)"
}
