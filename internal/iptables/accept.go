package iptables

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/allocnet/allocnet/internal/netlink/netfilter"
)

// ErrMissing: a rule of this package, or a part of it, does not exist.
var ErrMissing = errors.New("rule of iptables is missing")

// attempts is how often other programs may interfere with a repair.
const attempts = 8

// AcceptRule is the forward-accept rule of the host. It is safe for concurrent use,
// also beside other processes, and holds descriptors from the first use until Close.
type AcceptRule struct {
	kernel   kernel
	dir      cacheDir
	families map[Family]*family
}

// NewAcceptRule returns an AcceptRule, which has done nothing yet. It acts in the
// network namespace of the process.
func NewAcceptRule() *AcceptRule { return newAcceptRule(IPv4.Program(), IPv6.Program()) }

func newAcceptRule(iptables, ip6tables string) *AcceptRule {
	return &AcceptRule{kernel: newKernel(), families: map[Family]*family{
		IPv4: {Family: IPv4, command: iptables, lock: make(chan struct{}, 1)},
		IPv6: {Family: IPv6, command: ip6tables, lock: make(chan struct{}, 1)},
	}}
}

// CacheIn has the rules recognised by what processes wrote to a directory, which is
// made when needed. A process that lives for one operation would otherwise run
// iptables four times, which takes it longer than everything else. Call it before
// the first use.
//
// Only rules of an iptables on nf_tables are recognised: of the other variant the
// kernel shows too little.
func (r *AcceptRule) CacheIn(dir string) { r.dir = cacheDir(dir) }

// Close closes the descriptors, and forgets what was seen. Nothing may run that uses
// them.
func (r *AcceptRule) Close() error {
	for _, f := range r.families {
		f.cache = cache{}
	}
	return r.kernel.close()
}

// family is one family's iptables.
type family struct {
	Family
	command string
	lock    chan struct{} // holds a value while a call uses the cache
	cache   cache
}

// Ensure makes the rule in the families, with a jump to each of the admin chains
// before it, where that is missing. Missing chains are made. What exists already,
// from other calls or by other tools, stays. Where iptables is not installed there is
// nothing to make, unless the policy of the kernel is to drop: then nothing would
// pass, and exec.ErrNotFound is in the error.
//
// It takes microseconds when an earlier call found the rule complete and nothing
// has changed it since, or another process did, see CacheIn. Otherwise it runs
// iptables.
func (r *AcceptRule) Ensure(ctx context.Context, families []Family, adminChains ...string) error {
	if err := checkNames(adminChains); err != nil {
		return err
	}
	return r.each(ctx, families, func(f *family) error {
		if f.cache.any(adminChains, (*entry).unchanged) {
			return nil
		}
		if s := r.recognise(f, adminChains); s != nil {
			f.cache.of(adminChains).snapshot = s
			return nil
		}
		return f.wrap("make", r.repair(ctx, f, adminChains))
	})
}

// Check looks at the rules in the kernel, with iptables. ErrMissing names what is
// missing; the place of the jump among other programs' rules does not matter. In a
// context of CheckOnce it runs iptables only until it has found everything.
func (r *AcceptRule) Check(ctx context.Context, families []Family, adminChains ...string) error {
	if err := checkNames(adminChains); err != nil {
		return err
	}
	return r.each(ctx, families, func(f *family) error {
		if f.cache.any(adminChains, func(e *entry) bool { return e.checkedIn(ctx) }) {
			return nil
		}
		t, err := f.find(ctx)
		if t == nil || err != nil {
			return f.wrap("check", err)
		}
		listed := time.Now()
		now, err := t.list(ctx, nil)
		if err != nil {
			return f.wrap("check", err)
		}
		if missing := now.missing(adminChains); len(missing) > 0 {
			return fmt.Errorf("%w: %s: %v", ErrMissing, f.command, missing)
		}
		f.cache.of(adminChains).listed = listed
		return nil
	})
}

// wrap names what an error was met at.
func (f *family) wrap(act string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s forward-accept rule with %s: %w", act, f.command, err)
}

// each acts on every family, one call at a time.
func (r *AcceptRule) each(ctx context.Context, families []Family, act func(*family) error) error {
	var errs []error
	for _, number := range families {
		f := r.families[number]
		if f == nil {
			return fmt.Errorf("forward-accept rule: no address family %d", number)
		}
		select {
		case f.lock <- struct{}{}:
			errs = append(errs, act(f))
			<-f.lock
		case <-ctx.Done():
			errs = append(errs, fmt.Errorf("wait for %s: %w", f.command, ctx.Err()))
		}
	}
	return errors.Join(errs...)
}

