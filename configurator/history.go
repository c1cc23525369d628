package configurator

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/journal"
)

// openJournal makes the Config record operations in the journal, and returns it; nil if it
// has none.
func (c *Config) openJournal() *journal.Journal {
	if c.Journal <= 0 {
		return nil
	}
	var once sync.Once
	log := c.Logger
	j := journal.New(c.StateDir, c.Journal, c.Observer, func(err error) {
		once.Do(func() { log.Warn("the history of operations is incomplete", "error", redact.Text(err.Error())) })
	})
	c.Observer = j
	return j
}

// forcedKey is the key of a func([]Leftover) in a context, which gets what was removed by force.
type forcedKey struct{}

// noteForced reports what was removed by force of an allocation to the caller of the operation in
// the context, to the journal and to Config.OnForced.
func (c *Configurator) noteForced(ctx context.Context, id string, removed []Leftover) {
	if len(removed) == 0 {
		return
	}
	if report, ok := ctx.Value(forcedKey{}).(func([]Leftover)); ok {
		report(removed)
	}
	if c.journal != nil {
		c.journal.Forced(ctx, id, removed)
	}
	c.cfg.OnForced(id, removed)
}

// noteRestored records in the journal that something of an allocation was restored, or could
// not be. What is restored for all allocations together is no step of an operation of the
// Observer. found is what CHECK has found; nil stands for the cause in the context.
func (c *Configurator) noteRestored(ctx context.Context, id string, took time.Duration, found, err error) {
	if c.journal == nil {
		return
	}
	e := HistoryEntry{Operation: "repair", ID: id, Seconds: took.Seconds(), Cause: journal.Cause(ctx)}
	if found != nil {
		e.Cause = redact.Text(found.Error())
	}
	if r, err := c.store.Get(id); err == nil {
		e.Engine = Engine(r.Engine)
		for _, a := range r.Attachments {
			e.Networks = append(e.Networks, a.Network)
		}
	}
	c.journal.Add(e, err)
}

// History returns operations that have ended, oldest first, as far as the journal reaches
// back: Setup, Update, Attach, Detach, Teardown, Repair, CheckAndRepair, Restore, GC and
// Recover, of all programs that have a journal in the same state directory, and every CHECK that
// failed. Without a journal, the list is empty.
func (c *Configurator) History(ctx context.Context, q HistoryQuery) ([]HistoryEntry, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	entries, err := journal.Read(c.cfg.StateDir, q)
	if err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	return entries, nil
}
