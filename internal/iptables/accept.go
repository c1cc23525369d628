package iptables

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/allocnet/allocnet/internal/netlink/netfilter"
)

// ErrMissing: a rule of this package, or a part of it, does not exist.
var ErrMissing = errors.New("rule of iptables is missing")

// attempts is the maximum number of tries of a repair with which other programs can
// interfere.
const attempts = 8

// AcceptRule maintains the forward-accept rule of the host. It is safe for concurrent
// use, also by several processes, and holds descriptors from the first use until Close.
type AcceptRule struct {
	kernel   kernel
	dir      cacheDir
	families map[Family]*family
}

// NewAcceptRule returns an AcceptRule for the network namespace of the process. It does
// not make the rule yet: see Ensure.
func NewAcceptRule() *AcceptRule { return newAcceptRule(IPv4.Program(), IPv6.Program()) }

func newAcceptRule(iptables, ip6tables string) *AcceptRule {
	return &AcceptRule{kernel: newKernel(), families: map[Family]*family{
		IPv4: {Family: IPv4, command: iptables, lock: make(chan struct{}, 1)},
		IPv6: {Family: IPv6, command: ip6tables, lock: make(chan struct{}, 1)},
	}}
}

// CacheIn sets a directory in which processes record complete rules, so that later
// processes, and CHECKs of this one, recognise them. The directory is made when needed.
// Without it, a process that lives for one operation would run iptables four times, which
// takes longer than everything else in the operation, and so would each Check. Call CacheIn
// before the first use.
//
// Only rules of an iptables on nf_tables are recognised: the kernel shows too little of
// those of the legacy variant.
func (r *AcceptRule) CacheIn(dir string) { r.dir = cacheDir(dir) }

// Close closes the descriptors and empties the cache. No other method may be running.
func (r *AcceptRule) Close() error {
	for _, f := range r.families {
		f.cache = cache{}
	}
	return r.kernel.close()
}

// family contains the name of one family's iptables, and the cache of its rules.
type family struct {
	Family
	command string
	lock    chan struct{} // holds a value while a call uses the cache
	cache   cache
}

// Ensure makes the rule in the families in which it is missing, with a jump to each of
// the admin chains before it, and makes missing chains. Rules that exist already, made
// by other calls or other tools, stay. If iptables is not installed, Ensure makes
// nothing. If in that case the policy of the kernel is to drop forwarded packets, they
// would not pass, and the error wraps exec.ErrNotFound.
//
// Ensure takes microseconds if an earlier call, or another process (see CacheIn), found
// the rule complete and it has not changed since. Otherwise Ensure runs iptables.
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

// Known reports whether an earlier Ensure found the rule complete in all families, in tables of
// nf_tables. Then a caller who knows that no table has changed since needs no Ensure. It is false while
// another call looks at the rule.
func (r *AcceptRule) Known(families []Family, adminChains ...string) bool {
	return !slices.ContainsFunc(families, func(number Family) bool {
		f := r.families[number]
		return f == nil || !f.isKnown(adminChains)
	})
}

func (f *family) isKnown(adminChains []string) bool {
	select {
	case f.lock <- struct{}{}:
		defer func() { <-f.lock }()
	default:
		return false
	}
	return f.cache.any(adminChains, func(e *entry) bool { _, is := e.snapshot.(nftSnapshot); return is })
}

// Check returns ErrMissing, with the names of what is missing; the position of the jump among
// other programs' rules does not matter. It compares the kernel's rules with those that CacheIn
// has recorded as complete, and lists them with iptables if it does not recognise them. In a
// context of CheckOnce it does so only until it has found everything.
func (r *AcceptRule) Check(ctx context.Context, families []Family, adminChains ...string) error {
	if err := checkNames(adminChains); err != nil {
		return err
	}
	return r.each(ctx, families, func(f *family) error {
		if f.cache.any(adminChains, func(e *entry) bool { return e.checkedIn(ctx) }) {
			return nil
		}
		began := time.Now()
		if r.recognise(f, adminChains) == nil {
			if found, err := f.check(ctx, adminChains); !found || err != nil {
				return err
			}
		}
		f.cache.of(adminChains).found = began
		return nil
	})
}

// check lists the rules with iptables. It reports whether it has found them all; without iptables it
// finds none, which is no error if none are needed.
func (f *family) check(ctx context.Context, admins []string) (found bool, err error) {
	t, err := f.find(ctx)
	if t == nil || err != nil {
		return false, f.wrap("check", err)
	}
	now, err := t.list(ctx, nil)
	if err != nil {
		return false, f.wrap("check", err)
	}
	if missing := now.missing(admins); len(missing) > 0 {
		return false, fmt.Errorf("%w: %s: %v", ErrMissing, f.command, missing)
	}
	return true, nil
}

// wrap adds the action and the program to an error.
func (f *family) wrap(act string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s forward-accept rule with %s: %w", act, f.command, err)
}

// each calls act for every family, with one call at a time for a family.
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

// recognise returns a snapshot of the rules in the kernel if another process has found
// the same rules complete, and nil otherwise.
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

// repair makes missing rules until the rule is complete, and records that in the cache.
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
			e.snapshot, e.found = s, listed
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

// find returns the family's program; nil if none is installed and none is needed.
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

// unneeded returns nil if the policy of the host accepts forwarded packets, so that no
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

// tables runs the iptables of one family for the forward-accept rule.
type tables struct {
	path   string
	legacy bool
}

// list reads the rules that the forward-accept rule consists of, and which of the
// chains exist.
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

// find runs iptables on a chain that may not exist: then iptables exits with status 1.
func (t *tables) find(ctx context.Context, args ...string) (output string, found bool, err error) {
	output, err = t.run(ctx, args...)
	var status *exec.ExitError
	if errors.As(err, &status) && status.ExitCode() == 1 {
		return "", false, nil
	}
	return output, err == nil, err
}

// restore applies lines to the tables mangle and filter, each table in one transaction.
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
