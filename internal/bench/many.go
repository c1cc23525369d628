package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/sandbox"
)

// The measures of a daemon with n allocations, each with a network namespace of its own.
func (n manySize) setUpTitle() string {
	return fmt.Sprintf("%d allocations, set up %d at a time", n, fillAtOnce)
}
func (n manySize) removedTitle() string {
	return fmt.Sprintf("%d allocations, torn down %d at a time", n, drainAtOnce)
}
func (n manySize) memoryTitle() string {
	return fmt.Sprintf("memory of each of %d allocations", n)
}
func (n manySize) listTitle() string    { return fmt.Sprintf("allocnet ls, %d present", n) }
func (n manySize) restartTitle() string { return fmt.Sprintf("restart of allocnetd, %d present", n) }

// ownedTitle names an operation that also makes or destroys the network namespace.
func ownedTitle(operation string, present manySize) string {
	return fmt.Sprintf("%s with its namespace, %d present", operation, present)
}

// namespaceName is the kernel's work for a network namespace alone: to make and mount it,
// and to unmount it.
const (
	namespaceName = "namespace alone"
	kernelName    = "all but allocnetd"
)

// manySize is a number of present allocations; 0 for none.
type manySize int

// many measures the daemon with many allocations on a routed network.
func (b *bench) many(ctx context.Context) (err error) {
	if b.size.many == 0 {
		return nil
	}
	dir, err := b.buildDaemon(ctx)
	if err != nil {
		return err
	}
	m := &manyUser{n: b.size.many, rounds: b.size.manyRounds, report: b.report, progress: b.progress}
	s := &slot{id: "many"}
	if m.pluginUser, err = newPluginUser(b.newNetwork("many", "ptp", false), dir, shimName, s); err != nil {
		return err
	}
	// The daemon is ready when it has compared all records with the kernel.
	if err := m.set("reconcile {\n  mode = \"repair\"\n  wait = \"10m\"\n}\n"); err != nil {
		return err
	}
	if m.daemon, err = m.startDaemon(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.daemon.stop()) }()
	m.client = client.New(client.Config{Socket: m.file("sock")})
	return m.measure(ctx)
}

// manyUser sets up and tears down allocations through the API.
type manyUser struct {
	*pluginUser
	n        manySize
	rounds   int
	client   *client.Client
	daemon   *running
	report   *Report
	progress func(format string, args ...any)
}

func (m *manyUser) measure(ctx context.Context) error {
	if err := m.setUp(ctx, "first"); err != nil { // makes the tables
		return err
	}
	if err := errors.Join(m.tearDown(ctx, "first"), m.settle(ctx)); err != nil {
		return err
	}
	if err := m.single(ctx, 0); err != nil {
		return err
	}
	ids := make([]string, m.n)
	for i := range ids {
		ids[i] = fmt.Sprintf("many-%d", i)
	}
	before, err := m.memory()
	if err != nil {
		return err
	}
	m.progress("%d allocations of allocnetd", m.n)
	if err := m.all(fillAtOnce, m.n.setUpTitle(), ids, func(id string) error { return m.setUp(ctx, id) }); err != nil {
		return err
	}
	after, err := m.memory()
	if err != nil {
		return err
	}
	each := func(before, after float64) samples { return samples{(after - before) / float64(m.n)} }
	m.report.add(m.n.memoryTitle(), daemonName, memory, each(before.daemon, after.daemon))
	m.report.add(m.n.memoryTitle(), kernelName, memory, each(before.others, after.others))
	if err := m.single(ctx, m.n); err != nil {
		return err
	}
	if err := errors.Join(m.list(ctx), m.restart(ctx)); err != nil {
		return err
	}
	if err := m.all(drainAtOnce, m.n.removedTitle(), ids, func(id string) error { return m.tearDown(ctx, id) }); err != nil {
		return err
	}
	return m.settle(ctx)
}

func (m *manyUser) allocation(id string) configurator.Allocation {
	index, _ := strconv.Atoi(id[strings.LastIndexByte(id, '-')+1:])
	s := slot{index: index}
	return configurator.Allocation{ID: id, OwnNetns: true, Networks: []string{m.network}, Ports: s.ports()}
}

func (m *manyUser) setUp(ctx context.Context, id string) error {
	_, err := m.client.Setup(ctx, m.allocation(id))
	return err
}

