package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/sandbox"
)

// gcFlags are the flags of gc.
type gcFlags struct {
	live     []string
	liveFrom string
	none     bool
	dryRun   bool
	destroy  bool
	scope    string
	search   []string
}

func newGC(a *app) *cobra.Command {
	var f gcFlags
	c := &cobra.Command{
		Use:   "gc (--live ID... | --live-from FILE | --none)",
		Short: "Remove every allocation that is not named as live",
		Long: `Remove every allocation that is not named as live, and run CNI GC, which removes
attachments without a record. To remove every allocation, pass --none. Allocations
with a scope stay, such as those that runtimes made through CNI. With --scope only
those of that scope are removed, and CNI GC is not run; ` + "`allocnet ls --wide`" + ` shows
the scopes.

A live ID is the ID of an allocation, or that of a container as its runtime passed it
to CNI, which keeps all its interfaces: ctr passes NAMESPACE-NAME. An ID that matches
nothing causes a warning. gc removes nothing and exits with 2 if an unmatched ID is
the container name of an allocation that it would remove, or a prefix of its
generated ID. The same applies if no ID matches and gc would remove an allocation.

--destroy also destroys their network namespaces in ` + sandbox.DefaultDir + `, where setup
--create makes them, and those that setup --create made for allocations that no
longer exist.`,
		Example: `  allocnet gc --live web --live db --dry-run
  podman ps --all --quiet | allocnet gc --scope cni/web --live-from -
  ctr containers ls -q | sed 's/^/default-/' |
    allocnet gc --scope cni//allocnetd --live-from -
  allocnet gc --none --destroy`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, _ []string) error { return a.gc(c, &f) },
	}
	c.Flags().StringSliceVar(&f.live, "live", nil, "ID of an allocation or container that stays; may be repeated")
	c.Flags().StringVar(&f.liveFrom, "live-from", "", "file with an ID per line, or - for stdin")
	c.Flags().BoolVar(&f.none, "none", false, "no allocation stays")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "only list what would be removed")
	c.Flags().BoolVar(&f.destroy, "destroy", false, "destroy the network namespaces too")
	scopeFlag(c, &f.scope, "only allocations of this scope (default: allocations without a scope)")
	c.Flags().StringSliceVar(&f.search, "search", nil, "network in which gc also looks for allocations without a record, and whose plugins run CNI GC; may be repeated")
	c.MarkFlagsOneRequired("live", "live-from", "none")
	c.MarkFlagsMutuallyExclusive("live", "none")
	c.MarkFlagsMutuallyExclusive("live-from", "none")
	_ = c.RegisterFlagCompletionFunc("live", a.completeIDs)
	_ = c.RegisterFlagCompletionFunc("search", a.completeNetworkNames)
	return c
}

// gcReport is the library's report with fields of the command.
type gcReport struct {
	DryRun bool `json:"dryRun,omitempty"`
	configurator.GCReport
	Destroyed []string `json:"destroyed"` // the library's field, but never null
}

// gc also prints the report if GC failed in part.
func (a *app) gc(c *cobra.Command, f *gcFlags) error {
	live, err := f.liveIDs(c.Context(), a.in)
	if err != nil {
		return err
	}
	conf, err := a.service()
	if err != nil {
		return err
	}
	live, unknown, err := liveIDs(c.Context(), conf, live)
	if err != nil {
		return err
	}
	scope := configurator.Scope{Name: f.scope, Live: live, DestroyNetns: f.destroy, Networks: f.search}
	if err := a.requireKnown(c.Context(), conf, scope, unknown); err != nil {
		return err
	}
	if f.scope == "" {
		a.warnOfScoped(c.Context(), conf)
	}
	far := func() string { return "" }
	if a.err.Terminal && !f.dryRun {
		far = collected(c.Context(), conf, f.scope, live)
	}
	done := a.progressOf(far, "collecting")
	defer done()
	collect := conf.GCScope
	if f.dryRun {
		collect = conf.PlanGC
	}
	report, gcErr := collect(c.Context(), scope)
	if report == nil {
		return gcErr
	}
	full := gcReport{DryRun: f.dryRun, GCReport: *report, Destroyed: append([]string{}, report.Destroyed...)}
	done()
	if a.flags.json {
		return errors.Join(gcErr, a.out.JSON(full))
	}
	a.printGC(&full)
	return gcErr
}

