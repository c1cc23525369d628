package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// slot is a sandbox and the parameters of its allocation. Every system can use
// every slot, one after the other.
type slot struct {
	index     int
	id, netns string
}

const (
	firstPort     = 20000
	containerPort = 80
)

// as returns the same slot for an allocation with another ID.
func (s *slot) as(id string) *slot { return &slot{index: s.index, id: id, netns: s.netns} }

func (s *slot) hostPort() uint16 { return uint16(firstPort + s.index) }

func (s *slot) ports() []portmap.Port {
	return []portmap.Port{{Label: "http", Value: int(s.hostPort()), To: containerPort}}
}

// mac returns a MAC that only this slot has.
func (s *slot) mac(end byte) [6]byte {
	return [6]byte{2, 0xbe, end, 0, byte(s.index >> 8), byte(s.index)}
}

// pool creates sandboxes when they are first requested, and keeps them until
// the end of the run: the kernel would destroy them in the background of later
// measurements.
type pool struct{ all []*slot }

// slots returns the first n slots.
func (p *pool) slots(ctx context.Context, n int) ([]*slot, error) {
	from := len(p.all)
	for i := from; i < n; i++ {
		id := fmt.Sprintf("bench-%d", i)
		p.all = append(p.all, &slot{index: i, id: id, netns: filepath.Join(sandbox.DefaultDir, id)})
	}
	err := atOnce(4, p.all[min(from, n):n], func(s *slot) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		made, err := sandbox.Create(s.id)
		if err != nil {
			return err
		}
		return errors.Join(made.Do(hush), made.Close())
	})
	if err != nil {
		return nil, fmt.Errorf("make sandboxes: %w", err)
	}
	return p.all[:n], nil
}

// hush stops the sandboxes' future links from soliciting routers, which on a
// bridge reaches every other sandbox.
func hush() error {
	return os.WriteFile("/proc/sys/net/ipv6/conf/default/router_solicitations", []byte("0"), 0o644)
}

// atOnce calls f for every slot, in at most workers goroutines, and joins the
// errors.
func atOnce(workers int, slots []*slot, f func(*slot) error) error {
	work := make(chan *slot)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for s := range work {
				errs[i] = errors.Join(errs[i], f(s))
			}
		})
	}
	for _, s := range slots {
		work <- s
	}
	close(work)
	wg.Wait()
	return errors.Join(errs...)
}
