// Package doctor examines a host for what keeps networks of allocations from working, now or
// soon. It reads the kernel and the files as they are and changes nothing, unless a safe
// repair is asked for.
//
// A Finding says what was found, why it matters and which command repairs it. Checks that
// could not be completed are findings too: what cannot be examined does not count as healthy.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/allocnet/allocnet/cmd/internal/readiness"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// Severity says how urgent a Finding is.
type Severity string

// The severities.
const (
	Error   Severity = "error"   // something does not work
	Warning Severity = "warning" // something works only partly, or will stop working
)

// Finding is one thing that is wrong with the host.
type Finding struct {
	ID       string   `json:"id"` // of a Kind; does not change between versions
	Severity Severity `json:"severity"`
	Object   string   `json:"object"` // the network, file, sysctl or allocation
	What     string   `json:"what"`
	Why      string   `json:"why"`
	Repair   string   `json:"repair"` // a command, or a text if there is none
	// Safe reports that Fix can repair it.
	Safe bool `json:"safe"`
	// Fixed reports that Fix has repaired it. FixError is the reason if it could not.
	Fixed    bool   `json:"fixed,omitempty"`
	FixError string `json:"fixError,omitempty"`

	fix   func(context.Context) error
	cause error // of a finding of the kind not-ready
}

// Kind is a kind of findings.
type Kind struct {
	ID       string
	Severity Severity
	Why      string
	// Safe reports that findings of the kind have a repair that Fix may make: it restores
	// what allocnet itself needs or removes unused objects of allocnet, and nothing else.
	Safe bool
}

// Host is the host that is examined: the network namespace, mounts and files of this
// process, and the settings of allocnet.
type Host struct {
	Service    *configurator.Configurator
	Engine     configurator.Engine
	ConfDir    string
	StateDir   string
	PluginDirs []string
	VendorDir  string // "" for none
	NetnsDir   string // of the namespaces that setup creates
	// Settings is the file of the daemon's settings, which need not exist; "" for none.
	Settings string
	// Networks are the active networks, Skipped the files that are not.
	Networks []*conflist.Network
	Skipped  []*conflist.FileError
	// Full is the part of a limit from which it counts as soon reached; default 0.8.
	Full float64
	// Ready checks whether Setups can be expected to work, and what the daemon does not serve. An error
	// means that the daemon did not answer. It may be nil.
	Ready func(context.Context) ([]readiness.Check, error)

	// Records are read by Examine, which reports what it could not read: unread.
	// LeasesWithoutOwner has only their IDs, and reads them with list if it has to.
	records []configurator.Record
	unread  error
	ids     []string
	list    func(context.Context) ([]configurator.Record, error)
}

// Report is the result of an examination.
type Report struct {
	Checks   []Check   `json:"checks"`
	Findings []Finding `json:"findings"`
}

// Check is one check that was made.
type Check struct {
	Name  string `json:"name"`
	Title string `json:"title"`
	OK    bool   `json:"ok"` // it found nothing
}

// check finds what is wrong in one area. An error means that it could not be completed; the
// findings until then count.
type check struct {
	name, title string
	run         func(context.Context, *Host) ([]Finding, error)
	how         manner
}

// manner is how a check is made.
type manner int

const (
	quick manner = 1 << iota // see ExamineQuickly
	// twice has a check that finds something made again: it compares lists that were read one after
	// the other, between which an allocation can have been set up or torn down.
	twice
)

// look makes the check, twice if that is necessary, and returns the findings of the last time that
// were there each time. The records are read again in between. If one of them cannot be read, it
// may be the reason for which a finding is missing.
func (c *check) look(ctx context.Context, h *Host) ([]Finding, error) {
	first, err := c.run(ctx, h)
	if c.how&twice == 0 || len(first) == 0 {
		return first, err
	}
	again := *h
	var listErr error
	again.records, listErr = h.Service.List(ctx)
	second, secondErr := c.run(ctx, &again)
	both := slices.DeleteFunc(second, func(f Finding) bool {
		return !slices.ContainsFunc(first, func(before Finding) bool {
			return before.ID == f.ID && before.Object == f.Object && before.What == f.What
		})
	})
	if len(both) == len(first) {
		listErr = nil
	}
	if secondErr != nil && err != nil && secondErr.Error() == err.Error() {
		secondErr = nil
	}
	return both, errors.Join(err, secondErr, listErr)
}

