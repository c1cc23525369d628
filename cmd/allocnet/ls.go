package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
)

// lsFlags are the flags of ls.
type lsFlags struct {
	quiet, wide bool
	output      string
	filters     []string
}

func newLs(a *app) *cobra.Command {
	var f lsFlags
	c := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the allocations",
		Long: `List the allocations. Runtimes' IDs are shortened to 12 hexadecimal digits; all commands
accept the short form.`,
		Example: `  allocnet ls --filter network=web --filter state=ready
  allocnet ls --quiet --filter label=app=web`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, _ []string) error { return a.ls(c.Context(), &f) },
	}
	c.Flags().BoolVarP(&f.quiet, "quiet", "q", false, "print only the IDs, one per line")
	c.Flags().BoolVar(&f.wide, "wide", false, "print IDs in full, scopes, labels, policies and CNI_ARGS")
	c.Flags().StringVarP(&f.output, "output", "o", "", "wide, json or name, as --wide, --json and --quiet")
	c.Flags().StringArrayVar(&f.filters, "filter", nil,
		"network=NAME, state=STATE (adding, ready, deleting or gone) or label=KEY[=VALUE]; may be repeated: one of the networks, one of the states, and all labels")
	c.MarkFlagsMutuallyExclusive("quiet", "wide")
	c.MarkFlagsMutuallyExclusive("quiet", "output")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"wide", "json", "name"}, cobra.ShellCompDirectiveNoFileComp))
	_ = c.RegisterFlagCompletionFunc("filter", a.completeFilter)
	return c
}

// choose selects the format that --output names.
func (f *lsFlags) choose(a *app) error {
	switch f.output {
	case "":
	case "wide":
		f.wide = true
	case "json":
		a.flags.json = true
	case "name":
		f.quiet = true
	default:
		return usagef("--output %q: must be wide, json or name", f.output)
	}
	return nil
}

// listed is an allocation with the reason why plugins of its networks run as binaries.
type listed struct {
	configurator.Record
	Reason string `json:"reason,omitempty"`
}

// listedAll returns records with the reasons of the active networks.
func listedAll(ctx context.Context, conf allocnet.Service, records []configurator.Record) []listed {
	networks, _ := conf.Networks(ctx) // List or `allocnet networks` reports the error
	list := make([]listed, len(records))
	for i := range records {
		list[i].Record = records[i]
		var reasons []string
		for _, n := range networks {
			if n.Reason != "" && has(&records[i], n.Name) {
				reasons = append(reasons, "network "+n.Name+": "+n.Reason)
			}
		}
		list[i].Reason = strings.Join(reasons, "; ")
	}
	return list
}

// ls prints the readable records even if others cannot be read.
func (a *app) ls(ctx context.Context, f *lsFlags) error {
	wanted, err := parseFilter(f.filters)
	if err := errors.Join(err, f.choose(a)); err != nil {
		return err
	}
	conf, err := a.service()
	if err != nil {
		return err
	}
	missing := a.missingStateDir()
	records, listErr := conf.List(ctx)
	records = slices.DeleteFunc(records, func(r configurator.Record) bool { return !wanted.passes(&r) })
	slices.SortFunc(records, func(x, y configurator.Record) int { return naturally(x.ID, y.ID) })
	switch {
	case len(records) == 0 && listErr != nil:
		return listErr
	case missing && (a.flags.json || f.quiet):
		a.warn("%s", a.noStateDir())
	case missing:
		a.err.Printf("nothing is set up: %s\n", a.noStateDir())
		return nil
	}
	switch {
	case a.flags.json:
		return errors.Join(listErr, a.out.JSON(listedAll(ctx, conf, records)))
	case f.quiet:
		for _, r := range records {
			a.out.Printf("%s\n", r.ID)
		}
		return listErr
	}
	return errors.Join(listErr, a.printList(ctx, conf, records, f))
}