func (m *manyUser) tearDown(ctx context.Context, id string) error {
	return m.client.Teardown(ctx, configurator.Allocation{ID: id, OwnNetns: true})
}

// all acts on many allocations, and reports the rate.
func (m *manyUser) all(atATime int, title string, ids []string, act func(id string) error) error {
	slots := make([]*slot, len(ids))
	for i, id := range ids {
		slots[i] = &slot{id: id}
	}
	var took samples
	if err := timed(&took, func() error { return atOnce(atATime, slots, func(s *slot) error { return act(s.id) }) }); err != nil {
		return err
	}
	m.report.add(title, daemonName, rate, samples{float64(len(ids)) / took[0]})
	return nil
}

// single measures single allocations while a number of others is present, and the
// namespaces alone.
func (m *manyUser) single(ctx context.Context, present manySize) error {
	m.progress("allocnetd: %d present", present)
	through, alone := &lives{}, &lives{}
	for i := range m.rounds {
		if err := ctx.Err(); err != nil {
			return err
		}
		id := fmt.Sprintf("single-%d", int(m.n)+i)
		err := errors.Join(
			timed(&through.adds, func() error { return m.setUp(ctx, id) }),
			timed(&through.dels, func() error { return m.tearDown(ctx, id) }),
			m.gone(ctx, id),
			timed(&alone.adds, func() error { return makeNetns(id) }),
			timed(&alone.dels, func() error { return sandbox.Destroy(filepath.Join(sandbox.DefaultDir, id)) }))
		if err != nil {
			return err
		}
	}
	for _, operation := range []string{"ADD", "DEL"} {
		m.report.add(ownedTitle(operation, present), namespaceName, seconds, alone.of(operation))
		m.report.add(ownedTitle(operation, present), daemonName, seconds, through.of(operation))
	}
	return nil
}

func makeNetns(name string) error {
	s, err := sandbox.Create(name)
	if err != nil {
		return err
	}
	return s.Close()
}

// gone waits until the daemon has deleted everything of an allocation.
func (m *manyUser) gone(ctx context.Context, id string) error {
	for {
		_, err := os.Stat(filepath.Join(m.file("state"), "allocs", id+".json"))
		if err != nil {
			return nil
		}
		if err := sleepFor(ctx, time.Millisecond); err != nil {
			return err
		}
	}
}

// used is memory in bytes.
type used struct{ daemon, others float64 }

// memory returns the memory that the daemon uses, and that everything else uses: the
// kernel, and the files of the daemon on tmpfs.
func (m *manyUser) memory() (used, error) {
	available, err := field("/proc/meminfo", "MemAvailable:")
	if err != nil {
		return used{}, err
	}
	resident, err := field(fmt.Sprintf("/proc/%d/status", m.daemon.process.Pid), "RssAnon:")
	return used{daemon: resident, others: -available - resident}, err
}

// field returns a number of kilobytes from a file of /proc, in bytes.
func field(file, name string) (float64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == name {
			n, err := strconv.ParseFloat(fields[1], 64)
			return n * 1024, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, name)
}

// list measures the command that lists all allocations, through the daemon and without.
func (m *manyUser) list(ctx context.Context) error {
	for name, flags := range map[string][]string{
		daemonName:   {"--socket", m.file("sock")},
		noDaemonName: {"--no-daemon", "--state-dir", m.file("state"), "--conf-dir", confDir},
	} {
		var took samples
		for range m.restarts() {
			err := timed(&took, func() error {
				out, err := exec.CommandContext(ctx, filepath.Join(m.dir, commandName), append(flags, "ls")...).CombinedOutput()
				if lines := strings.Count(string(out), "\n"); err == nil && lines != int(m.n)+1 {
					err = fmt.Errorf("%d lines", lines)
				}
				if err != nil {
					return fmt.Errorf("run allocnet ls: %w: %.1000s", err, out)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		m.report.add(m.n.listTitle(), name, seconds, took)
	}
	return nil
}

func (m *manyUser) restarts() int { return 3 }

// restart measures the time from the start of the daemon until it is ready.
func (m *manyUser) restart(ctx context.Context) error {
	var took samples
	for range m.restarts() {
		if err := m.daemon.stop(); err != nil {
			return err
		}
		err := timed(&took, func() (err error) {
			m.daemon, err = m.startDaemon(ctx)
			return err
		})
		if err != nil {
			return err
		}
	}
	m.report.add(m.n.restartTitle(), daemonName, seconds, took)
	return nil
}
