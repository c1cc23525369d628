package bench

import (
	"context"
	"errors"
	"runtime"
)

const memoryTitle = "heap per live allocation"

// heap measures the heap that a live allocation occupies in the embedding
// process.
func (b *bench) heap(ctx context.Context) error {
	slots, err := b.slots(ctx, b.size.heap)
	if err != nil {
		return err
	}
	b.progress("heap of %d allocations", len(slots))
	systems, err := b.openAll(ctx, "bridge", false, nativeName)
	if err != nil {
		return err
	}
	for _, sys := range inOrder(systems) {
		if err := (&lives{}).live(ctx, sys, slots[0]); err != nil {
			return err
		}
		before := liveHeap()
		if err := fill(ctx, sys, slots); err != nil {
			return err
		}
		used := float64(liveHeap()) - float64(before)
		b.report.add(memoryTitle, sys.name(), memory, samples{used / float64(len(slots))})
		if err := drain(ctx, sys, slots); err != nil {
			return err
		}
	}
	return errors.Join(closeAll(ctx, systems))
}

// liveHeap returns the bytes in use after a garbage collection. A second
// collection empties the pools of package sync.
func liveHeap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
