package bench

import (
	"context"
	"slices"
)

// turn is the work of one system in a measurement.
type turn struct {
	// every is the number of rounds per turn: slow systems take fewer turns.
	every int
	do    func(round int) error
}

// takeTurns gives all systems their turns for a number of rounds, so that
// disturbances affect all of them alike. Each round begins with another system,
// so that none always follows the same one.
func takeTurns(ctx context.Context, rounds int, turns []turn) error {
	for round := range rounds {
		for i := range turns {
			t := turns[(i+round)%len(turns)]
			if round%t.every != 0 {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := t.do(round); err != nil {
				return err
			}
		}
	}
	return nil
}

// order is the order of systems in reports.
var order = []string{baselineName, nativeName, execName, goCNIName}

// inOrder returns the systems in that order.
func inOrder(systems map[string]system) []system {
	var list []system
	for _, name := range order {
		if s, ok := systems[name]; ok {
			list = append(list, s)
		}
	}
	return list
}

// slow reports whether an operation of a system takes hundreds of milliseconds.
func slow(s system) bool { return slices.Contains([]string{execName, goCNIName}, s.name()) }

// lives are the times of a system's ADDs and DELs.
type lives struct{ adds, dels samples }

// live measures an ADD and the DEL of the same allocation.
func (l *lives) live(ctx context.Context, sys system, s *slot) error {
	if err := timed(&l.adds, func() error { return sys.add(ctx, s) }); err != nil {
		return err
	}
	return timed(&l.dels, func() error { return sys.del(ctx, s) })
}

// block measures a series of ADDs, then a series of DELs. After a single
// operation, and the wait of its DEL, the next one runs with cold caches: that
// would measure the machine's caches.
func (l *lives) block(ctx context.Context, sys system, slots []*slot) error {
	for _, s := range slots {
		if err := timed(&l.adds, func() error { return sys.add(ctx, s) }); err != nil {
			return err
		}
	}
	for _, s := range slots {
		if err := timed(&l.dels, func() error { return sys.del(ctx, s) }); err != nil {
			return err
		}
	}
	return nil
}

// spare is the number of slots that a measurement of single allocations cycles
// through.
const spare = 10

// liveTurns measures single allocations of systems in turns: a fast system runs
// some in a row, a slow one a single one. The first allocation of each, which
// creates the shared objects of the network, is not counted.
func liveTurns(ctx context.Context, systems []system, slots []*slot, z rounds) (map[string]*lives, error) {
	measured := map[string]*lives{}
	var turns []turn
	for _, sys := range systems {
		if err := (&lives{}).live(ctx, sys, slots[0]); err != nil {
			return nil, err
		}
		m := &lives{}
		measured[sys.name()] = m
		one := turn{1, func(int) error { return m.block(ctx, sys, slots) }}
		if slow(sys) {
			one = turn{max(1, z.slowEvery()/len(slots)), func(round int) error {
				return m.live(ctx, sys, slots[round%len(slots)])
			}}
		}
		turns = append(turns, one)
	}
	return measured, takeTurns(ctx, max(1, z.fast/len(slots)), turns)
}

// rounds are the numbers of samples of fast and slow systems.
type rounds struct{ fast, slow int }

func (r rounds) slowEvery() int { return max(1, r.fast/max(1, r.slow)) }
