package configurator

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/allocnet/allocnet/internal/exhausted"
	"github.com/allocnet/allocnet/internal/netlink/watch"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/sandbox"
)

// Pool configures the preparation of network namespaces for one network: each has its
// interface, addresses, routes and rules, but no name and no host ports. All plugins of the
// network must be native: loopback, bridge or ptp with host-local, firewall, portmap, routes,
// policy, and bandwidth without limits of the network. A prepared namespace is used for one
// allocation only, whose container ID is then not its ID: see Record.ContainerID.
//
// A prepared namespace needs an address of the network, three descriptors and some 400 KB of
// kernel memory. It has a record, but List does not show it. It disappears with the process;
// Recover or GC of another one then remove its record and its lease.
type Pool struct {
	Network string // "" is the default network
	Size    int    // number of prepared namespaces; 0 for none
}

// PoolStatus is the state of a pool.
type PoolStatus struct {
	Network string
	Size    int
	// Ready is the number of prepared namespaces.
	Ready int
	// Taken counts Setups that got a prepared namespace, Dry counts Setups that found the
	// pool empty. Discarded counts the prepared namespaces that were destroyed
	// without being used: because the network's configuration has changed, because
	// another program has removed something of them, because a Setup needed their
	// addresses, because the process or the host had no descriptor, memory or network
	// namespace left, or because the pool was closed.
	Taken, Dry, Discarded uint64
	// Err is why the last namespace could not be prepared; nil if it could.
	Err error
}

const (
	// MaxPool is the maximum Size of a Pool.
	MaxPool = 4096
	// fillers is the number of namespaces that a pool prepares at a time.
	fillers = 2
	// drainPoll is how often a pool looks for a changed configuration.
	drainPoll = time.Second
	// takeQuietTime is how long no slot must be taken before others are prepared, unless
	// few are left.
	takeQuietTime = 2 * time.Millisecond
	// fillRetry is the pause after a namespace could not be prepared. It doubles each
	// time, up to maxFillRetry.
	fillRetry    = time.Second
	maxFillRetry = time.Minute
)

// openPools starts the pools of the Config.
func (c *Configurator) openPools() error {
	for _, one := range c.cfg.Pools {
		if one.Size == 0 {
			continue
		}
		if c.monitor == nil {
			c.openMonitor()
		}
		p := &pool{Pool: one, wake: make(chan struct{}, 1), tend: make(chan struct{}, 1)}
		var err error
		if p.key, p.unlock, err = c.store.LockPool(); err != nil {
			return errors.Join(fmt.Errorf("pool of network %q: %w", one.Network, err), c.ClosePools())
		}
		var ctx context.Context
		ctx, p.stop = context.WithCancel(context.Background())
		c.pools = append(c.pools, p)
		for range fillers {
			p.ended.Go(func() { c.fill(ctx, p) })
		}
		p.ended.Go(func() { c.watchPool(ctx, p) })
	}
	return nil
}

// openMonitor starts to listen to changes of other programs. Without notifications, every
// take looks at what the host has for its slot.
func (c *Configurator) openMonitor() {
	monitor, err := watch.NewMonitor()
	if err != nil {
		c.cfg.Logger.Warn("changes of other programs are not noticed, so allocations take longer to start from a pool", "error", err)
		return
	}
	c.monitor = monitor
}

// ClosePools stops the pools and removes the prepared network namespaces that no allocation
// has taken. Close does the same. ClosePools may be called while operations run, which then
// make their network namespaces themselves; a Setup that has one of a pool keeps it.
func (c *Configurator) ClosePools() error {
	var errs []error
	for _, p := range c.pools {
		if !p.close() {
			continue
		}
		p.stop()
		p.ended.Wait()
		errs = append(errs, c.discard(p, p.drain()))
		p.unlockClosed()
	}
	if c.monitor != nil {
		errs = append(errs, c.monitor.Close())
	}
	return errors.Join(errs...)
}

// Pools returns the state of the pools, in the order of the Config.
func (c *Configurator) Pools() []PoolStatus {
	var list []PoolStatus
	for _, p := range c.pools {
		p.mu.Lock()
		s := p.status
		s.Network, s.Size, s.Ready = p.Network, p.Size, len(p.slots)
		p.mu.Unlock()
		list = append(list, s)
	}
	return list
}

// isSlot reports whether a record is that of a slot in a pool of a living process. One that is being
// removed is an allocation like others: if the removal fails, any process may continue it.
func (c *Configurator) isSlot(r *record.Record) bool {
	return r.Pool != "" && r.Phase != record.Deleting && c.store.PoolAlive(r.Pool)
}

// fill keeps the pool full until the context ends.
func (c *Configurator) fill(ctx context.Context, p *pool) {
	pause := fillRetry
	for p.awaitRoom(ctx) {
		since := c.room.moment()
		s, err := c.newSlot(ctx, p)
		if err == nil {
			s.survives = c.leasesSurvive(s.Networks[0])
			p.put(s)
			pause = fillRetry
			continue
		}
		p.giveUp(s, err)
		c.giveRoom(ctx, since, err) // for the Setups, which fail as well
		if ctx.Err() != nil {
			return
		}
		if c.warned.first("pool " + p.Network + " " + err.Error()) {
			c.cfg.Logger.Warn("a network namespace of the pool could not be prepared", "network", p.Network, "error", redact.Text(err.Error()))
		}
		_ = c.sleep(ctx, pause)
		pause = min(2*pause, maxFillRetry)
	}
}

