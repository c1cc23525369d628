package heal

import (
	"context"
	"time"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/internal/state/journal"
)

// round goes through all allocations, one after the other, spread over the interval.
type round struct {
	checker *Checker
	ids     []string
	next    time.Time // of the next step
	pause   time.Duration
}

// step checks the next allocation, or begins the next round.
func (r *round) step(ctx context.Context) {
	if len(r.ids) == 0 {
		r.begin(ctx)
		return
	}
	id, began := r.ids[0], time.Now()
	r.ids = r.ids[1:]
	r.checker.check(ctx, id)
	r.next = began.Add(max(r.pause, share*time.Since(began)))
}

// begin begins a round with a comparison of everything that Restore compares.
func (r *round) begin(ctx context.Context) {
	c, began := r.checker, time.Now()
	records, err := c.Service().List(ctx)
	if err != nil {
		c.Logger.Debug("comparison in the background: not all records could be read", "error", err)
	}
	exists := map[string]bool{}
	for i := range records {
		r.ids = append(r.ids, records[i].ID)
		exists[records[i].ID] = true
	}
	c.forget(exists)
	r.pause = c.Interval / time.Duration(len(r.ids)+1)
	r.next = began.Add(r.pause)
	if len(r.ids) == 0 {
		return
	}
	const change = "found by the comparison in the background"
	report, err := c.Service().Restore(journal.WithCause(ctx, change))
	if err != nil || ctx.Err() != nil {
		return // the CHECKs find what is missing
	}
	if n := len(report.Restored); n > 0 {
		c.Report.Healed(client.Heal{
			Cause: "drift", Change: change, Restored: n, Allocs: report.Restored[:min(n, maxNamed)], Seconds: time.Since(began).Seconds(),
		})
		c.Logger.Warn("restored what was missing", "change", change, "restored", n)
	}
	c.Soon(report.Restored...)
	c.Soon(report.Failed...)
}
