package bench

import (
	"context"
	"errors"
	"slices"
)

// batchTitle is the time per allocation when many are removed together.
const batchTitle = "DEL, 100 at once, each"

// batch measures many concurrent DELs. The baseline deletes the links of a
// batch together; the other systems get one call per allocation.
func (b *bench) batch(ctx context.Context) error {
	slots, err := b.slots(ctx, b.size.batch)
	if err != nil {
		return err
	}
	b.progress("%d DELs at once", len(slots))
	systems, err := b.openAll(ctx, "bridge", false, baselineName, nativeName, execName)
	if err != nil {
		return err
	}
	measured := map[string]*samples{}
	var turns []turn
	for _, sys := range inOrder(systems) {
		m, every, mine := &samples{}, 1, slots
		if slow(sys) {
			every, mine = b.size.batches, slots[:min(len(slots), b.size.slowBatch)]
		}
		measured[sys.name()] = m
		turns = append(turns, turn{every, func(int) error { return batchOf(ctx, sys, mine, m) }})
	}
	err = takeTurns(ctx, b.size.batches, turns)
	if err := errors.Join(err, closeAll(ctx, systems)); err != nil {
		return err
	}
	for _, sys := range inOrder(systems) {
		b.report.add(batchTitle, sys.name(), seconds, *measured[sys.name()])
	}
	return nil
}

// batchOf creates allocations and measures their removal, per allocation.
func batchOf(ctx context.Context, sys system, slots []*slot, m *samples) error {
	if err := fill(ctx, sys, slots); err != nil {
		return err
	}
	var whole samples
	if err := timed(&whole, func() error { return drain(ctx, sys, slots) }); err != nil {
		return err
	}
	*m = append(*m, whole[0]/float64(len(slots)))
	return nil
}

// fillAtOnce is the number of allocations that fill creates at a time.
const fillAtOnce = 8

// fill creates allocations, several at a time. The first one is created alone,
// because the reference plugins create shared objects without a lock.
func fill(ctx context.Context, sys system, slots []*slot) error {
	if err := sys.add(ctx, slots[0]); err != nil {
		return err
	}
	return atOnce(fillAtOnce, slots[1:], func(s *slot) error { return sys.add(ctx, s) })
}

// drainAtOnce is the number of allocations that drain removes together.
const drainAtOnce = 100

// drain removes allocations in batches.
func drain(ctx context.Context, sys system, slots []*slot) error {
	for part := range slices.Chunk(slots, drainAtOnce) {
		var err error
		if f, ok := sys.(*baseline); ok {
			err = f.delBatch(part)
		} else {
			err = atOnce(len(part), part, func(s *slot) error { return sys.del(ctx, s) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}