// watchPool discards slots of former configurations of the network, and damaged ones. It tries again to
// remove those that could not be removed.
func (c *Configurator) watchPool(ctx context.Context, p *pool) {
	poll := time.NewTicker(drainPoll)
	defer poll.Stop()
	var again time.Time
	pause := fillRetry
	for ctx.Err() == nil {
		c.present() // reads the notifications, which would fill the buffer
		n, err := c.lookup(p.Network)
		old := p.takeIf(func(s *slot) bool { return err != nil && !exhausted.Is(err) || err == nil && !s.isOf(n) })
		if len(old) > 0 {
			c.cfg.Logger.Info("the configuration of the network has changed; discarding prepared network namespaces", "network", p.Network, "count", len(old))
		}
		damaged := slices.Concat(p.takeAll(&p.pending), c.damagedSlots(ctx, p))
		if len(damaged) > 0 {
			c.cfg.Logger.Warn("another program has changed something of prepared network namespaces; discarding them", "network", p.Network, "count", len(damaged))
		}
		var failed []*slot
		if time.Now().After(again) {
			failed = p.takeAll(&p.failed)
		}
		err = errors.Join(c.discard(p, slices.Concat(old, damaged)), c.discardAtOnce(p, failed, 1))
		if err != nil {
			c.warnNotRemoved(p, err)
			again = time.Now().Add(pause)
			pause = min(2*pause, maxFillRetry)
		} else if len(failed) > 0 {
			pause = fillRetry
		}
		select {
		case <-poll.C:
		case <-p.tend:
		case <-ctx.Done():
		}
	}
}

// damagedSlots runs CHECK of the slots if another program may have damaged them, and takes the damaged ones out of
// the pool. Meanwhile, the others can be taken.
func (c *Configurator) damagedSlots(ctx context.Context, p *pool) (damaged []*slot) {
	for _, s := range p.toCheck() {
		if !p.borrow(s) {
			continue // an allocation has it
		}
		if err := c.examine(ctx, s.Plan); errors.Is(err, ErrUnhealthy) {
			damaged = append(damaged, s)
		} else {
			p.giveBack(s)
		}
	}
	return damaged
}

// recheckSlots has the slots of all pools checked, because another program may have changed
// something.
func (c *Configurator) recheckSlots() {
	for _, p := range c.pools {
		p.mu.Lock()
		p.recheck = true
		p.mu.Unlock()
		notify(p.tend)
	}
}

// present returns the moment for slot.since.
func (c *Configurator) present() uint64 {
	if c.monitor == nil {
		return 0
	}
	return c.monitor.Now()
}

// isUnchanged reports whether nothing can have changed of what the host has for a slot since
// its ADD.
func (c *Configurator) isUnchanged(s *slot) bool {
	return c.monitor != nil && !c.monitor.Changed(s.since, s.prepared.Links)
}

// isOf reports whether a slot was made with the current configuration of a network.
func (s *slot) isOf(n *conflist.Network) bool {
	return s.Networks[0] == n || string(s.Networks[0].Bytes) == string(n.Bytes)
}

// planSlot makes the plan of a slot in a network namespace. It returns an error if the network
// cannot have a pool.
func (c *Configurator) planSlot(p *pool, ns *sandbox.Sandbox) (*slot, error) {
	var random [8]byte
	rand.Read(random[:]) // never fails
	a := &Allocation{ID: slotPrefix + hex.EncodeToString(random[:]), Netns: ns.ProcPath()}
	if p.Network != "" {
		a.Networks = []string{p.Network}
	}
	r, err := c.newRecord(a, nil)
	if err != nil {
		return nil, err
	}
	r.Pool, r.Sandbox = p.key, ns
	if r.Namespace, err = ns.Identity(); err != nil {
		return nil, err
	}
	s := &slot{Plan: &plan.Plan{Record: r}, sandbox: ns}
	if err := c.complete(s.Plan); err != nil {
		return nil, err
	}
	if len(s.Networks) != 1 {
		return nil, fmt.Errorf("%w: a pool is for one network, not %d", ErrInvalidConfig, len(s.Networks))
	}
	if err = c.native.CanPrepare(s.Networks[0]); err == nil && !c.runsInProcess(s.Plan) {
		err = fmt.Errorf("%w: engine %q runs plugins as binaries", ErrInvalidConfig, s.Engine)
	}
	if err != nil {
		return nil, cannotHavePool(s, err)
	}
	return s, nil
}

func cannotHavePool(s *slot, err error) error {
	return fmt.Errorf("network %q cannot have a pool: %w", s.Networks[0].Name, err)
}

