package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/allocnet/allocnet/cmd/internal/demo"
	"github.com/allocnet/allocnet/cmd/internal/term"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/bench"
	"github.com/allocnet/allocnet/internal/privhost"
)

func newBench(a *app) *cobra.Command {
	var o benchOptions
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure setup and teardown on this host",
		Long: `Measure setup, teardown, bursts, growth and connections on this host, in about half a
minute, and print a table:

  baseline  the bare kernel calls for the same links, addresses, routes and rules
  native    allocnet with the native engine
  exec      allocnet with the exec engine and the reference plugins, if they and
            iptables are installed

The columns TO BASELINE and TO EXEC divide each figure by that of the other system.
Run it while the host is idle, and compare ratios: times depend on what else it does.

It runs in private namespaces: nothing on this host changes, and no root is needed.
The networks are routed (ptp), without IPv6.`,
		Example: `  allocnet bench --chart bench.svg
  allocnet bench --json | jq '.measures[] | select(.what == "ADD, ptp")'`,
		Args:              noArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(c *cobra.Command, _ []string) error { return a.bench(c.Context(), o) },
	}
	c.Flags().StringVar(&o.chart, "chart", "", "draw the results into this file, too, as an SVG")
	c.Flags().BoolVar(&o.short, "short", false, "measure less, in some seconds; the ratios vary more")
	return c
}

type benchOptions struct {
	chart string
	short bool
}

// bench measures on a private host. The chart is opened before that host covers any
// directory, and removed if it is new and stays empty.
func (a *app) bench(ctx context.Context, o benchOptions) (err error) {
	cfg, err := a.config()
	if err != nil {
		return err
	}
	var chart *os.File
	if o.chart != "" {
		if chart, err = os.OpenFile(o.chart, os.O_WRONLY|os.O_CREATE, 0o644); err != nil {
			return fmt.Errorf("write chart: %w", err)
		}
		defer func() { err = errors.Join(err, closeChart(chart)) }()
	}
	dirs := cfg.PluginDirs
	if len(dirs) == 0 {
		dirs = configurator.DefaultPluginDirs()
	}
	measured := false
	code, enterErr := privhost.Enter(privhost.Options{}, func() int {
		measured = true
		err = a.measure(ctx, bench.HostOptions{PluginDirs: dirs, Short: o.short}, chart)
		return exitCode(err)
	})
	switch {
	case enterErr != nil:
		return fmt.Errorf("%w: %w", demo.ErrNoPrivateHost, enterErr)
	case !measured && code != 0: // in the re-executed process
		return reported(code)
	}
	return err
}

// writeChart replaces the content of a file; a pipe has none.
func writeChart(file *os.File, r *bench.Report) error {
	info, err := file.Stat()
	if err == nil && info.Mode().IsRegular() {
		err = file.Truncate(0)
	}
	if err != nil {
		return err
	}
	return r.WriteChart(file)
}

// closeChart removes a file that is empty, because nothing was measured.
func closeChart(file *os.File) error {
	info, err := file.Stat()
	if err == nil && info.Mode().IsRegular() && info.Size() == 0 {
		if err = os.Remove(file.Name()); errors.Is(err, fs.ErrNotExist) {
			err = nil // covered, or removed by the re-executed process
		}
	}
	return errors.Join(err, file.Close())
}

// measure measures on the host of this process, and writes the results.
func (a *app) measure(ctx context.Context, o bench.HostOptions, chart *os.File) error {
	var part atomic.Value
	part.Store("")
	done := a.progressOf(func() string { return " " + part.Load().(string) }, "measure")
	defer done()
	o.Progress = func(format string, args ...any) { part.Store(fmt.Sprintf(format, args...) + ",") }
	report, err := bench.RunHost(ctx, o)
	done()
	if err != nil {
		return err
	}
	if chart != nil {
		if err := writeChart(chart, report); err != nil {
			return fmt.Errorf("write chart: %w", err)
		}
	}
	if a.flags.json {
		return a.out.JSON(report)
	}
	if err := report.WriteTable(a.out); err != nil {
		return err
	}
	for system, reason := range report.Skipped {
		a.out.Printf("\n%s is not measured: %s\n", system, reason)
	}
	a.out.Printf("\n%s %s\n", a.out.Paint(term.Green, a.out.Mark()), ratios(report))
	return nil
}

// ratios describes the most important results in one sentence.
func ratios(r *bench.Report) string {
	own, _ := r.Ratio("ADD, ", "native", "baseline")
	text := fmt.Sprintf("a setup takes %.1f times as long as the bare kernel calls", own)
	add, ok := r.Ratio("ADD, ", "exec", "native")
	if del, also := r.Ratio("DEL, ", "exec", "native"); ok && also {
		text += fmt.Sprintf("; with plugin binaries %.0f times as long as with allocnet, and a teardown %.0f times", add, del)
	}
	return text
}