// missingStateDir reports whether --state-dir names a directory that does not exist. The default
// one does not exist before the first setup after a boot.
func (a *app) missingStateDir() bool {
	_, err := os.Stat(a.flags.stateDir)
	return a.flags.set.Changed("state-dir") && errors.Is(err, fs.ErrNotExist)
}

func (a *app) noStateDir() string {
	return fmt.Sprintf("the directory %s of --state-dir does not exist", a.flags.stateDir)
}

// printList prints records as a table, and warnings about plugins of their networks
// that run as binaries.
func (a *app) printList(ctx context.Context, conf allocnet.Service, records []configurator.Record, f *lsFlags) error {
	if len(records) == 0 && len(f.filters) > 0 {
		a.err.Printf("no allocation passes the filter\n")
		return nil
	}
	if len(records) == 0 {
		where := a.flags.stateDir
		if asksDaemon(conf) {
			where = "the daemon at " + a.flags.socket
		}
		a.err.Printf("nothing is set up in %s\n", where)
		return nil
	}
	rows := make([][]term.Cell, len(records))
	for i := range records {
		rows[i] = listRow(&records[i], time.Now())
		if f.wide {
			rows[i][0].Text = records[i].ID
			rows[i] = append(rows[i], term.Cells(records[i].Scope, pairsText(records[i].Labels), policyText(records[i].Policy), pairsText(records[i].Args))...)
		}
	}
	header := []string{"ID", "PHASE", "NETWORKS", "ENGINE", "ADDRESS", "PORTS", "AGE"}
	if f.wide {
		header = append(header, "SCOPE", "LABELS", "POLICY", "ARGS")
	}
	if slices.ContainsFunc(records, func(r configurator.Record) bool { return len(r.Unserved) > 0 }) {
		header = append(header, "NOT SERVED")
		for i := range rows {
			rows[i] = append(rows[i], term.Cells(strings.Join(records[i].Unserved, ", "))...)
		}
	}
	if slices.ContainsFunc(records, func(r configurator.Record) bool { return len(r.Waiting) > 0 }) {
		header = append(header, "WAITS FOR")
		for i := range rows {
			rows[i] = append(rows[i], term.Cells(waitsFor(&records[i]))...)
		}
	}
	a.out.Table(header, rows)
	networks, _ := conf.Networks(ctx) // List or `allocnet networks` reports the error
	a.warnOfBinaries(slices.DeleteFunc(networks, func(n configurator.Network) bool {
		return !slices.ContainsFunc(records, func(r configurator.Record) bool { return has(&r, n.Name) })
	}))
	return nil
}

func listRow(r *configurator.Record, now time.Time) []term.Cell {
	row := term.Cells(shortID(r.ID), phaseOf(r), networkNames(r), string(r.Engine), addressesOf(r), shortPorts(r.Ports), term.Age(now.Sub(r.Created)))
	row[1].Style = phaseStyle(r)
	return row
}

// waitsFor returns the host ports of an allocation that lead to older ones, with those.
func waitsFor(r *configurator.Record) string {
	var texts []string
	for _, w := range r.Waiting {
		texts = append(texts, w.Mapping.Published()+" of "+shortID(w.ID))
	}
	return strings.Join(texts, ", ")
}

// has reports whether an allocation has a network.
func has(r *configurator.Record, network string) bool {
	return slices.ContainsFunc(r.Networks, func(n configurator.NetworkRecord) bool { return n.Network == network })
}

const gone = "netns gone"

// phaseOf returns the phase of an allocation. An allocation without its network
// namespace is never shown as ready.
func phaseOf(r *configurator.Record) string {
	switch {
	case !r.NetnsGone:
		return string(r.Phase)
	case r.Phase == configurator.PhaseReady:
		return gone
	}
	return string(r.Phase) + ", " + gone
}

func phaseStyle(r *configurator.Record) term.Style {
	switch {
	case r.NetnsGone:
		return term.Red
	case r.Phase == configurator.PhaseReady:
		return term.Green
	}
	return term.Yellow
}
