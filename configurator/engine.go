package configurator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/cniexec"
	"github.com/allocnet/allocnet/internal/engine/native"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/sandbox"
)

// nativeEngine has what the Configurator uses of native.Engine, so that tests can replace parts of it.
type nativeEngine interface {
	engine.Engine
	Understands(*conflist.Network) bool
	WhyBinaries(*conflist.Network) []string
	Validate(n *conflist.Network, continues bool) error
	Disconnect(context.Context, *engine.Request) error
	CanPrepare(*conflist.Network) error
	Prepared(context.Context, *engine.Request) (*native.Prepared, error)
	Bind(ctx context.Context, p *native.Prepared, r *engine.Request, unchanged bool) error
	CanPublish(context.Context, *engine.Request) error
	Publish(ctx context.Context, r *engine.Request, before map[string]json.RawMessage) error
	CollectLostPolicies(context.Context) error
	CollectPolicies(ctx context.Context, stale func(names.Owner) bool) error
	Enforce(context.Context, *engine.Request) error
	CanLimit(context.Context, *engine.Request) error
	Limit(context.Context, *engine.Request) ([]*types100.Result, error)
	Repair(context.Context, *engine.Request) error
	Restore(context.Context, []*engine.Request) ([]engine.Restored, error)
	DelUnused(context.Context) (int, error)
	GuardLoopback(context.Context) error
	HoldGuard(context.Context) error
}

// engine returns the engine of a plan.
func (c *Configurator) engine(p *plan.Plan) (engine.Engine, error) {
	switch Engine(p.Engine) {
	case EngineExec:
		if inSteps(p.Record) || !cniexec.TakesRunner() {
			return c.steps, nil
		}
		return c.exec, nil
	case EngineNative:
		return c.native, nil
	}
	return nil, fmt.Errorf("allocation %q is of engine %q, which this build does not have", p.ID, p.Engine)
}

// inSteps reports whether go-cni does not support a record: go-cni chooses the names of
// interfaces itself, and does not accept a previous result.
func inSteps(r *record.Record) bool {
	for i, a := range r.Attachments {
		if a.IfName != r.InterfacePrefix+strconv.Itoa(i) {
			return true
		}
	}
	return r.Previous != nil
}

// chooseEngine replaces EngineAuto in a plan whose networks are known.
func (c *Configurator) chooseEngine(p *plan.Plan) {
	if Engine(p.Engine) != EngineAuto {
		return
	}
	p.Engine = string(EngineExec)
	for _, n := range p.Networks {
		if n == nil {
			continue
		}
		if c.native.Understands(n) {
			p.Engine = string(EngineNative)
		}
		c.warnOfBinaries(n)
		if !p.Inline { // inline networks of other allocations may have the same name
			c.logEngineChange(n)
		}
	}
}

// logEngineChange logs that the engine of a network has changed because its configuration was
// edited.
func (c *Configurator) logEngineChange(n *conflist.Network) {
	now := EngineExec
	if c.engineOf(n) == c.native {
		now = EngineNative
	}
	if before := c.engines.swap(n.Name, now); before != "" && before != now {
		c.cfg.Logger.Info("the engine of the network has changed; existing allocations keep theirs",
			"network", n.Name, "engine", now, "before", before, "because", strings.Join(c.native.WhyBinaries(n), "; "))
	}
}

// lastEngines has the last engine of each network. It is safe for concurrent use.
type lastEngines struct {
	mu sync.Mutex
	of map[string]Engine
}

// swap sets the engine of a network and returns the previous one, "" if it is not known. Beyond
// maxWarnings networks, it deletes all entries first.
func (l *lastEngines) swap(network string, now Engine) (before Engine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.of[network]
	if l.of == nil || len(l.of) >= maxWarnings && before == "" {
		l.of = map[string]Engine{}
	}
	l.of[network] = now
	return before
}

// loggedOnce has the texts that have been logged, so that they are not logged for every
// allocation. It is safe for concurrent use.
type loggedOnce struct {
	mu     sync.Mutex
	logged map[string]bool
}

// maxWarnings bounds the number of texts. Beyond it, texts may be logged again.
const maxWarnings = 256

// first reports whether a text is new, and adds it.
func (w *loggedOnce) first(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.logged[text] {
		return false
	}
	if w.logged == nil || len(w.logged) >= maxWarnings {
		w.logged = map[string]bool{}
	}
	w.logged[text] = true
	return true
}

// warnOfBinaries logs once why plugins of a network run as binaries although native ones
// exist.
func (c *Configurator) warnOfBinaries(n *conflist.Network) {
	for _, reason := range c.native.WhyBinaries(n) {
		if c.warned.first(n.Name + " " + reason) {
			c.cfg.Logger.Warn("a plugin runs as a binary: its configuration has a misspelt key, or one that only the binary supports",
				"network", n.Name, "because", reason)
		}
	}
}

// engineOf returns the engine with which Setup would run a network now.
func (c *Configurator) engineOf(n *conflist.Network) engine.Engine {
	if c.cfg.Engine == EngineExec || c.cfg.Engine == EngineAuto && !c.native.Understands(n) {
		return c.exec
	}
	return c.native
}

// noteBinaries records which plugins of a plan run as binaries, because another version of the
// native engine may run the DEL.
func (c *Configurator) noteBinaries(p *plan.Plan) {
	if Engine(p.Engine) != EngineNative {
		return
	}
	for i, n := range p.Networks {
		if n != nil {
			p.Attachments[i].Binaries = append([]string{}, c.native.Binaries(n)...)
		}
	}
}

// runsInProcess reports whether every plugin of a plan runs, or ran for ADD, in the process. The
// kernel then acknowledges every removal of DEL.
func (c *Configurator) runsInProcess(p *plan.Plan) bool {
	if Engine(p.Engine) != EngineNative {
		return false
	}
	for i, a := range p.Attachments {
		switch n := p.Networks[i]; {
		case a.Binaries != nil:
			if len(a.Binaries) > 0 {
				return false
			}
		case n == nil || len(c.native.Binaries(n)) > 0:
			return false
		}
	}
	return true
}

// requireInside returns an error if plugin binaries would run in the host's namespace: their
// leftovers there cannot be distinguished from objects of other programs.
func (c *Configurator) requireInside(p *plan.Plan) error {
	if !p.NetnsOverride || c.runsInProcess(p) {
		return nil
	}
	if err := sandbox.Validate(p.Netns); errors.Is(err, sandbox.ErrHostNamespace) {
		return fmt.Errorf("%w: netns: %w, in which only native plugins can be run", ErrInvalidAllocation, err)
	}
	return nil
}
