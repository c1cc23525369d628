package main

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// The states of a mutant.
const (
	stateKilled     = "killed"
	stateSurvived   = "survived"
	stateNotReached = "not reached"
)

// outcome is what the tests made of one mutant.
type outcome struct {
	Site    *Site   `json:"site"`
	State   string  `json:"state"`
	By      string  `json:"by,omitempty"` // the package and test that found it
	Reason  string  `json:"reason,omitempty"`
	Reached int     `json:"reached"` // tests that reach it
	Run     int     `json:"run"`     // those that ran
	Cost    float64 `json:"cost"`    // their normal time
	Wall    float64 `json:"wall"`
	Flaky   string  `json:"flaky,omitempty"` // tests that failed once
}

// suite is what is known of the tests.
type suite struct {
	pkgs     map[string]*testPackage
	reaching map[int][]*traced
	overhead map[string]float64 // of a process of the package's tests
}

func loadSuite(c *config) (*suite, error) {
	s := &suite{pkgs: map[string]*testPackage{}, reaching: map[int][]*traced{}, overhead: map[string]float64{}}
	var pkgs []*testPackage
	if err := readJSON(c.file("tests.json"), &pkgs); err != nil {
		return nil, err
	}
	for _, p := range pkgs {
		s.pkgs[p.Package] = p
	}
	var tests []*traced
	if err := readJSON(c.file("trace.json"), &tests); err != nil {
		return nil, err
	}
	overheads := map[string][]float64{}
	for _, t := range tests {
		if !t.Passed || t.Skipped {
			continue
		}
		overheads[t.Package] = append(overheads[t.Package], max(0, t.Wall-t.Elapsed))
		for _, id := range t.Reached {
			s.reaching[id] = append(s.reaching[id], t)
		}
	}
	for name, values := range overheads {
		slices.Sort(values)
		s.overhead[name] = values[len(values)/2]
	}
	return s, nil
}

// runStep runs the tests of each mutant. Mutants with an outcome are not run again.
func runStep(c *config, _ []string) error {
	if err := c.prepare(); err != nil {
		return err
	}
	var sites []*Site
	if err := readJSON(c.file("mutants.json"), &sites); err != nil {
		return err
	}
	s, err := loadSuite(c)
	if err != nil {
		return err
	}
	var done []*outcome
	_ = readJSON(c.file("outcomes.json"), &done)
	if c.again {
		done = slices.DeleteFunc(done, func(o *outcome) bool { return o.State == stateSurvived })
	}
	sites = slices.DeleteFunc(sites, func(site *Site) bool {
		return c.mutant != 0 && site.ID != c.mutant || slices.ContainsFunc(done, func(o *outcome) bool { return o.Site.ID == site.ID })
	})
	// In random order, so that a part of the results says something about all.
	r := rand.New(rand.NewPCG(uint64(c.seed), 1))
	r.Shuffle(len(sites), func(i, j int) { sites[i], sites[j] = sites[j], sites[i] })
	begin := time.Now()
	var mu sync.Mutex
	return each(c, sites, func(p *place, site *Site) error {
		o := s.judge(c, p, site)
		mu.Lock()
		defer mu.Unlock()
		done = append(done, o)
		fmt.Printf("%s %d: %s %s:%d %s: %s %s (%d of %d tests, %.0f s)\n", time.Since(begin).Round(time.Second), len(done), o.State,
			site.File, site.Line, site.Kind, o.By, o.Reason, o.Run, o.Reached, o.Wall)
		return writeJSON(c.file("outcomes.json"), done)
	})
}

