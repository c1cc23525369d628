// Mutants measures which faults in a Go tree its tests find.
//
// It writes many small faults (mutants) into one copy of the tree. Each fault is
// inactive until the control file of the work directory names it, so that every
// program and test binary is built once for all mutants. See README.md.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

// config is what all steps share.
type config struct {
	tree    string // the copy of the tree that is, or becomes, mutated
	work    string // results, binaries and temporary files
	sample  string // file with the sampled sites
	module  string // path of the module that gets the package internal/mutant
	count   int
	seed    int64
	jobs    int
	budget  float64 // seconds of tests per mutant
	timeout float64 // seconds of a test in addition to three times its normal time
	only    string
	mutant  int
	again   bool
}

// steps are the subcommands, in the order in which they run.
var steps = []struct {
	name, help string
	run        func(*config, []string) error
}{
	{"sample", "choose sites of the unchanged tree, and write them to -sample", sampleStep},
	{"apply", "write the mutants of -sample into the tree", applyStep},
	{"build", "build and list the tests of the mutated tree", buildStep},
	{"trace", "run each test alone without a mutant; record its time and the mutants that it reaches", traceStep},
	{"run", "run the reaching tests of each mutant until one fails", runStep},
	{"report", "print what the tests found", reportStep},
	{"compare", "compare the results of two work directories: compare BEFORE AFTER", compareStep},
	{"exec", "run a command in the sandbox with -mutant active: exec -- COMMAND", execStep},
}

func main() {
	switch filepath.Base(os.Args[0]) {
	case "go":
		os.Exit(goCommand(os.Args[1:]))
	case sandboxName:
		os.Exit(sandboxInit(os.Args[1:]))
	}
	if err := execute(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func execute(args []string) error {
	var c config
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.StringVar(&c.tree, "tree", "", "the copy of the tree")
	flags.StringVar(&c.work, "work", "", "work directory")
	flags.StringVar(&c.sample, "sample", "", "file of the sampled sites (default: sample.json in the work directory)")
	flags.StringVar(&c.module, "module", "github.com/allocnet/allocnet", "module that gets the package internal/mutant")
	flags.IntVar(&c.count, "count", 300, "number of mutants, a third of each kind")
	flags.Int64Var(&c.seed, "seed", 1, "seed of the sample")
	flags.IntVar(&c.jobs, "jobs", 2, "test processes at once")
	flags.Float64Var(&c.budget, "budget", 90, "seconds of tests per mutant")
	flags.Float64Var(&c.timeout, "timeout", 20, "seconds of a test in addition to three times its normal time")
	flags.StringVar(&c.only, "only", "", "regular expression: packages whose tests are built, traced or run")
	flags.IntVar(&c.mutant, "mutant", 0, "exec: the active mutant; run: only this one")
	flags.BoolVar(&c.again, "again", false, "run: also mutants that survived before, for example with a larger -budget")
	flags.Usage = func() {
		fmt.Fprintln(flags.Output(), "usage: mutate STEP -tree DIR -work DIR [flags]")
		for _, s := range steps {
			fmt.Fprintf(flags.Output(), "  %-8s %s\n", s.name, s.help)
		}
		flags.PrintDefaults()
	}
	if len(args) == 0 {
		flags.Usage()
		return flag.ErrHelp
	}
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	for _, path := range []*string{&c.tree, &c.work, &c.sample} {
		if *path == "" {
			continue
		}
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = absolute
	}
	if c.sample == "" {
		c.sample = c.file("sample.json")
	}
	if c.work != "" {
		if err := os.MkdirAll(c.work, 0o755); err != nil {
			return err
		}
	}
	for _, s := range steps {
		if s.name == args[0] {
			return s.run(&c, flags.Args())
		}
	}
	flags.Usage()
	return fmt.Errorf("unknown step %q", args[0])
}

// file returns the path of a file of the work directory.
func (c *config) file(name string) string { return filepath.Join(c.work, name) }
