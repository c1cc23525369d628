package testbed

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/sandbox"
)

// pools makes a host take the network namespaces of its allocations from pools. There is one
// pool for each network that allocations request alone.
type pools struct {
	h        *Host
	bypasses bool

	mu    sync.Mutex
	size  int
	open  []configurator.Pool
	never map[string]bool                     // networks that cannot have a pool
	mine  map[*configurator.Configurator]bool // those of the tests have no pools
	ids   []string                            // of the allocations
	ready bool                                // whether there was a slot for a Setup
	taken uint64
	fresh map[string][]func() // what to run in new namespaces, by ID
}

// poolSize is small, so that a network with few addresses still has some for others.
const poolSize = 2

// usePools makes the host use pools if the test is to run with them.
func (h *Host) usePools() {
	test, pooled := contractOf(h.T)
	if !pooled || h.Config.Engine == configurator.EngineExec {
		return
	}
	p := &pools{h: h, bypasses: test.Bypasses, size: poolSize, never: map[string]bool{}, mine: map[*configurator.Configurator]bool{h.Configurator: true}, fresh: map[string][]func(){}}
	h.pools = p
	h.T.Cleanup(func() {
		p.close()
		if !h.T.Failed() && p.ready && !p.bypasses {
			require.Positive(h.T, p.taken, "no allocation was taken from a pool")
		}
	})
}

// WithoutPools makes the host use no pools.
func (h *Host) WithoutPools() { h.pools = nil }

// alloc returns an allocation whose namespace Setup makes.
func (p *pools) alloc(id string) configurator.Allocation {
	p.ids = append(p.ids, id)
	return configurator.Allocation{ID: id, Netns: filepath.Join(sandbox.DefaultDir, id), OwnNetns: true}
}

// InNew runs a function now if the namespace of the allocation exists, and otherwise after
// every Setup that makes it.
func (h *Host) InNew(a configurator.Allocation, do func()) {
	if h.pools == nil {
		do()
		return
	}
	h.pools.mu.Lock()
	defer h.pools.mu.Unlock()
	h.pools.fresh[a.ID] = append(h.pools.fresh[a.ID], do)
}

// Setup is that of the configurator. In a test with pools, it waits for a slot first.
func (h *Host) Setup(ctx context.Context, a configurator.Allocation) (*configurator.Status, error) {
	if h.pools == nil || !a.OwnNetns {
		return h.Configurator.Setup(ctx, a)
	}
	h.useSlot(a)
	s, err := h.Configurator.Setup(ctx, a)
	if err == nil && s.Created {
		h.pools.mu.Lock()
		do := h.pools.fresh[a.ID]
		h.pools.mu.Unlock()
		for _, f := range do {
			f()
		}
	}
	return s, err
}

// Container returns the container ID of an allocation that is set up. An allocation from a pool
// has that of its slot.
func (h *Host) Container(a configurator.Allocation) string {
	h.T.Helper()
	r, err := h.Get(h.Context(), a.ID)
	require.NoError(h.T, err)
	return cmp.Or(r.ContainerID, a.ID)
}

// useSlot waits until there is a slot for an allocation, unless there cannot be one.
func (h *Host) useSlot(a configurator.Allocation) {
	h.T.Helper()
	p := h.pools
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mine[h.Configurator] {
		return
	}
	p.prepare(a)
	if h.Configurator != p.h.Configurator {
		h.Configurator = p.h.Configurator
	}
}

// WithoutSlots removes the slots until the next Setup.
func (h *Host) WithoutSlots() {
	h.T.Helper()
	if p := h.pools; p != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.closeLocked()
		p.open = nil
	}
}

// OneSlot makes the pools have one slot at a time.
func (h *Host) OneSlot() {
	if h.pools != nil {
		h.pools.size = 1
	}
}

// prepare waits until the pool for an allocation has a slot, or cannot have one.
func (p *pools) prepare(a configurator.Allocation) {
	p.h.T.Helper()
	networks := slices.Concat(a.Networks, p.h.Config.Networks)
	if len(a.Networks) > 1 || len(a.Networks) == 0 && len(networks) > 1 || len(a.Conflists) > 0 {
		return
	}
	name := p.h.Config.Network
	if len(networks) > 0 {
		name = networks[0]
	}
	if p.never[name] {
		return
	}
	of := configurator.Pool{Network: name, Size: p.size}
	if !slices.Contains(p.open, of) {
		p.reopen(append(p.open, of))
	}
	require.Eventually(p.h.T, func() bool {
		for _, s := range p.h.Pools() {
			if s.Network == name {
				p.ready = p.ready || s.Ready > 0
				p.never[name] = s.Ready == 0 && s.Err != nil && strings.Contains(s.Err.Error(), "cannot have a pool")
				return s.Ready > 0 || s.Err != nil
			}
		}
		return false
	}, 20*time.Second, time.Millisecond, "no slot")
	if p.never[name] { // its attempts would be in the way of the test
		p.reopen(slices.DeleteFunc(slices.Clone(p.open), func(one configurator.Pool) bool { return one == of }))
	}
}

// reopen makes a new configurator with the given pools.
func (p *pools) reopen(open []configurator.Pool) {
	p.h.T.Helper()
	p.closeLocked()
	p.open = open
	cfg := p.h.Config
	cfg.Pools = p.open
	var err error
	p.h.Configurator, err = configurator.New(cfg)
	require.NoError(p.h.T, err)
	p.mine[p.h.Configurator] = true
}

// close removes the slots that no allocation has taken.
func (p *pools) close() {
	p.h.T.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closeLocked()
	for _, id := range p.ids {
		path := filepath.Join(sandbox.DefaultDir, id)
		if _, err := os.Lstat(path); err == nil { // the test had the network alone removed
			require.NoError(p.h.T, p.h.Teardown(context.Background(), configurator.Allocation{ID: id, OwnNetns: true, Wait: true}))
			require.NoError(p.h.T, sandbox.Destroy(path))
		}
	}
}

func (p *pools) closeLocked() {
	p.h.T.Helper()
	for _, s := range p.h.Pools() {
		p.taken += s.Taken
	}
	require.NoError(p.h.T, p.h.Configurator.Close())
}
