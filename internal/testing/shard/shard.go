// Package shard runs the tests of a test binary in several processes at once. Tests that mostly wait for the
// kernel, one after the other, then wait at the same time, each process on a private host of its own:
//
//	func TestMain(m *testing.M) {
//		os.Exit(shard.Main(m, 4, func() int { return privhost.Main(m) }))
//	}
package shard

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// flags are those with which the tests may run in several processes. With others, such as -run or one that
// names a file to be written, they run in one.
var flags = []string{"test.v", "test.short", "test.timeout", "test.count", "test.parallel", "test.skip", "test.fullpath", "test.paniconexit0"}

// Main runs the tests of m in n processes and returns the exit status. These are copies of the process with the
// flag -test.run, in which Main only calls run. So code before the call of Main runs in each of them. The
// output of each process is written as a whole, after the process has ended.
//
// If the flag -test.run is set already, or another one that does not permit several processes, Main only calls run.
func Main(m interface{ Run() int }, n int, run func() int) int {
	if !permitted() {
		return run()
	}
	names, err := list(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "list the tests:", err)
		return 1
	}
	n = min(n, len(names))
	if n < 2 {
		return run()
	}
	return start(split(names, n))
}

// permitted reports whether all flags permit several processes.
func permitted() bool {
	if !flag.Parsed() {
		flag.Parse()
	}
	ok := flag.NArg() == 0
	flag.Visit(func(f *flag.Flag) { ok = ok && slices.Contains(flags, f.Name) })
	return ok
}

// list returns the names of the tests, fuzz tests and examples. Benchmarks do not run without a flag.
func list(m interface{ Run() int }) ([]string, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	stdout, stderr := os.Stdout, os.Stderr
	os.Stdout = w
	var out []byte
	var readErr error
	var reader sync.WaitGroup
	reader.Go(func() { out, readErr = io.ReadAll(r) })
	setErr := flag.Set("test.list", ".")
	status := m.Run() // it lists the tests
	os.Stdout, os.Stderr = stdout, stderr
	w.Close()
	reader.Wait()
	if err := errors.Join(readErr, setErr); err != nil {
		return nil, err
	}
	if status != 0 {
		return nil, fmt.Errorf("exit status %d", status)
	}
	names := slices.DeleteFunc(strings.Fields(string(out)), func(name string) bool { return strings.HasPrefix(name, "Benchmark") })
	return names, flag.Set("test.list", "")
}

// split deals the names out to n shards. Tests of one file often take a similar time, so neighbours go to
// different shards.
func split(names []string, n int) [][]string {
	shards := make([][]string, n)
	for i, name := range names {
		shards[i%n] = append(shards[i%n], name)
	}
	return shards
}

// start runs each shard in a process, and returns the first exit status that is not 0.
func start(shards [][]string) int {
	var processes []*process
	for _, names := range shards {
		processes = append(processes, begin(names))
	}
	first := 0
	passed := ""
	for _, p := range processes {
		<-p.done
		out := p.output()
		if p.status == 0 {
			out, passed = cutPassed(out)
		}
		os.Stdout.Write(out)
		if first == 0 {
			first = p.status
		}
	}
	if first == 0 {
		fmt.Print(passed)
	}
	return first
}

// cutPassed cuts the last line off, which says that all tests have passed. It begins with a mark if the output is
// meant for go test -json.
func cutPassed(out []byte) (rest []byte, passed string) {
	const last = "PASS\n"
	rest, ok := bytes.CutSuffix(out, []byte(last))
	if !ok {
		return out, last
	}
	if marked, ok := bytes.CutSuffix(rest, []byte{'\x16'}); ok {
		return marked, "\x16" + last
	}
	return rest, last
}

// process is a shard that runs.
type process struct {
	file   *os.File // what it wrote
	done   chan struct{}
	status int
	err    error
}

// begin starts the tests with these names.
func begin(names []string) *process {
	p := &process{done: make(chan struct{})}
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = regexp.QuoteMeta(name)
	}
	go func() {
		defer close(p.done)
		p.run("-test.run=^(" + strings.Join(quoted, "|") + ")$")
	}()
	return p
}

// run runs a copy of the process with one more argument. The process writes to a file, not to a pipe: what a
// test leaves behind would keep a pipe open.
func (p *process) run(argument string) {
	p.status = 1
	if p.file, p.err = os.CreateTemp("", "shard-"); p.err != nil {
		return
	}
	_ = os.Remove(p.file.Name())
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = append(slices.Clip(os.Args), argument)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, p.file, p.file
	// The kernel sends the signal when the thread that started the process ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(p.err, &exit) {
		p.err = nil
		if p.status = exit.ExitCode(); p.status < 0 {
			p.err, p.status = exit, 1 // a signal
		}
	} else if p.err == nil {
		p.status = 0
	}
}

// output returns what the process wrote, and why it did not run, if so.
func (p *process) output() []byte {
	var out []byte
	err := p.err
	if p.file != nil {
		defer p.file.Close()
		var readErr error
		out, readErr = io.ReadAll(io.NewSectionReader(p.file, 0, 1<<40))
		err = errors.Join(err, readErr)
	}
	if err != nil {
		out = fmt.Appendf(out, "run tests in a process of their own: %v\nFAIL\n", err)
	}
	return out
}
