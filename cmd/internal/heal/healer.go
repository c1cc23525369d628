package heal

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/netlink/watch"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/journal"
)

// Service is the part of a *configurator.Configurator that repairs.
type Service interface {
	Restore(ctx context.Context, ids ...string) (*configurator.RestoreReport, error)
	CheckAndRepair(ctx context.Context, id string) (repaired bool, err error)
	List(ctx context.Context) ([]configurator.Record, error)
	HoldGuard(ctx context.Context) error
}

// Watcher is the part of a *watch.Watcher that a Healer needs.
type Watcher interface {
	Changed() <-chan struct{}
	Take() []watch.Change
}

// Report gets what is to be published. Its functions must not block.
type Report interface {
	// Healed is called after a repair, and for an allocation that became unhealthy.
	Healed(client.Heal)
	// Compared is called after every comparison, for the kinds of its causes.
	Compared(kinds []string)
	// Unhealthy is called with the number of unhealthy allocations when it changes, and Unchecked with
	// that of those whose last CHECK could not be completed.
	Unhealthy(n int)
	Unchecked(n int)
}

// Healer repairs when the Watcher has seen a change. It must be used by one goroutine.
type Healer struct {
	Service func() Service // the active one
	Watcher Watcher
	Checker *Checker
	Report  Report
	Logger  hclog.Logger

	pending  map[watch.Kind]watch.Change
	backoffs map[watch.Kind]*backoff
	routes   routes
}

// Run repairs until the context ends.
func (h *Healer) Run(ctx context.Context) error {
	h.pending, h.backoffs = map[watch.Kind]watch.Change{}, map[watch.Kind]*backoff{}
	for ctx.Err() == nil {
		now := time.Now()
		if h.routes.due(now) {
			h.compareRoutes(ctx)
			continue
		}
		causes, next := h.dueAt(now)
		if len(causes) > 0 {
			h.repair(ctx, causes)
			continue
		}
		if len(h.routes.changed) > 0 && (next.IsZero() || h.routes.next.Before(next)) {
			next = h.routes.next
		}
		var timer <-chan time.Time
		if !next.IsZero() {
			timer = time.After(next.Sub(now))
		}
		select {
		case <-ctx.Done():
		case <-timer:
		case <-h.Watcher.Changed():
			for _, c := range h.Watcher.Take() {
				if concernsGuard(c) {
					h.hold(ctx)
				}
				if c.Kind != watch.Made {
					h.note(c)
				}
			}
		}
	}
	return ctx.Err()
}

// RunGuard only holds the guard, and repairs nothing, until the context ends. After a flush, the links that
// need the guard pass no packets.
func (h *Healer) RunGuard(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.Watcher.Changed():
			if slices.ContainsFunc(h.Watcher.Take(), concernsGuard) {
				h.hold(ctx)
			}
		}
	}
}

// concernsGuard reports whether the guard was perhaps made or removed.
func concernsGuard(c watch.Change) bool {
	return c.Kind == watch.Made || c.Kind == watch.Rules || c.Kind == watch.Lost
}

// hold holds the guard: another process may have made it for an allocation, and have ended. After a flush it
// does so before the repair, because the guard closes ports that no record restores.
func (h *Healer) hold(ctx context.Context) {
	if err := h.Service().HoldGuard(ctx); err != nil && ctx.Err() == nil {
		h.Logger.Error("cannot hold the source guard: a flush of the ruleset would remove it for a moment", "error", err)
	}
}

// note notes a change. A deleted veth cannot be restored: whether that is damage shows
// the record, when the operation that may have deleted it has ended.
func (h *Healer) note(c watch.Change) {
	if c.Kind == watch.Veth {
		for _, owner := range c.Owners {
			h.Checker.LaterContainer(owner.ID)
		}
		return
	}
	if c.Kind == watch.Destination {
		if !h.routes.add(c.Destinations) {
			h.note(watch.Change{Kind: watch.Route, Object: "change of many routes"})
		}
		return
	}
	if _, known := h.pending[c.Kind]; !known {
		h.pending[c.Kind] = c
	}
}

// dueAt takes the changes that lead to a repair now. If there are none, it returns the
// time of the next ones, or zero.
func (h *Healer) dueAt(now time.Time) (causes []watch.Change, next time.Time) {
	for kind, c := range h.pending {
		due := h.backoffOf(kind).due(now)
		switch {
		case !due.After(now):
			causes = append(causes, c)
			delete(h.pending, kind)
		case next.IsZero() || due.Before(next):
			next = due
		}
	}
	slices.SortFunc(causes, func(a, b watch.Change) int { return int(a.Kind) - int(b.Kind) })
	return causes, next
}

func (h *Healer) backoffOf(kind watch.Kind) *backoff {
	if h.backoffs[kind] == nil {
		h.backoffs[kind] = &backoff{}
	}
	return h.backoffs[kind]
}

// repair restores what is missing and has the affected allocations checked.
func (h *Healer) repair(ctx context.Context, causes []watch.Change) {
	release := h.Checker.pause()
	began := time.Now()
	report, err := h.Service().Restore(journal.WithCause(ctx, describe(causes)))
	release()
	if ctx.Err() != nil {
		return
	}
	if report == nil {
		report = &configurator.RestoreReport{}
	}
	heal := client.Heal{Restored: len(report.Restored), Seconds: time.Since(began).Seconds()}
	heal.Allocs = report.Restored[:min(len(report.Restored), maxNamed)]
	if err != nil {
		heal.Error = redact.Text(err.Error())
	}
	var kinds []string
	repaired := len(report.Restored) > 0 || err != nil
	for i := range causes {
		c := &causes[i]
		kinds = append(kinds, c.Kind.String())
		b := h.backoffOf(c.Kind)
		if b.note(time.Now(), repaired) {
			heal.BackOff = max(heal.BackOff, b.wait.Seconds())
		}
		if err != nil { // try again
			h.note(*c)
		}
	}
	heal.Cause, heal.Change = kinds[0], describe(causes)
	h.Report.Compared(kinds)
	if repaired {
		h.Report.Healed(heal)
		log(h.Logger, &heal)
	}
	h.Checker.Soon(report.Restored...)
	h.Checker.Soon(report.Failed...)
	h.Checker.Retry(&heal, report.Busy...)
	if slices.ContainsFunc(causes, beyondTables) {
		h.Checker.Soon(report.Unchecked...)
	}
}

// describe returns changes as a text.
func describe(changes []watch.Change) string {
	texts := make([]string, len(changes))
	for i := range changes {
		texts[i] = changes[i].String()
	}
	return strings.Join(texts, "; ")
}

// maxNamed bounds the IDs in one event.
const maxNamed = 64

// beyondTables reports whether a change can concern rules outside of allocnet's tables.
// Their CHECK runs programs, which takes long.
func beyondTables(c watch.Change) bool {
	return c.Kind == watch.Rules || c.Kind == watch.Foreign || c.Kind == watch.Lost
}

func log(logger hclog.Logger, heal *client.Heal) {
	values := []any{"change", heal.Change, "restored", heal.Restored, "took", time.Duration(heal.Seconds * float64(time.Second)).Round(time.Millisecond)}
	switch {
	case heal.Error != "":
		logger.Error("could not restore what another program removed", append(values, "error", heal.Error)...)
	case heal.BackOff > 0:
		logger.Warn("another program keeps removing what allocations need, so it is restored less often: configure that program to leave objects of allocnet alone, such as by flushing its own tables only",
			append(values, "next_repair_after", time.Duration(heal.BackOff*float64(time.Second)))...)
	default:
		logger.Warn("restored what another program removed", values...)
	}
}
