package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/allocnet/allocnet/configurator"
)

// pooledName is the native engine with a pool of prepared network namespaces.
const pooledName = "pooled"

func takeTitle(kind string) string { return "ADD with a new namespace, " + kind }

func pacedTitle(kind string) string { return "ADD from a pool, 200 per second, " + kind }

// pacedWorstTitle is the time within which 99 of 100 of them end.
func pacedWorstTitle(kind string) string { return pacedTitle(kind) + ", P99" }

func refillTitle(kind string) string { return "refill of a pool, " + kind }

// take measures Setups that also make the network namespace: from a pool, and without one.
// The baseline is the ADD in a namespace that exists.
func (b *bench) take(ctx context.Context) error {
	slots, err := b.slots(ctx, spare)
	if err != nil {
		return err
	}
	for _, kind := range b.size.kinds {
		if err := b.takeOf(ctx, slots, kind); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) takeOf(ctx context.Context, slots []*slot, kind string) (err error) {
	b.progress("pool: %s", kind)
	systems, err := b.openAll(ctx, kind, false, baselineName, execName)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeAll(ctx, systems)) }()
	n := b.newNetwork(pooledName, kind, false)
	const size = 64
	pooled, err := b.newConfigured(ctx, n, pooledName, configurator.EngineNative, func(c *configurator.Config) {
		c.Pools = []configurator.Pool{{Network: n.name, Size: size}}
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pooled.Close(), pooled.close(ctx)) }()
	p := &pooledUser{configured: pooled, size: size}
	bare, err := newBareTaker(systems[baselineName].(*baseline))
	if err != nil {
		return err
	}
	calls, err := newBareCalls(bare)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, calls.close()) }()
	adds := map[string]*samples{baselineName: {}, execName: {}, pooledName: {}, bareName: {}, callsName: {}}
	var turns []turn
	for name, sys := range systems {
		every := 1
		if slow(sys) {
			every = b.size.life.slowEvery()
		}
		mine := slots
		if slow(sys) {
			mine = slots[:1]
		}
		turns = append(turns, turn{max(1, every/len(slots)), func(int) error { return addBlock(ctx, sys, mine, adds[name]) }})
	}
	turns = append(turns,
		turn{1, func(int) error { return p.block(ctx, slots, adds[pooledName]) }},
		turn{1, func(int) error { return bare.block(ctx, slots, adds[bareName]) }},
		turn{1, func(int) error { return calls.block(ctx, slots, adds[callsName]) }})
	if err := takeTurns(ctx, max(1, b.size.life.fast/len(slots)), turns); err != nil {
		return err
	}
	for _, name := range []string{baselineName, bareName, callsName, pooledName, execName} {
		b.report.add(takeTitle(kind), name, seconds, *adds[name])
	}
	return b.pace(ctx, p, kind)
}

// pace measures Setups from the pool at a fixed rate, and how fast the pool is filled again.
func (b *bench) pace(ctx context.Context, p *pooledUser, kind string) error {
	paced, err := p.paced(ctx, b.size.paced)
	if err != nil {
		return err
	}
	b.report.add(pacedTitle(kind), pooledName, seconds, paced)
	b.report.add(pacedWorstTitle(kind), pooledName, seconds, samples{paced.quantile(0.99)})
	refill, err := p.refill(ctx, p.size/2)
	if err != nil {
		return err
	}
	b.report.add(refillTitle(kind), pooledName, rate, refill)
	return nil
}

// pooledUser takes allocations from a pool.
type pooledUser struct {
	*configured
	size int
}

// addBlock measures ADDs in a row, and removes the allocations: see lives.block.
func addBlock(ctx context.Context, sys system, slots []*slot, m *samples) error {
	for _, s := range slots {
		if err := timed(m, func() error { return sys.add(ctx, s) }); err != nil {
			return err
		}
	}
	return atOnce(len(slots), slots, func(s *slot) error { return sys.del(ctx, s) })
}

// block measures Setups in a row from a full pool, and removes the allocations.
func (p *pooledUser) block(ctx context.Context, slots []*slot, m *samples) error {
	if err := p.full(ctx); err != nil {
		return err
	}
	allocation := func(s *slot) configurator.Allocation {
		return configurator.Allocation{ID: "pooled-" + s.id, OwnNetns: true, Ports: s.ports(), Wait: true}
	}
	for _, s := range slots {
		if err := timed(m, func() error { return p.setup(ctx, allocation(s)) }); err != nil {
			return err
		}
	}
	return atOnce(len(slots), slots, func(s *slot) error { return p.Teardown(ctx, allocation(s)) })
}

// full waits until the pool is full.
func (p *pooledUser) full(ctx context.Context) error {
	for p.Pools()[0].Ready < p.size {
		if err := ctx.Err(); err != nil {
			return err
		}
		time.Sleep(100 * time.Microsecond)
	}
	return nil
}

// paced measures n Setups at 200 per second, each followed by a Teardown in the background.
func (p *pooledUser) paced(ctx context.Context, n int) (samples, error) {
	const interval = time.Second / 200
	var m samples
	var torn []chan error
	begin, dry := time.Now(), p.Pools()[0].Dry
	for i := range n {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * interval)))
		a := configurator.Allocation{ID: fmt.Sprint("paced-", i), OwnNetns: true}
		if err := timed(&m, func() error { return p.setup(ctx, a) }); err != nil {
			return nil, err
		}
		done := make(chan error, 1)
		torn = append(torn, done)
		go func() { done <- p.Teardown(ctx, a) }()
	}
	var errs []error
	for _, done := range torn {
		errs = append(errs, <-done)
	}
	if now := p.Pools()[0].Dry; now > dry {
		errs = append(errs, fmt.Errorf("the pool was dry %d times", now-dry))
	}
	return m, errors.Join(errs...)
}

// refill takes n slots at once and measures the rate at which the pool prepares others.
func (p *pooledUser) refill(ctx context.Context, n int) (samples, error) {
	if err := p.full(ctx); err != nil {
		return nil, err
	}
	var all []configurator.Allocation
	for i := range n {
		a := configurator.Allocation{ID: fmt.Sprint("refill-", i), OwnNetns: true}
		if err := p.setup(ctx, a); err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	begin := time.Now()
	missing := p.size - p.Pools()[0].Ready
	if err := p.full(ctx); err != nil {
		return nil, err
	}
	m := samples{float64(missing) / time.Since(begin).Seconds()}
	for _, a := range all {
		a.Wait = true
		if err := p.Teardown(ctx, a); err != nil {
			return nil, err
		}
	}
	return m, nil
}
