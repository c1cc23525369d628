package configurator

import (
	"context"
	"sync"
)

// concurrency is the number of allocations that GC and Recover work on at a time. The kernel
// deletes links in batches, so concurrent removals share one wait. A higher number makes
// other clients wait longer.
const concurrency = 32

// outcome is the result of an operation on one of many allocations.
type outcome struct {
	id string
	// done reports that the allocation was removed or repaired.
	done bool
	err  error
}

// each runs do for the allocations, atOnce of them at a time, and returns the outcomes in the
// order of the IDs. When the context ends, it starts no further operation, and returns the
// outcomes of those that it has started.
func each(ctx context.Context, atOnce int, ids []string, do func(id string) (done bool, err error)) []outcome {
	outcomes := make([]outcome, len(ids))
	places := make(chan struct{}, atOnce)
	var running sync.WaitGroup
	begun := 0
	for ; begun < len(ids); begun++ {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		o := &outcomes[begun]
		o.id = ids[begun]
		running.Go(func() {
			o.done, o.err = do(o.id)
			<-places
		})
	}
	running.Wait()
	return outcomes[:begun]
}
