package bench

import (
	"context"
	"errors"
	"fmt"
)

// burstAtOnce is the number of concurrent ADDs in a burst.
const burstAtOnce = 50

func burstTitle(kind string) string { return fmt.Sprintf("ADD, burst, 50 at a time, %s", kind) }

// burst measures the rate of concurrent ADDs.
func (b *bench) burst(ctx context.Context) error {
	slots, err := b.slots(ctx, b.size.burst)
	if err != nil {
		return err
	}
	for _, kind := range b.size.kinds {
		if err := b.burstOf(ctx, slots, kind); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) burstOf(ctx context.Context, slots []*slot, kind string) error {
	b.progress("burst of %d ADDs, %d at a time: %s", len(slots), burstAtOnce, kind)
	names := []string{baselineName, nativeName}
	if kind == b.size.kinds[0] {
		names = append(names, execName)
	}
	systems, err := b.openAll(ctx, kind, false, names...)
	if err != nil {
		return err
	}
	measured := map[string]*samples{}
	var turns []turn
	for _, sys := range inOrder(systems) {
		if err := (&lives{}).live(ctx, sys, slots[0]); err != nil {
			return err
		}
		m, every, mine := &samples{}, 1, slots
		if slow(sys) {
			every, mine = b.size.bursts, slots[:min(len(slots), b.size.slowBurst)]
		}
		measured[sys.name()] = m
		turns = append(turns, turn{every, func(int) error { return burstOfSystem(ctx, sys, mine, m) }})
	}
	err = takeTurns(ctx, b.size.bursts, turns)
	if err := errors.Join(err, closeAll(ctx, systems)); err != nil {
		return err
	}
	for _, sys := range inOrder(systems) {
		b.report.add(burstTitle(kind), sys.name(), rate, *measured[sys.name()])
	}
	return nil
}

func burstOfSystem(ctx context.Context, sys system, slots []*slot, m *samples) error {
	var whole samples
	err := timed(&whole, func() error {
		return atOnce(burstAtOnce, slots, func(s *slot) error { return sys.add(ctx, s) })
	})
	if err != nil {
		return err
	}
	*m = append(*m, float64(len(slots))/whole[0])
	return drain(ctx, sys, slots)
}
