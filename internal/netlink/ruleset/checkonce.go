package ruleset

import (
	"context"
	"sync"
)

type checkKey struct{}

// completeTables are the tables that were found complete.
type completeTables struct {
	mu     sync.Mutex
	tables map[*table]bool
}

// CheckOnce returns a context for the checks of many allocations in a row. In this
// context, Check and CheckGuard do not read the structure of a table again that one of
// them has found complete. They read an incomplete table again, so they see repairs made
// in the meantime. Elements are always looked up.
func CheckOnce(ctx context.Context) context.Context {
	return context.WithValue(ctx, checkKey{}, &completeTables{tables: map[*table]bool{}})
}

// problemsOf reads the structure of a table and describes what is wrong with it, unless
// the table is known to be complete in this context.
func (r *Ruleset) problemsOf(ctx context.Context, t *table) ([]string, error) {
	known, _ := ctx.Value(checkKey{}).(*completeTables)
	if known.has(t) {
		return nil, nil
	}
	is, err := r.inspect(ctx, t)
	if err != nil {
		return nil, err
	}
	problems := t.problems(is)
	if len(problems) == 0 {
		known.add(t)
	}
	return problems, nil
}

func (c *completeTables) has(t *table) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tables[t]
}

func (c *completeTables) add(t *table) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tables[t] = true
}