// newSlot prepares a network namespace. It is an ordinary Setup without a name and without
// host ports. With an error, it returns the slot if something of it may be left, otherwise nil.
func (c *Configurator) newSlot(ctx context.Context, p *pool) (s *slot, err error) {
	since := c.present()
	ns, err := sandbox.New()
	if err != nil {
		return nil, err
	}
	if s, err = c.planSlot(p, ns); err == nil {
		s.since = since
		err = c.setUpSlot(ctx, s)
	}
	if err == nil || s != nil && c.store.Has(s.ID) {
		return s, err
	}
	return nil, errors.Join(err, ns.Close())
}

// setUpSlot records a slot and runs ADD. After an error nothing is left, except the network
// namespace, or the record is there.
func (c *Configurator) setUpSlot(ctx context.Context, s *slot) error {
	unlock, err := c.lock(ctx, s.ID)
	if err != nil {
		return err
	}
	defer unlock()
	release, err := c.lockNetworks(ctx, s.Record)
	if err != nil {
		return err
	}
	defer release()
	// No other allocation can have the namespace. So there is no conflict to look for, and
	// no Setup waits for the lock under which conflicts are looked for.
	if err := c.put(s.Record); err != nil {
		return err
	}
	// A namespace without a name needs no note. Written now, it costs the Setup only a
	// rename.
	note := record.Sandbox{Path: c.cfg.NetnsDir + "/", Identity: s.Namespace, Container: s.ID}
	if err := c.netns.Add(s.ID, note); err != nil {
		return errors.Join(err, c.deleteRecord(s.ID))
	}
	if _, err = c.addWithRetries(ctx, s.Plan); err != nil {
		return errors.Join(err, c.store.PutSandboxes(s.ID, nil))
	}
	s.Phase = record.Ready // for this process: all that the slot has is known
	if s.request, err = c.request(s.Plan); err == nil {
		s.prepared, err = c.native.Prepared(ctx, s.request)
	}
	switch {
	case err != nil && ctx.Err() != nil: // the pool was closed
		err = fmt.Errorf("look at what was prepared: %w", ctx.Err())
	case err != nil:
		err = cannotHavePool(s, err)
	default:
		s.file, err = c.store.OpenSlot(s.ID)
	}
	if err != nil {
		return errors.Join(err, c.undo(ctx, s.Plan), c.store.PutSandboxes(s.ID, nil))
	}
	return nil
}

// putBack returns a slot that was not used after all. It discards the slot if the pools were
// closed meanwhile.
func (c *Configurator) putBack(p *pool, s *slot) {
	if p.putBack(s) {
		return
	}
	if err := c.discard(p, []*slot{s}); err != nil {
		c.warnNotRemoved(p, err)
	}
}

func (c *Configurator) warnNotRemoved(p *pool, err error) {
	c.cfg.Logger.Warn("prepared network namespaces could not be removed; the pool tries again", "network", p.Network, "error", redact.Text(err.Error()))
}

// discard removes slots that the caller has taken out of the pool. The pool keeps those that it cannot
// remove.
func (c *Configurator) discard(p *pool, slots []*slot) error {
	return c.discardAtOnce(p, slots, c.concurrency)
}

// discardAtOnce is discard of a number of slots at a time. A process that is exhausted can remove one.
func (c *Configurator) discardAtOnce(p *pool, slots []*slot, atOnce int) error {
	byID := map[string]*slot{}
	for _, s := range slots {
		byID[s.ID] = s
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	remove := func(id string) (bool, error) {
		err := c.removeSlot(ctx, byID[id])
		if err == nil {
			p.removed()
		}
		return true, err
	}
	var errs []error
	for _, o := range each(ctx, atOnce, slices.Sorted(maps.Keys(byID)), remove) {
		if o.err == nil {
			delete(byID, o.id)
		}
		errs = append(errs, about(o.id, o.err))
	}
	if len(byID) > 0 {
		errs = append(errs, ctx.Err()) // some removals may not have begun
	}
	p.notRemoved(slices.Collect(maps.Values(byID)))
	return errors.Join(errs...)
}

// yieldSlots discards the slots of a plan's networks, for their addresses and ports of bridges. It
// reports whether there were any. The pools prepare no others for a while.
func (c *Configurator) yieldSlots(p *plan.Plan) (yielded bool) {
	if p.Pool != "" {
		return false
	}
	for _, pool := range c.pools {
		slots := pool.yield(func(s *slot) bool {
			return slices.ContainsFunc(p.Attachments, func(a record.Attachment) bool { return a.Network == s.Attachments[0].Network })
		})
		if len(slots) == 0 {
			continue
		}
		yielded = true
		if err := c.discard(pool, slots); err != nil {
			c.warnNotRemoved(pool, err)
		}
	}
	return yielded
}

// removeSlot removes a slot. Its network namespace disappears with the last descriptor.
func (c *Configurator) removeSlot(ctx context.Context, s *slot) error {
	unlock, err := c.lock(ctx, s.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := c.store.Get(s.ID); errors.Is(err, fs.ErrNotExist) {
		s.Phase = record.Deleting // another operation may have released its addresses
	}
	err = errors.Join(c.remove(ctx, s.Plan), c.store.PutSandboxes(s.ID, nil))
	s.Sandbox = nil
	return errors.Join(err, s.close())
}
