package main

import (
	"fmt"
	"regexp"
	"slices"
	"sync"
	"time"
)

// traced is what a run of one test alone, without a mutant, showed.
type traced struct {
	Package string  `json:"package"`
	Test    string  `json:"test"`
	Passed  bool    `json:"passed"`
	Skipped bool    `json:"skipped,omitempty"`
	Elapsed float64 `json:"elapsed"` // of the test
	Wall    float64 `json:"wall"`    // of its process
	Reached []int   `json:"reached"`
	Output  string  `json:"output,omitempty"` // if it failed
}

// traceStep runs each test alone. Tests that it knows already are not run again, unless they failed.
func traceStep(c *config, _ []string) error {
	if err := c.prepare(); err != nil {
		return err
	}
	var pkgs []*testPackage
	if err := readJSON(c.file("tests.json"), &pkgs); err != nil {
		return err
	}
	only, err := regexp.Compile(c.only)
	if err != nil {
		return err
	}
	var done []*traced
	_ = readJSON(c.file("trace.json"), &done)
	done = slices.DeleteFunc(done, func(t *traced) bool { return !t.Passed })
	known := map[string]bool{}
	for _, t := range done {
		known[t.Package+" "+t.Test] = true
	}
	type job struct {
		pkg  *testPackage
		test string
	}
	var jobs []job
	for _, p := range pkgs {
		for _, test := range p.Tests {
			if !known[p.Package+" "+test] && only.MatchString(p.Package) {
				jobs = append(jobs, job{p, test})
			}
		}
	}
	begin, failed := time.Now(), 0
	var mu sync.Mutex
	err = each(c, jobs, func(p *place, j job) error {
		t := traceTest(c, p, j.pkg, j.test)
		mu.Lock()
		defer mu.Unlock()
		done = append(done, t)
		if !t.Passed {
			failed++
		}
		if len(done)%50 == 0 {
			fmt.Printf("%s: %d tests, %d failed\n", time.Since(begin).Round(time.Second), len(done), failed)
			return writeJSON(c.file("trace.json"), done)
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Printf("%d tests, %d failed\n", len(done), failed)
	return writeJSON(c.file("trace.json"), done)
}

func traceTest(c *config, p *place, pkg *testPackage, test string) *traced {
	t := &traced{Package: pkg.Package, Test: test}
	for range 2 { // a test may fail once because the machine is busy
		r := p.run(c, pkg, run{tests: []string{test}, tracing: true, timeout: 3 * time.Minute})
		t.Passed, t.Skipped, t.Elapsed, t.Wall = r.passed, r.skipped[test], r.elapsed[test], r.wall
		reached, err := readControl(p.control())
		t.Reached, t.Output = reached, ""
		if t.Passed && err == nil {
			break
		}
		t.Output = r.output[max(0, len(r.output)-4000):]
	}
	return t
}

// each calls do for all jobs, some at once. The first error ends it.
func each[J any](c *config, jobs []J, do func(*place, J) error) error {
	queue := make(chan J)
	errs := make(chan error, c.jobs)
	ended := make(chan struct{})
	var workers sync.WaitGroup
	var once sync.Once
	for i := range c.jobs {
		workers.Go(func() {
			p, err := newPlace(c, fmt.Sprint("worker-", i))
			if err == nil {
				defer p.remove()
				for j := range queue {
					if err = do(p, j); err != nil {
						break
					}
				}
			}
			if err != nil {
				errs <- err
				once.Do(func() { close(ended) })
			}
		})
	}
feed:
	for _, j := range jobs {
		select {
		case queue <- j:
		case <-ended:
			break feed
		}
	}
	close(queue)
	workers.Wait()
	close(errs)
	return <-errs
}