// judge runs the tests that reach a mutant: those of its package first, then the
// cheapest. Those of one package that follow each other closely share a process.
func (s *suite) judge(c *config, p *place, site *Site) *outcome {
	tests := slices.Clone(s.reaching[site.ID])
	o := &outcome{Site: site, State: stateSurvived, Reached: len(tests)}
	if len(tests) == 0 {
		o.State = stateNotReached
		return o
	}
	own := filepath.Dir(site.File)
	slices.SortFunc(tests, func(a, b *traced) int {
		if (a.Package == own) != (b.Package == own) {
			if a.Package == own {
				return -1
			}
			return 1
		}
		if a.Elapsed != b.Elapsed {
			if a.Elapsed < b.Elapsed {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Package+a.Test, b.Package+b.Test)
	})
	begin := time.Now()
	for size := 4.0; len(tests) > 0 && o.Cost < c.budget; size = min(2*size, 16) {
		var batches []*batch
		batches, tests = s.next(tests, own, min(size, c.budget-o.Cost))
		for _, b := range batches {
			o.Run += len(b.tests)
			o.Cost += b.cost
			if by, reason := b.find(c, p, site.ID, o); reason != "" {
				o.State, o.By, o.Reason = stateKilled, by, reason
				o.Wall = time.Since(begin).Seconds()
				return o
			}
		}
	}
	o.Wall = time.Since(begin).Seconds()
	return o
}

// batch is tests of one package.
type batch struct {
	pkg      *testPackage
	tests    []*traced
	cost     float64
	overhead float64 // of a process
}

// next takes tests of some cost, at least one. Those of the own package and others do not mix.
func (s *suite) next(tests []*traced, own string, cost float64) (batches []*batch, rest []*traced) {
	sum := 0.0
	first := tests[0].Package == own
	for i, t := range tests {
		at := slices.IndexFunc(batches, func(b *batch) bool { return b.pkg.Package == t.Package })
		more := t.Elapsed
		if at < 0 {
			more += s.overhead[t.Package]
		}
		if i > 0 && (sum+more > cost || (t.Package == own) != first) {
			return batches, tests[i:]
		}
		if at < 0 {
			at = len(batches)
			batches = append(batches, &batch{pkg: s.pkgs[t.Package], overhead: s.overhead[t.Package]})
		}
		sum += more
		batches[at].cost += more
		batches[at].tests = append(batches[at].tests, t)
	}
	return batches, nil
}

func (b *batch) timeout(c *config, tests []*traced) time.Duration {
	sum := c.timeout + 3*b.overhead
	for _, t := range tests {
		sum += 3 * t.Elapsed
	}
	return time.Duration(sum * float64(time.Second))
}

// find reports which test finds the mutant, if one does, and how. A failure counts
// only if it occurs again: a busy machine makes tests fail, too.
func (b *batch) find(c *config, p *place, mutant int, o *outcome) (by, reason string) {
	var names []string
	for _, t := range b.tests {
		names = append(names, t.Test)
	}
	r := p.run(c, b.pkg, run{tests: names, mutant: mutant, failFast: true, timeout: b.timeout(c, b.tests)})
	if r.passed {
		return "", ""
	}
	suspect := r.running
	if len(r.failed) > 0 {
		suspect = r.failed[0]
	}
	if at := slices.Index(names, suspect); at >= 0 {
		again := p.run(c, b.pkg, run{tests: []string{suspect}, mutant: mutant, timeout: b.timeout(c, b.tests[at:at+1])})
		if !again.passed {
			return b.pkg.Package + " " + suspect, again.reason()
		}
		o.Flaky += b.pkg.Package + " " + suspect + "; "
	}
	again := p.run(c, b.pkg, run{tests: names, mutant: mutant, failFast: true, timeout: b.timeout(c, b.tests)})
	if again.passed {
		return "", ""
	}
	// The tests fail together, not alone: this counts if they pass without the mutant.
	if p.run(c, b.pkg, run{tests: names, failFast: true, timeout: b.timeout(c, b.tests)}).passed {
		return b.pkg.Package + " " + suspect + " with others", again.reason()
	}
	o.Flaky += b.pkg.Package + " together; "
	return "", ""
}

func (r *result) reason() string {
	switch {
	case r.timedOut:
		return "timeout"
	case len(r.failed) > 0:
		return "failed"
	}
	return "died"
}
