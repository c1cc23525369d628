package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// testPackage is a package with its test binary.
type testPackage struct {
	Package string   `json:"package"` // relative to the module
	Dir     string   `json:"dir"`
	Binary  string   `json:"binary"`
	Tests   []string `json:"tests"`
}

// untested are packages whose tests look at files, or run programs of their own.
var untested = regexp.MustCompile(`/integration/(docs|packaging|bench)$`)

// buildStep builds the test binaries, and lists their tests.
func buildStep(c *config, _ []string) error {
	if err := c.prepare(); err != nil {
		return err
	}
	pkgs, err := c.testPackages()
	if err != nil {
		return err
	}
	// go test names a binary after the last element of its package, so packages that
	// share it are built one after the other.
	for len(pkgs) > 0 {
		var now, later []*testPackage
		names := map[string]bool{}
		for _, p := range pkgs {
			if name := c.binaryName(p); !names[name] {
				names[name] = true
				now = append(now, p)
				continue
			}
			later = append(later, p)
		}
		if err := c.buildBinaries(now); err != nil {
			return err
		}
		pkgs = later
	}
	return c.listTests()
}

// prepare makes the directories of the work directory.
func (c *config) prepare() error {
	for _, name := range []string{"bin", "path", buildCache, "places"} {
		if err := os.MkdirAll(c.file(name), 0o755); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(c.bin(), 0o755); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	link := c.file("path/go")
	_ = os.Remove(link)
	if err := os.Symlink(self, link); err != nil {
		return err
	}
	return os.WriteFile(c.file("control"), nil, 0o666)
}

// bin is the directory of the tree in which make puts programs.
func (c *config) bin() string { return filepath.Join(c.tree, "bin") }

func (c *config) testPackages() ([]*testPackage, error) {
	cmd := exec.Command("go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}", "./...", "./cmd/...")
	cmd.Dir, cmd.Stderr = c.tree, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	only, err := regexp.Compile(c.only)
	if err != nil {
		return nil, err
	}
	var pkgs []*testPackage
	for line := range strings.Lines(string(out)) {
		path, dir, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || untested.MatchString(path) || !only.MatchString(path) {
			continue
		}
		name := strings.TrimPrefix(strings.TrimPrefix(path, c.module), "/")
		if name == "" {
			name = "."
		}
		binary := c.file("bin/" + strings.ReplaceAll(name, "/", "-") + ".test")
		pkgs = append(pkgs, &testPackage{Package: name, Dir: dir, Binary: binary})
	}
	return pkgs, nil
}

// binaryName returns how go test names the binary of a package.
func (c *config) binaryName(p *testPackage) string {
	if p.Package == "." {
		return filepath.Base(c.module) + ".test"
	}
	return filepath.Base(p.Package) + ".test"
}

func (c *config) buildBinaries(pkgs []*testPackage) error {
	dir, err := os.MkdirTemp(c.work, "build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	args := []string{"test", "-c", "-vet=off", "-o", dir + "/"}
	for _, p := range pkgs {
		args = append(args, p.Dir)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = c.tree, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build tests: %w", err)
	}
	for _, p := range pkgs {
		if err := os.Rename(filepath.Join(dir, c.binaryName(p)), p.Binary); err != nil {
			return err
		}
	}
	fmt.Printf("built %d test binaries\n", len(pkgs))
	return nil
}

func (c *config) listTests() error {
	pkgs, err := c.testPackages()
	if err != nil {
		return err
	}
	p, err := newPlace(c, "list")
	if err != nil {
		return err
	}
	defer p.remove()
	total := 0
	for _, pkg := range pkgs {
		r := p.run(c, pkg, run{args: []string{"-test.list=^(Test|Fuzz|Example)"}, timeout: 10 * time.Minute})
		for line := range strings.Lines(r.output) {
			if name := strings.TrimSpace(line); testName.MatchString(name) && !slices.Contains(pkg.Tests, name) {
				pkg.Tests = append(pkg.Tests, name)
			}
		}
		if len(pkg.Tests) == 0 {
			fmt.Printf("no tests listed in %s: %s\n", pkg.Package, r.output)
		}
		total += len(pkg.Tests)
	}
	fmt.Printf("%d tests in %d packages\n", total, len(pkgs))
	return writeJSON(c.file("tests.json"), pkgs)
}

var testName = regexp.MustCompile(`^(Test|Fuzz|Example)\w*$`)

// place is where one process of tests runs at a time.
type place struct{ dir string }

func newPlace(c *config, name string) (*place, error) {
	p := &place{c.file("places/" + name)}
	if err := p.remove(); err != nil {
		return nil, err
	}
	return p, os.MkdirAll(p.dir, 0o755)
}

func (p *place) remove() error { return os.RemoveAll(p.dir) }

func (p *place) control() string { return filepath.Join(p.dir, "control") }

// command returns a command that runs in a new sandbox.
func (p *place) command(c *config, dir string, mutant int, tracing bool, command []string) (*exec.Cmd, error) {
	temporary := filepath.Join(p.dir, "tmp")
	if err := os.RemoveAll(temporary); err != nil {
		return nil, err
	}
	if err := os.Mkdir(temporary, 0o777); err != nil {
		return nil, err
	}
	if err := os.Chmod(temporary, os.ModeSticky|0o777); err != nil {
		return nil, err
	}
	_ = os.Remove(p.control()) // a new file: a process that is still ending keeps the old one
	if err := writeControl(p.control(), mutant, tracing); err != nil {
		return nil, err
	}
	s := &sandbox{Tree: c.tree, Work: c.work, Temporary: temporary, Control: p.control(), Dir: dir, Command: command}
	return s.command()
}

// run is a run of some tests of one package.
type run struct {
	tests    []string
	args     []string // in place of tests
	mutant   int
	tracing  bool
	failFast bool
	timeout  time.Duration
}

// result is how it ended.
type result struct {
	passed   bool
	timedOut bool
	failed   []string
	running  string // the test that began last
	skipped  map[string]bool
	elapsed  map[string]float64
	wall     float64
	output   string // at most its end
}

var (
	testBegins = regexp.MustCompile(`=== RUN +([^\s/]+)\n`)
	testEnds   = regexp.MustCompile(`--- (PASS|FAIL|SKIP): ([^\s/]+) \(([\d.]+)s\)`)
)

func (p *place) run(c *config, pkg *testPackage, r run) *result {
	args := r.args
	if args == nil {
		args = []string{"-test.run=^(" + strings.Join(r.tests, "|") + ")$", "-test.v", "-test.short", "-test.count=1", "-test.timeout=0"}
		if r.failFast {
			args = append(args, "-test.failfast")
		}
	}
	cmd, err := p.command(c, pkg.Dir, r.mutant, r.tracing, append([]string{pkg.Binary}, args...))
	if err != nil {
		return &result{output: err.Error()}
	}
	var output tail
	cmd.Stdout, cmd.Stderr = &output, &output
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout)
	defer cancel()
	begin := time.Now()
	if err = cmd.Start(); err != nil {
		return &result{output: err.Error()}
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	err = cmd.Wait()
	stop()
	res := &result{passed: err == nil, timedOut: err != nil && ctx.Err() != nil, wall: time.Since(begin).Seconds()}
	res.read(output.String())
	return res
}

func (r *result) read(output string) {
	r.output, r.skipped, r.elapsed = output, map[string]bool{}, map[string]float64{}
	for _, m := range testBegins.FindAllStringSubmatch(output, -1) {
		r.running = m[1]
	}
	for _, m := range testEnds.FindAllStringSubmatch(output, -1) {
		seconds, _ := strconv.ParseFloat(m[3], 64)
		// Processes that the test starts may report the test, too.
		r.elapsed[m[2]] = max(r.elapsed[m[2]], seconds)
		switch m[1] {
		case "FAIL":
			r.failed = append(r.failed, m[2])
		case "SKIP":
			r.skipped[m[2]] = true
		}
	}
}

// tail keeps the end of an output.
type tail struct {
	mu   sync.Mutex
	text bytes.Buffer
}

const tailSize = 1 << 20

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text.Write(b)
	if t.text.Len() > 2*tailSize {
		t.text.Next(t.text.Len() - tailSize)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
