// Command bench runs the measurements of package internal/bench and prints a
// table. It can also write JSON and a chart.
//
//	go run ./integration/bench -json bench.json -svg bench.svg
//
// With -from it measures nothing, and reads the JSON of an earlier run. At the end, it lists what got worse against
// the recorded results.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/allocnet/allocnet/internal/bench"
	"github.com/allocnet/allocnet/internal/privhost"
)

// options are the command line's options.
type options struct {
	bench.Options
	only      string
	from      string
	recorded  string
	json, svg string
}

func main() {
	var o options
	flag.BoolVar(&o.Short, "short", false, "measure less, in about a minute")
	flag.IntVar(&o.N, "n", 0, "samples of single operations; 0 leaves it to the run")
	flag.StringVar(&o.only, "only", "", "comma-separated measurements: "+strings.Join(bench.Groups(), ","))
	flag.StringVar(&o.from, "from", "", "read the report from this file instead of measuring")
	flag.StringVar(&o.recorded, "recorded", filepath.Join("integration", "bench", "results.json"), "list what got worse since this report, a path relative to the module; nothing if empty")
	flag.StringVar(&o.json, "json", "", "write the report to this file as JSON")
	flag.StringVar(&o.svg, "svg", "", "write the report to this file as a chart")
	flag.StringVar(&o.Plugins, "plugins", os.Getenv("CNI_PATH"), "directory of the reference plugins; default $CNI_PATH, else bin/cni of the module")
	flag.StringVar(&o.Module, "module", ".", "directory of the module")
	flag.Parse()
	if o.from != "" {
		os.Exit(o.finish(bench.ReadFile(o.from)))
	}
	status, err := privhost.Enter(privhost.Options{}, func() int { return o.finish(o.measure()) })
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		status = 1
	}
	os.Exit(status)
}

// measure measures inside the private host.
func (o *options) measure() (*bench.Report, error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.only != "" {
		o.Only = strings.Split(o.only, ",")
	}
	o.Plugins = cmp.Or(o.Plugins, filepath.Join(o.Module, "bin", "cni"))
	start := time.Now()
	o.Progress = func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%4.0fs  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	defer func() { o.Progress("done") }()
	return bench.Run(ctx, o.Options)
}

// finish writes the report, which can be that of a part of the measurements, and returns the exit status.
func (o *options) finish(r *bench.Report, err error) int {
	if r != nil {
		err = errors.Join(err, o.compare(r), o.write(r, os.Stdout))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

// compare compares the report with the recorded one.
func (o *options) compare(r *bench.Report) error {
	if o.recorded == "" {
		return nil
	}
	name := o.recorded
	if !filepath.IsAbs(name) {
		name = filepath.Join(o.Module, name)
	}
	recorded, err := bench.ReadFile(name)
	if err == nil {
		r.Compare(recorded)
	}
	return err
}