// recognise returns a snapshot of rules that another process found complete; nil if
// the kernel has others.
func (r *AcceptRule) recognise(f *family, admins []string) snapshot {
	if r.dir == "" {
		return nil
	}
	s := r.kernel.snapshot(f.Family)
	if s == nil || !r.dir.has(f, admins, s) {
		return nil
	}
	return s
}

// repair makes what is missing until nothing is, and notes that.
func (r *AcceptRule) repair(ctx context.Context, f *family, admins []string) error {
	t, err := f.find(ctx)
	if t == nil || err != nil {
		return err
	}
	for range attempts {
		var s snapshot
		if t.legacy {
			s = legacySnapshotOf(f.Family)
		} else {
			s = r.kernel.snapshot(f.Family)
		}
		listed := time.Now()
		now, listErr := t.list(ctx, admins)
		if listErr != nil {
			return listErr
		}
		lines, unmarkLines := now.repair(admins), now.repairUnmark()
		if len(lines)+len(unmarkLines) == 0 {
			if s == nil || !s.shows(now) {
				return nil
			}
			e := f.cache.of(admins)
			e.snapshot, e.listed = s, listed
			r.dir.add(f, admins, s)
			return nil
		}
		err = t.restore(ctx, unmarkLines, lines)
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
	if err == nil {
		err = errors.New("another program changes the rules all the time")
	}
	return err
}

// find finds the family's program. It is nil if none is installed and none is
// needed.
func (f *family) find(ctx context.Context) (*tables, error) {
	p, err := installed(f.command)
	if errors.Is(err, exec.ErrNotFound) {
		return nil, f.unneeded(ctx, err)
	}
	if err != nil {
		return nil, err
	}
	legacy, err := p.isLegacy(ctx)
	return &tables{path: p.path, legacy: legacy}, err
}

// unneeded is nil if the policy of the host accepts what it forwards, so that no
// rule is needed. Otherwise the error wraps cause, the error of the missing program.
func (f *family) unneeded(ctx context.Context, cause error) error {
	if time.Since(f.cache.accepts) < policyTime {
		return nil
	}
	filter := netfilter.Table{IPv6: f.Family == IPv6, Name: filterTable}
	drops, err := filter.DropsForwarded(ctx)
	if err != nil {
		return fmt.Errorf("%w; without it: %w", cause, err)
	}
	if drops {
		return fmt.Errorf("table %s: the policy of chain FORWARD is to drop, and %w; install %s, or have the policy accept",
			filter, cause, f.command)
	}
	f.cache.accepts = time.Now()
	return nil
}

// tables is iptables of one family, as the forward-accept rule needs it.
type tables struct {
	path   string
	legacy bool
}

// list reads what the forward-accept rule consists of, and which of the chains
// exist.
func (t *tables) list(ctx context.Context, chains []string) (*state, error) {
	l := &state{exists: map[string]bool{}}
	output, err := t.run(ctx, "-S", forwardChain)
	if err != nil {
		return nil, err
	}
	if l.forward, err = specs(output); err != nil {
		return nil, err
	}
	output, l.exists[AcceptChain], err = t.find(ctx, "-S", AcceptChain)
	if err != nil {
		return nil, err
	}
	if l.chain, err = specs(output); err != nil {
		return nil, err
	}
	if l.mustUnmark = t.legacy; l.mustUnmark {
		if l.unmarks, err = t.countUnmarks(ctx); err != nil {
			return nil, err
		}
	}
	for _, chain := range chains {
		if _, l.exists[chain], err = t.find(ctx, "-S", chain, "1"); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (t *tables) countUnmarks(ctx context.Context) (int, error) {
	output, err := runIPTables(ctx, "", t.path, waitOption, "-t", mangleTable, "-S", forwardChain)
	if err != nil {
		return 0, err
	}
	rules, err := specs(output)
	return count(rules, unmark), err
}

// find runs iptables on a chain that may not exist, which it reports with status 1.
func (t *tables) find(ctx context.Context, args ...string) (output string, found bool, err error) {
	output, err = t.run(ctx, args...)
	var status *exec.ExitError
	if errors.As(err, &status) && status.ExitCode() == 1 {
		return "", false, nil
	}
	return output, err == nil, err
}

// restore applies lines of the tables mangle and filter, each in one transaction.
func (t *tables) restore(ctx context.Context, mangleLines, filterLines []string) error {
	input := ""
	for _, table := range []struct {
		name  string
		lines []string
	}{{mangleTable, mangleLines}, {filterTable, filterLines}} {
		if len(table.lines) > 0 {
			input += "*" + table.name + "\n" + strings.Join(table.lines, "\n") + "\nCOMMIT\n"
		}
	}
	_, err := runIPTables(ctx, input, t.path+"-restore", "--noflush", waitOption)
	return err
}

func (t *tables) run(ctx context.Context, args ...string) (string, error) {
	return runIPTables(ctx, "", t.path, append([]string{waitOption, "-t", filterTable}, args...)...)
}