// checks are in the order of the report.
var checks = []check{
	{"privileges", "rights of this process", checkPrivileges, quick},
	{"kernel", "features of the kernel", checkKernel, 0},
	{"forwarding", "forwarding and other sysctls", checkSysctls, quick | twice},
	{"firewall", "rules of other programs", checkFirewall, quick | twice},
	{"listeners", "processes on published host ports", checkListeners, quick | twice},
	{"subnets", "subnets and routes", checkSubnets, quick | twice},
	{"configuration", "settings and network configurations", checkConfiguration, quick},
	{"readiness", "readiness of the networks and of the daemon", checkReadiness, 0},
	{"plugins", "plugin directories and versions", checkPlugins, 0},
	{"records", "records of allocations", checkRecords, quick},
	{"allocations", "allocations, leases and leftovers", checkAllocations, 0},
	{"namespaces", "network namespaces", checkNamespaces, 0},
	{"limits", "limits of the kernel and of networks", checkLimits, quick},
	{"attempts", "further inotify instances and network namespaces", checkAttempts, 0},
	{"disk", "disk and clock", checkDisk, quick},
}

// Examine makes all checks, several at a time, and changes nothing.
func (h *Host) Examine(ctx context.Context) *Report { return h.examine(ctx, checks) }

// ExamineQuickly makes the checks that take 15 ms or so together. It leaves out those that run
// plugins or CHECK, ask whether networks are ready, look for leftovers, count the open files of
// all processes, or try features of the kernel.
func (h *Host) ExamineQuickly(ctx context.Context) *Report {
	return h.examine(ctx, slices.DeleteFunc(slices.Clone(checks), func(c check) bool { return c.how&quick == 0 }))
}

func (h *Host) examine(ctx context.Context, checks []check) *Report {
	if h.Full == 0 {
		h.Full = 0.8
	}
	h.records, h.unread = h.Service.List(ctx)
	h.list = func(context.Context) ([]configurator.Record, error) { return h.records, h.unread }
	found, failed := make([][]Finding, len(checks)), make([]error, len(checks))
	var running sync.WaitGroup
	for i, c := range checks {
		running.Go(func() { found[i], failed[i] = c.look(ctx, h) })
	}
	running.Wait()
	r := &Report{Findings: unreadable(h.unread)}
	for i, c := range checks {
		if failed[i] != nil {
			found[i] = append(found[i], find("not-checked", c.name,
				fmt.Sprintf("the check of %s could not be completed: %s", c.title, redact.Text(failed[i].Error())),
				"remove the cause, then: allocnet doctor"))
		}
		ok := len(found[i]) == 0 && (h.unread == nil || c.name != "records")
		r.Checks = append(r.Checks, Check{c.name, c.title, ok})
		r.Findings = append(r.Findings, found[i]...)
	}
	r.Findings = once(r.Findings)
	for i := range r.Findings {
		r.Findings[i].What = redact.Bound(r.Findings[i].What)
	}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return cmp.Compare(a.Severity, b.Severity) })
	return r
}

// Fix makes the repairs of the safe findings, and notes in each one how it ended. Another
// Examine shows what is left.
func (r *Report) Fix(ctx context.Context) {
	for i := range r.Findings {
		f := &r.Findings[i]
		if f.fix == nil {
			continue
		}
		if err := f.fix(ctx); err != nil {
			f.FixError = redact.Bound(redact.Text(err.Error()))
		} else {
			f.Fixed = true
		}
	}
}

// find returns a finding of a kind.
func find(id, object, what, repair string) Finding {
	k := kindOf(id)
	return Finding{ID: id, Severity: k.Severity, Object: object, What: what, Why: k.Why, Repair: repair}
}

// withFix returns the finding with a safe repair.
func (f Finding) withFix(fix func(context.Context) error) Finding {
	if !kindOf(f.ID).Safe {
		panic("the kind " + f.ID + " has no safe repair")
	}
	f.Safe, f.fix = true, fix
	return f
}

func kindOf(id string) Kind {
	i := slices.IndexFunc(Kinds, func(k Kind) bool { return k.ID == id })
	if i < 0 {
		panic("unknown kind of finding " + id)
	}
	return Kinds[i]
}

// ready returns the records of the allocations that are set up.
func (h *Host) ready() (list []*configurator.Record) {
	for i := range h.records {
		if r := &h.records[i]; r.Phase == configurator.PhaseReady && !r.Acknowledged && !r.NetnsGone {
			list = append(list, r)
		}
	}
	return list
}
