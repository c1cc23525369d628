package configurator

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/cniexec"
	"github.com/allocnet/allocnet/internal/engine/native"
	"github.com/allocnet/allocnet/internal/netlink/watch"
	"github.com/allocnet/allocnet/internal/state/boot"
	"github.com/allocnet/allocnet/internal/state/bridges"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/journal"
	"github.com/allocnet/allocnet/internal/state/netns"
	"github.com/allocnet/allocnet/internal/state/policystate"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/state/statedir"
	"github.com/allocnet/allocnet/internal/state/switches"
	"github.com/allocnet/allocnet/internal/subnets"
)

var _ Service = (*Configurator)(nil)

// Configurator sets up and removes the networks of allocations. It is safe for concurrent
// use, also by several processes with the same StateDir. Operations on the same allocation
// run one after the other; operations on different allocations run concurrently.
type Configurator struct {
	cfg      Config
	confs    *conflist.Dir
	store    *record.Store
	policies *policystate.Store
	netns    *netns.Notes
	// processTag identifies plugin processes of this state directory: an entry of their
	// CNI_PATH.
	processTag string
	// instance is part of the owner of every object that is created in the kernel;
	// formerInstances are the instances that older versions derived from the same
	// directory, and the one that allocnet's plugin binaries had.
	instance        string
	formerInstances []string

	exec   engine.Engine
	native nativeEngine
	// steps runs binaries one by one for allocations that go-cni does not support; see
	// inSteps.
	steps engine.Engine
	// ownsHost caches that the capabilities of the process are valid on the host.
	ownsHost  atomic.Bool
	teardowns *teardownCache
	backlog   *backlog
	pools     []*pool
	room      room
	monitor   *watch.Monitor // nil without pools

	journal *journal.Journal // nil for none
	warned  *loggedOnce
	engines *lastEngines

	switches *switches.Store
	quietMu  sync.Mutex
	quiet    *time.Timer // after which the switches are set back; nil if nothing was removed
	bridges  *bridges.Store
	prefixes hostPrefixes
	kept     atomic.Bool // the subnets of the embedded network

	// Tests replace these.
	boot         func() (string, error) // the ID of this boot of the host
	now          func() time.Time
	jitter       func(most time.Duration) time.Duration
	sleep        sleeper
	gcTimeout    time.Duration
	forceTimeout time.Duration
	concurrency  int
	checks       int // CHECKs at a time of Repair
}

// New makes a Configurator. ConfDir and StateDir need not exist: the first Setup creates
// StateDir, and each lookup of a network reads ConfDir. Errors are
// ErrInvalidConfig. The caller closes the Configurator when it is no longer used.
func New(cfg Config) (*Configurator, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	// From here on, only the resolved path is used.
	state, err := statedir.Resolve(cfg.StateDir)
	if err != nil {
		return nil, fmt.Errorf("%w: StateDir: %w", ErrInvalidConfig, err)
	}
	spelt := cfg.StateDir
	cfg.StateDir = state.Path
	history := cfg.openJournal()
	confs, err := cfg.configurations()
	if err != nil {
		return nil, err
	}
	policies := policystate.New(filepath.Join(cfg.StateDir, "policies"))
	changed, created := switches.In(cfg.StateDir), bridges.In(cfg.StateDir)
	plugins := native.New(cfg.Logger, state.Instance).LongLived(!cfg.OneShot).WithPolicies(policies).
		RecordRulesIn(filepath.Join(cfg.StateDir, "forwarding")).RecordHostIn(changed, created)
	c := &Configurator{
		cfg:        cfg,
		confs:      confs,
		store:      record.Open(cfg.StateDir),
		policies:   policies,
		switches:   changed,
		bridges:    created,
		processTag: engine.ProcessTag(state.Key),

		instance:        state.Instance,
		formerInstances: []string{statedir.FormerInstance(state.Path), statedir.FormerInstance(spelt), ""},

		exec:   cniexec.Engine{},
		native: plugins,
		steps:  native.NewForBinaries(cfg.Logger, state.Instance),

		teardowns: new(teardownCache),
		backlog:   newBacklog(cfg.Backlog),
		room:      room{pause: roomPause},

		journal: history,
		warned:  new(loggedOnce),
		engines: new(lastEngines),

		boot:   boot.ID,
		now:    time.Now,
		jitter: randomJitter,
		sleep:  sleep,

		gcTimeout:    gcTimeout,
		forceTimeout: forceTimeout,
		concurrency:  concurrency,
		checks:       runtime.GOMAXPROCS(0),
	}
	c.openBoot(plugins)
	if err := c.openPools(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// openBoot makes the stores whose content belongs to one boot of the host, and names that boot to them.
func (c *Configurator) openBoot(plugins *native.Engine) {
	current := func() (string, error) { return c.boot() }
	c.netns = &netns.Notes{Store: c.store, Dir: c.cfg.NetnsDir, Boot: current, Lock: c.lock}
	c.store.InBoot(current)
	plugins.InBoot(current)
}

// embedded returns the options of the embedded network.
func (c *Config) embedded() conflist.EmbeddedOptions {
	return conflist.EmbeddedOptions{
		StateDir: c.StateDir, Subnets: c.Subnets, SubnetsFrom: c.SubnetsFrom, Routes: conflist.EmbeddedRoutes(c.Routes), Policy: c.Policy, ForBinaries: c.Engine == EngineExec,
	}
}

// configurations returns the network configurations of ConfDir and the embedded ones.
func (c *Config) configurations() (*conflist.Dir, error) {
	confs, err := subnets.Networks(c.ConfDir, c.embedded())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	if c.Engine != EngineExec {
		confs.Resolving()
	}
	return confs, nil
}

// Close waits for the removals that Teardown has left to the background, at most 10 seconds.
// If some are left then, it returns an error; Recover finishes them. If no allocation is left, it sets the switches of
// the host back that a Setup has changed. Close then closes the
// netlink sockets of the Configurator; the garbage collector does so for one that is not closed.
// Unless Config.OneShot is set, Close releases the guard that the process holds, if no other
// Configurator of the process is left that has been made and not closed. Close does not change
// any other allocation. Call it when no operation is running any more. A later operation opens
// sockets again.
func (c *Configurator) Close() error {
	errs := []error{c.ClosePools(), c.backlog.close()}
	c.stopQuiet()
	for _, e := range []engine.Engine{c.native, c.steps} {
		if held, ok := e.(io.Closer); ok {
			errs = append(errs, held.Close())
		}
	}
	return errors.Join(errs...)
}

func randomJitter(most time.Duration) time.Duration {
	if most <= 0 {
		return 0
	}
	return rand.N(most)
}

// processTagOf returns the tag of the plugin processes of a record. It distinguishes them from
// those of other allocations with the same container.
func (c *Configurator) processTagOf(r *record.Record) string {
	if r.ContainerID == "" {
		return c.processTag
	}
	return filepath.Join(c.processTag, r.ID)
}
