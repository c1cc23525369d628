package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/allocnet/allocnet/configurator"
)

// removeAtOnce is the number of concurrent Teardowns in a burst of removals.
const removeAtOnce = 50

// acknowledgedName is the native engine whose Teardown leaves the deletion of links to the
// background. All other measurements of the native engine include it.
const acknowledgedName = "acknowledged"

func removeTitle(kind string) string { return "DEL until it returns, " + kind }

func removalsTitle(kind string, n int) string {
	return fmt.Sprintf("DEL until it returns, %d at once, %s", n, kind)
}

// remove measures Teardowns until they return: the baseline's returns when the link is
// deleted.
func (b *bench) remove(ctx context.Context) error {
	slots, err := b.slots(ctx, b.size.removals)
	if err != nil {
		return err
	}
	for _, kind := range []string{"bridge", "ptp"} {
		if err := b.removeOf(ctx, slots, kind); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) removeOf(ctx context.Context, slots []*slot, kind string) error {
	b.progress("removals: %s", kind)
	systems, err := b.openAll(ctx, kind, false, baselineName)
	if err != nil {
		return err
	}
	n := b.newNetwork(acknowledgedName, kind, false)
	native, err := b.newConfigured(ctx, n, acknowledgedName, configurator.EngineNative, func(c *configurator.Config) { c.Backlog = 0 })
	if err != nil {
		return errors.Join(err, closeAll(ctx, systems))
	}
	single := map[string]*samples{baselineName: {}, acknowledgedName: {}}
	many := map[string]*samples{baselineName: {}, acknowledgedName: {}}
	var one, burst []turn
	for _, sys := range []system{systems[baselineName], native} {
		one = append(one, turn{1, func(round int) error { return removeOne(ctx, sys, slots[round%spare], single[sys.name()]) }})
		burst = append(burst, turn{1, func(int) error { return removeMany(ctx, sys, slots, many[sys.name()]) }})
	}
	err = errors.Join(takeTurns(ctx, b.size.life.fast, one), takeTurns(ctx, b.size.bursts, burst))
	if err := errors.Join(err, native.close(ctx), closeAll(ctx, systems)); err != nil {
		return err
	}
	for _, name := range []string{baselineName, acknowledgedName} {
		b.report.add(removeTitle(kind), name, seconds, *single[name])
	}
	for _, name := range []string{baselineName, acknowledgedName} {
		b.report.add(removalsTitle(kind, len(slots)), name, rate, *many[name])
	}
	return nil
}

// removeOne measures one removal. The background is idle before and after it.
func removeOne(ctx context.Context, sys system, s *slot, m *samples) error {
	if err := sys.add(ctx, s); err != nil {
		return err
	}
	err := timed(m, func() error { return sys.del(ctx, s) })
	return errors.Join(err, settle(sys))
}

// removeMany measures the rate of concurrent removals until the last one returns. They begin when
// the kernel has ended the background work that the ADDs have caused.
func removeMany(ctx context.Context, sys system, slots []*slot, m *samples) error {
	if err := fill(ctx, sys, slots); err != nil {
		return err
	}
	if err := quiet(ctx); err != nil {
		return err
	}
	var whole samples
	err := timed(&whole, func() error {
		if _, ok := sys.(*baseline); ok {
			return drain(ctx, sys, slots)
		}
		return atOnce(removeAtOnce, slots, func(s *slot) error { return sys.del(ctx, s) })
	})
	if err != nil {
		return err
	}
	*m = append(*m, float64(len(slots))/whole[0])
	return settle(sys)
}

// settle waits for the removals in the background of a system.
func settle(sys system) error {
	if c, ok := sys.(*configured); ok {
		return c.Close()
	}
	return nil
}
