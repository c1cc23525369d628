package configurator

import (
	"context"
	"sync"
)

// together is how many allocations GC and Recover work on at a time. The
// kernel deletes links that leave at the same time in one transaction, whose wait
// they share; more at once add to the wait of the clients beside them.
const concurrency = 32

// outcome is what became of one allocation of many.
type outcome struct {
	id string
	// done says that it was removed.
	done bool
	err  error
}

// each runs do for the allocations, c.concurrency of them at a time, and returns the
// outcomes in the order of the IDs. Once the context has ended it begins no more,
// and leaves out those that it has not begun.
func (c *Configurator) each(ctx context.Context, ids []string, do func(id string) (done bool, err error)) []outcome {
	outcomes := make([]outcome, len(ids))
	places := make(chan struct{}, c.concurrency)
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
