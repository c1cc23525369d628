package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Options are the options of Run.
type Options struct {
	// Short measures less, in about a minute.
	Short bool
	// N is the number of samples of single operations; 0 leaves it to the run.
	N int
	// Only are names of Groups; none selects all of them.
	Only []string
	// Plugins is the directory of the reference plugins.
	Plugins string
	// Module is the directory of the module's source, for the measurements that
	// build programs.
	Module string
	// Progress is called before each part of the run.
	Progress func(format string, args ...any)
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
	{"cpu", (*bench).cpu},
	{"many", (*bench).many},
	{"again", (*bench).again},
	{"batch", (*bench).batch},
	{"collect", (*bench).collect},
	{"heal", (*bench).heal},
	{"packet", (*bench).packet},
	{"remove", (*bench).remove},
	{"take", (*bench).take},
	{"policy", (*bench).policy},
	{"cluster", (*bench).cluster},
	{"burst", (*bench).burst},
	{"heap", (*bench).heap},
	{"flat", (*bench).flat},
}

// Groups returns the names of the groups of measurements.
func Groups() []string {
	var names []string
	for _, g := range groups {
		names = append(names, g.name)
	}
	return names
}

// Run runs the selected groups of measurements. It must be called in a private
// host, and once per process. If groups fail, it returns the report of the others with the error.
func Run(ctx context.Context, o Options) (*Report, error) {
	chosen, err := choose(o.Only)
	if err != nil {
		return nil, err
	}
	plugins, err := filepath.Abs(o.Plugins)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(plugins, "bridge")); err != nil {
		return nil, fmt.Errorf("the reference plugins are not built (make plugins): %w", err)
	}
	b := &bench{size: full, report: &Report{Machine: thisMachine()}}
	if o.Short {
		b.size = short
	}
	b.size = b.size.withRounds(o.N)
	b.environment = environment{plugins: plugins, module: o.Module, progress: o.Progress}
	err = b.measure(ctx, chosen)
	b.report.judge(targets(&b.size))
	return b.report, err
}

// measure runs groups of measurements. If one fails, the others run all the same: each takes minutes.
func (b *bench) measure(ctx context.Context, chosen []group) error {
	var errs []error
	for _, g := range chosen {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		if err := g.run(b, ctx); err != nil {
			errs = append(errs, fmt.Errorf("measure %s: %w", g.name, err))
		}
	}
	return errors.Join(errs...)
}

// choose returns the groups with the given names; none selects all groups.
func choose(only []string) ([]group, error) {
	if len(only) == 0 {
		return groups, nil
	}
	var chosen []group
	for _, name := range only {
		i := slices.IndexFunc(groups, func(g group) bool { return g.name == name })
		if i < 0 {
			return nil, errors.New("there is no measurement " + name + "; there are " + strings.Join(Groups(), ", "))
		}
		chosen = append(chosen, groups[i])
	}
	return chosen, nil
}
