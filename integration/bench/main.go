package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/allocnet/allocnet/internal/privhost"
)

// options are the command line's options.
type options struct {
	short     bool
	n         int
	only      string
	json, svg string
	plugins   string
	module    string
}

func main() {
	var o options
	flag.BoolVar(&o.short, "short", false, "measure less, in about a minute")
	flag.IntVar(&o.n, "n", 0, "samples of single operations; 0 leaves it to the run")
	flag.StringVar(&o.only, "only", "", "comma-separated measurements: "+strings.Join(groupNames(), ","))
	flag.StringVar(&o.json, "json", "", "write the report to this file as JSON")
	flag.StringVar(&o.svg, "svg", "", "write the report to this file as a chart")
	flag.StringVar(&o.plugins, "plugins", os.Getenv("CNI_PATH"), "directory of the reference plugins; default $CNI_PATH, else bin/cni of the module")
	flag.StringVar(&o.module, "module", ".", "directory of the module")
	flag.Parse()
	status, err := privhost.Enter(privhost.Options{}, func() int { return run(&o) })
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		status = 1
	}
	os.Exit(status)
}

// run measures inside the private host and returns the exit status.
func run(o *options) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r, err := measure(ctx, o)
	if err == nil {
		err = o.write(r, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

// bench is one run.
type bench struct {
	environment
	size   size
	report *Report
}

// group is a set of measurements that belong together.
type group struct {
	name string
	run  func(*bench, context.Context) error
}

// groups are ordered by the number of sandboxes that they need, because
// sandboxes are kept.
var groups = []group{
	{"life", (*bench).life},
	{"dropin", (*bench).dropin},
	{"daemon", (*bench).daemon},
	{"again", (*bench).again},
	{"batch", (*bench).batch},
	{"collect", (*bench).collect},
	{"packet", (*bench).packet},
	{"burst", (*bench).burst},
	{"heap", (*bench).heap},
	{"flat", (*bench).flat},
}

func groupNames() []string {
	var names []string
	for _, g := range groups {
		names = append(names, g.name)
	}
	return names
}

// measure runs all selected measurements.
func measure(ctx context.Context, o *options) (*Report, error) {
	b, chosen, err := prepare(o)
	if err != nil {
		return nil, err
	}
	for _, g := range chosen {
		if err := g.run(b, ctx); err != nil {
			return nil, fmt.Errorf("measure %s: %w", g.name, err)
		}
	}
	b.progress("done")
	b.report.judge(targets(&b.size))
	return b.report, nil
}

func prepare(o *options) (*bench, []group, error) {
	chosen, err := choose(o.only)
	if err != nil {
		return nil, nil, err
	}
	if o.plugins == "" {
		o.plugins = filepath.Join(o.module, "bin", "cni")
	}
	plugins, err := filepath.Abs(o.plugins)
	if err != nil {
		return nil, nil, err
	}
	if _, err := os.Stat(filepath.Join(plugins, "bridge")); err != nil {
		return nil, nil, fmt.Errorf("the reference plugins are not built (make plugins): %w", err)
	}
	start := time.Now()
	b := &bench{size: full, report: &Report{Machine: thisMachine()}}
	if o.short {
		b.size = short
	}
	b.size = b.size.withRounds(o.n)
	b.environment = environment{plugins: plugins, module: o.module, progress: func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%4.0fs  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}}
	return b, chosen, nil
}

// choose returns the groups with the given names, separated by commas. ""
// selects all groups.
func choose(only string) ([]group, error) {
	if only == "" {
		return groups, nil
	}
	var chosen []group
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(groups, func(g group) bool { return g.name == name })
		if i < 0 {
			return nil, errors.New("there is no measurement " + name + "; there are " + strings.Join(groupNames(), ", "))
		}
		chosen = append(chosen, groups[i])
	}
	return chosen, nil
}
