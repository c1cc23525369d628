package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
)

// The measure of the processor time of an ADD on a routed network, of user and system:
// of this process with the library, and of allocnetd through its API and through the
// plugin. The time of the client and of the plugin does not count, except for pluginName,
// which is that of the plugin alone.
const (
	cpuTitle    = "CPU per ADD, ptp"
	apiName     = "allocnetd, API"
	throughName = "allocnetd, plugin"
	pluginName  = "the plugin itself"
)

// cpu measures the processor time of ADDs through the daemon, and of the same ADDs in this
// process.
func (b *bench) cpu(ctx context.Context) (err error) {
	b.progress("%s", cpuTitle)
	slots, err := b.slots(ctx, b.size.cpuLives)
	if err != nil {
		return err
	}
	library, err := b.newConfigured(ctx, b.newNetwork(nativeName, "ptp", false), nativeName, configurator.EngineNative)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, library.close(ctx)) }()
	dir, err := b.buildDaemon(ctx)
	if err != nil {
		return err
	}
	u, err := newPluginUser(b.newNetwork(daemonName, "ptp", false), dir, shimName, slots[0])
	if err != nil {
		return err
	}
	daemon, err := u.startDaemon(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, daemon.stop()) }()
	c := &cpuUsers{library: library, through: u, client: client.New(client.Config{Socket: u.file("sock")}), daemon: daemon}
	took, err := c.measure(ctx, slots, b.size.cpuBlocks)
	if err != nil {
		return err
	}
	for _, name := range []string{nativeName, apiName, throughName, pluginName} {
		b.report.add(cpuTitle, name, seconds, took[name])
	}
	return nil
}

// cpuUsers set up the same allocations in three ways.
type cpuUsers struct {
	library *configured
	through *pluginUser
	client  *client.Client
	daemon  *running
}

// measure lets the users take turns. The first turn of each is not counted.
func (c *cpuUsers) measure(ctx context.Context, slots []*slot, blocks int) (map[string]samples, error) {
	took := map[string]samples{}
	add := func(ctx context.Context, s *slot) error {
		a := configurator.Allocation{ID: s.id, Netns: s.netns, Networks: []string{c.through.network}, Ports: s.ports()}
		_, err := c.client.Setup(ctx, a)
		return err
	}
	plugin := func(run func(*pluginUser, context.Context, string) error) func(context.Context, *slot) error {
		return func(ctx context.Context, s *slot) error {
			one, err := c.through.with(s)
			if err != nil {
				return err
			}
			return run(one, ctx, s.id)
		}
	}
	remove := func(ctx context.Context, s *slot) error {
		return c.client.Teardown(ctx, configurator.Allocation{ID: s.id, Wait: true})
	}
	turns := []turn{
		{1, func(int) error {
			return cpuBlock(ctx, slots, c.library.add, c.library.del, map[clock]func(float64){ownClock: into(took, nativeName)})
		}},
		{1, func(int) error {
			return errors.Join(cpuBlock(ctx, slots, add, remove, map[clock]func(float64){c.daemon.clock(): into(took, apiName)}), c.through.settle(ctx))
		}},
		{1, func(int) error {
			return errors.Join(cpuBlock(ctx, slots, plugin((*pluginUser).add), plugin((*pluginUser).del), map[clock]func(float64){
				c.daemon.clock(): into(took, throughName), childrenClock: into(took, pluginName),
			}), c.through.settle(ctx))
		}},
	}
	if err := takeTurns(ctx, blocks+1, turns); err != nil {
		return nil, err
	}
	for name := range took {
		took[name] = took[name][1:]
	}
	return took, nil
}

func into(all map[string]samples, name string) func(float64) {
	return func(v float64) { all[name] = append(all[name], v) }
}

// cpuBlock adds a series of allocations, gives the time that passed on each clock meanwhile,
// per allocation, to its function, and removes them.
func cpuBlock(ctx context.Context, slots []*slot, add, del func(context.Context, *slot) error, took map[clock]func(float64)) error {
	before := map[clock]time.Duration{}
	for c := range took {
		var err error
		if before[c], err = c.read(); err != nil {
			return err
		}
	}
	for _, s := range slots {
		if err := add(ctx, s); err != nil {
			return err
		}
	}
	for c, give := range took {
		now, err := c.read()
		if err != nil {
			return err
		}
		give((now - before[c]).Seconds() / float64(len(slots)))
	}
	return atOnce(fillAtOnce, slots, func(s *slot) error { return del(ctx, s) })
}

// clock is a clock of processor time: one of clock_gettime, or childrenClock.
type clock int32

const (
	ownClock clock = unix.CLOCK_PROCESS_CPUTIME_ID
	// childrenClock is that of the children of this process that have ended.
	childrenClock clock = -1 << 31
)

// clockOf returns the clock of a process: clock_getcpuclockid(3).
func clockOf(pid int) clock { return clock(^pid<<3 | 2) }

func (c clock) read() (time.Duration, error) {
	if c == childrenClock {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &u); err != nil {
			return 0, fmt.Errorf("read processor time of children: %w", err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
	}
	var t unix.Timespec
	if err := unix.ClockGettime(int32(c), &t); err != nil {
		return 0, fmt.Errorf("read processor time: %w", err)
	}
	return time.Duration(t.Nano()), nil
}
