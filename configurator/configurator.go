package configurator

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/cniexec"
	"github.com/allocnet/allocnet/internal/engine/native"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/state/statedir"
)

var _ Service = (*Configurator)(nil)

// Configurator gives allocations their networks and takes them away again. It
// is safe for concurrent use, also beside other processes on the same StateDir:
// operations on one allocation run one after the other, on different ones at
// once.
type Configurator struct {
	cfg        Config
	confs      *conflist.Dir
	store      *record.Store
	processTag string
	// instance is that of the owners of what is made; formerInstances are those that
	// older versions gave to the same directory.
	instance        string
	formerInstances []string

	exec   engine.Engine
	native nativeEngine
	// steps runs binaries one by one, where go-cni cannot: see inSteps.
	steps engine.Engine
	// ownsHost says that capabilities of the process count on the host.
	ownsHost  *atomic.Bool
	teardowns *teardownCache

	warned  *warnings
	engines *lastEngines

	// What tests replace.
	now         func() time.Time
	jitter      func(most time.Duration) time.Duration
	sleep       sleeper
	gcTimeout   time.Duration
	concurrency int
}

// New makes a Configurator. Neither directory needs to exist: the state
// directory is made by the first Setup, the configuration directory is read
// whenever a network is looked for. The error is ErrInvalidConfig.
func New(cfg Config) (*Configurator, error) {
	if cfg.Network != "" && len(cfg.Networks) > 0 {
		return nil, fmt.Errorf("%w: Network %q and Networks %q: give either Network or Networks", ErrInvalidConfig, cfg.Network, cfg.Networks)
	}
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	// From here on nothing goes by how the path is spelt.
	state, err := statedir.Resolve(cfg.StateDir)
	if err != nil {
		return nil, fmt.Errorf("%w: StateDir: %w", ErrInvalidConfig, err)
	}
	spelt := cfg.StateDir
	cfg.StateDir = state.Path
	embedded, err := conflist.Embedded(conflist.EmbeddedOptions{
		StateDir: cfg.StateDir, Subnets: cfg.Subnets, ForBinaries: cfg.Engine == EngineExec,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	return &Configurator{
		cfg:        cfg,
		confs:      conflist.New(cfg.ConfDir, embedded),
		store:      record.Open(cfg.StateDir),
		processTag: engine.Mark(state.Key),

		instance:        state.Instance,
		formerInstances: []string{statedir.FormerInstance(state.Path), statedir.FormerInstance(spelt)},

		exec:   cniexec.Engine{},
		native: native.New(cfg.Logger, state.Instance).LongLived(!cfg.OneShot),
		steps:  native.NewForBinaries(cfg.Logger, state.Instance),

		ownsHost:  new(atomic.Bool),
		teardowns: new(teardownCache),

		warned:  new(warnings),
		engines: new(lastEngines),

		now:    time.Now,
		jitter: randomJitter,
		sleep:  sleep,

		gcTimeout:   gcTimeout,
		concurrency: concurrency,
	}, nil
}

// Close gives back what the Configurator holds open: sockets of the kernel and, unless
// it is OneShot, the guard of the host's loopback. Call it when no operation runs any
// more. No allocation is changed. An operation that begins later opens what it needs.
func (c *Configurator) Close() error {
	var errs []error
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

// processTagOf tells the processes of a record's plugins from those of others that are
// for the same container.
func (c *Configurator) processTagOf(r *record.Record) string {
	if r.ContainerID == "" {
		return c.processTag
	}
	return filepath.Join(c.processTag, r.ID)
}