// collected returns a function that counts by their records how many of the allocations to
// remove have been removed.
func collected(ctx context.Context, conf allocnet.Service, scope string, live []string) (far func() string) {
	count := func() (n int) {
		records, _ := conf.List(ctx) // GC reports unreadable records
		for _, r := range records {
			if r.Scope == scope && !slices.Contains(live, r.ID) {
				n++
			}
		}
		return n
	}
	all := count()
	return func() string { return fmt.Sprintf(" %d of %d,", max(0, all-count()), all) }
}

// liveIDs reads the flags. It refuses an empty list, which is more likely the output of a
// failed program than of a host without allocations.
func (f *gcFlags) liveIDs(ctx context.Context, in io.Reader) ([]string, error) {
	live := slices.Clone(f.live)
	if f.liveFrom != "" {
		ids, err := f.awaitIDs(ctx, in)
		if err != nil {
			return nil, err
		}
		live = append(live, ids...)
	}
	if len(live) == 0 && !f.none {
		return nil, usagef("no live allocation is named: to remove every allocation, pass --none")
	}
	return live, nil
}

// awaitIDs reads the file of --live-from, which may be a pipe whose writer is slow. The end
// of the context ends the wait.
func (f *gcFlags) awaitIDs(ctx context.Context, in io.Reader) ([]string, error) {
	type outcome struct {
		ids []string
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		ids, err := f.fileIDs(in)
		done <- outcome{ids, err}
	}()
	select {
	case o := <-done:
		return o.ids, o.err
	case <-ctx.Done():
		return nil, fmt.Errorf("read --live-from %s: %w", f.liveFrom, ctx.Err())
	}
}

// fileIDs reads the file of --live-from; "-" stands for in.
func (f *gcFlags) fileIDs(in io.Reader) ([]string, error) {
	if f.liveFrom != "-" {
		file, err := os.Open(f.liveFrom)
		if err != nil {
			return nil, usagef("--live-from: %w", err)
		}
		defer file.Close()
		in = file
	}
	ids, err := readIDs(in)
	if err != nil {
		return nil, usagef("--live-from %s: %w", f.liveFrom, err)
	}
	return ids, nil
}

// readIDs reads one ID per line. It ignores empty lines and lines that begin with #.
func readIDs(in io.Reader) ([]string, error) {
	var ids []string
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if strings.ContainsAny(line, " \t") {
			return nil, usagef("line %q: must be one ID", line[:min(len(line), 64)])
		}
		ids = append(ids, line)
	}
	return ids, lines.Err()
}

// warnOfScoped warns that allocations stay because they have a scope. It counts those
// of runtimes separately, because runtimes collect them.
func (a *app) warnOfScoped(ctx context.Context, conf allocnet.Service) {
	records, _ := conf.List(ctx) // GC reports unreadable records
	runtimes, others := 0, 0
	scopes := map[string]bool{}
	for _, r := range records {
		switch {
		case cni.IsRuntimes(r.Scope):
			runtimes++
		case r.Scope != "":
			others++
			scopes[r.Scope] = true
		}
	}
	if runtimes > 0 {
		a.warn("%s of runtimes (CNI) kept: their runtime collects them; `allocnet teardown ID` removes one", term.Plural(runtimes, "allocation"))
	}
	if others > 0 {
		a.warn("%s of other scopes (%s) kept: `allocnet gc --scope SCOPE` collects those of one scope",
			term.Plural(others, "allocation"), someOf(slices.Sorted(maps.Keys(scopes))))
	}
}

func (a *app) printGC(r *gcReport) {
	removed, destroyed := "removed", "destroyed"
	if r.DryRun {
		removed, destroyed = "would remove", "would destroy"
	}
	a.out.Printf("%s %s, kept %s\n", removed, term.Plural(len(r.Removed), "allocation"), term.Plural(len(r.Kept), "allocation"))
	for _, id := range r.Removed {
		a.out.Printf("  %s %s\n", a.out.Paint(term.Red, "-"), id)
	}
	for _, path := range r.Destroyed {
		a.out.Printf("%s network namespace %s\n", destroyed, path)
	}
	a.printForced(r.Forced)
}

// printForced prints leftovers of plugins that were removed by force.
func (a *app) printForced(list []configurator.Leftover) {
	if len(list) > 0 {
		a.out.Printf("removed by force, because DEL did not:\n")
		a.printLeftovers(list)
	}
}

func (a *app) printLeftovers(list []configurator.Leftover) {
	for _, l := range list {
		a.out.Printf("  %s %s\n", a.out.Paint(term.Yellow, string(l.Kind)), l.String()[len(l.Kind)+1:])
	}
}
