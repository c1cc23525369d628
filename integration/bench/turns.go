package main

import (
	"context"
	"slices"
)

// turn is what one system does in a round of a measurement.
type turn struct {
	// every is in how many rounds it has one turn: slow systems take fewer.
	every int
	do    func(round int) error
}

// takeTurns lets all have their turns for some rounds, so that what disturbs
// the machine hits all alike. Each round begins with the next one, so that
// nobody always comes after the same.
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

// order is the order in which systems stand in reports.
var order = []string{baselineName, nativeName, execName, goCNIName}

// inOrder are the systems that there are.
func inOrder(systems map[string]system) []system {
	var list []system
	for _, name := range order {
		if s, ok := systems[name]; ok {
			list = append(list, s)
		}
	}
	return list
}

// slow reports whether a system takes hundreds of milliseconds.
func slow(s system) bool { return slices.Contains([]string{execName, goCNIName}, s.name()) }

// lives are the times of ADDs and DELs of one system.
type lives struct{ adds, dels samples }

// live measures an ADD and the DEL of the same allocation.
func (l *lives) live(ctx context.Context, sys system, s *slot) error {
	if err := timed(&l.adds, func() error { return sys.add(ctx, s) }); err != nil {
		return err
	}
	return timed(&l.dels, func() error { return sys.del(ctx, s) })
}

// block measures ADDs one after the other, then DELs one after the other. After
// a single operation, and the wait of its DEL, whatever comes next runs cold:
// that would measure the machine's caches.
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

// spare is how many slots a measurement of single allocations uses by turns.
const spare = 10

// liveTurns measures single allocations of systems, in turns: of a fast system
// some in a row, of a slow one each by itself. A first one of each, which makes
// what the network itself has, is not counted.
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
