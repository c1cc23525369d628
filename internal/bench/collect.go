package bench

import (
	"context"
	"errors"
	"fmt"
)

func collectTitle(n int) string { return fmt.Sprintf("GC of %d", n) }

// collect measures the rate at which a GC removes allocations when it removes
// all. The baseline deletes them in batches.
func (b *bench) collect(ctx context.Context) error {
	slots, err := b.slots(ctx, b.size.collect)
	if err != nil {
		return err
	}
	b.progress("%s", collectTitle(len(slots)))
	systems, err := b.openAll(ctx, "bridge", false, baselineName, nativeName)
	if err != nil {
		return err
	}
	measured := map[string]*samples{}
	var turns []turn
	for _, sys := range inOrder(systems) {
		m := &samples{}
		measured[sys.name()] = m
		turns = append(turns, turn{1, func(int) error { return collectOf(ctx, sys, slots, m) }})
	}
	err = takeTurns(ctx, b.size.collects, turns)
	if err := errors.Join(err, closeAll(ctx, systems)); err != nil {
		return err
	}
	for _, sys := range inOrder(systems) {
		b.report.add(collectTitle(len(slots)), sys.name(), rate, *measured[sys.name()])
	}
	return nil
}

func collectOf(ctx context.Context, sys system, slots []*slot, m *samples) error {
	if err := fill(ctx, sys, slots); err != nil {
		return err
	}
	var whole samples
	err := timed(&whole, func() error {
		c, ok := sys.(*configured)
		if !ok {
			return drain(ctx, sys, slots)
		}
		report, err := c.GC(ctx, nil)
		if err == nil && len(report.Removed) != len(slots) {
			err = fmt.Errorf("%s: GC removed %d of %d allocations", c.name(), len(report.Removed), len(slots))
		}
		return err
	})
	if err != nil {
		return err
	}
	*m = append(*m, float64(len(slots))/whole[0])
	return nil
}
