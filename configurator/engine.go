package configurator

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/cniexec"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
)

// nativeEngine can say which networks it understands, and repair an allocation without a
// DEL.
type nativeEngine interface {
	engine.Engine
	Understands(*conflist.Network) bool
	WhyBinaries(*conflist.Network) []string
	Repair(context.Context, *engine.Request) error
	GuardLoopback(context.Context) error
}

// engine is the one that did the ADD of a plan's record, or is to do it.
func (c *Configurator) engine(p *plan) (engine.Engine, error) {
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

// inSteps reports whether go-cni cannot do what a record asks for: it names
// interfaces by itself, and knows no result to go on from.
func inSteps(r *record.Record) bool {
	for i, a := range r.Attachments {
		if a.IfName != r.InterfacePrefix+strconv.Itoa(i) {
			return true
		}
	}
	return r.Previous != nil
}

// chooseEngine settles the engine of a plan whose networks are known.
func (c *Configurator) chooseEngine(p *plan) {
	if Engine(p.Engine) != EngineAuto {
		return
	}
	p.Engine = string(EngineExec)
	for _, n := range p.networks {
		if n == nil {
			continue
		}
		if c.native.Understands(n) {
			p.Engine = string(EngineNative)
		}
		c.warnOfBinaries(n)
		if !p.Inline { // those of other allocations may have the same name
			c.logEngineChange(n)
		}
	}
}

// logEngineChange logs that a network has another engine than before, as its configuration was
// edited.
func (c *Configurator) logEngineChange(n *conflist.Network) {
	now := EngineExec
	if c.engineOf(n) == c.native {
		now = EngineNative
	}
	if before := c.engines.swap(n.Name, now); before != "" && before != now {
		c.cfg.Logger.Info("network has another engine from now on; what is set up stays with its own",
			"network", n.Name, "engine", now, "before", before, "because", strings.Join(c.native.WhyBinaries(n), "; "))
	}
}

// lastEngines remembers the engines of networks. It is safe for concurrent use.
type lastEngines struct {
	mu sync.Mutex
	of map[string]Engine
}

// swap returns the engine that a network had, "" where it is not known, and remembers the
// one that it has. Beyond maxWarnings networks all are forgotten.
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

// warnings remembers what has been logged, so that it is not logged for every
// allocation. It is safe for concurrent use.
type warnings struct {
	mu     sync.Mutex
	logged map[string]bool
}

// maxWarnings bounds what is remembered; beyond it, all may be logged again.
const maxWarnings = 256

// first reports whether a text is new, and remembers it.
func (w *warnings) first(text string) bool {
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

// warnOfBinaries logs, once, why plugins of a network run as binaries although there
// are native ones.
func (c *Configurator) warnOfBinaries(n *conflist.Network) {
	for _, reason := range c.native.WhyBinaries(n) {
		if c.warned.first(n.Name + " " + reason) {
			c.cfg.Logger.Warn("a plugin runs as a binary: its configuration is misspelt, or only the binary knows it",
				"network", n.Name, "because", reason)
		}
	}
}

// engineOf is the one that a network would be set up with now.
func (c *Configurator) engineOf(n *conflist.Network) engine.Engine {
	if c.cfg.Engine == EngineExec || c.cfg.Engine == EngineAuto && !c.native.Understands(n) {
		return c.exec
	}
	return c.native
}

// noteBinaries records which plugins of a plan run as binaries: what the native
// engine understands can be another by the time of the DEL.
func (c *Configurator) noteBinaries(p *plan) {
	if Engine(p.Engine) != EngineNative {
		return
	}
	for i, n := range p.networks {
		if n != nil {
			p.Attachments[i].Binaries = append([]string{}, c.native.Binaries(n)...)
		}
	}
}

// runsInProcess reports whether every plugin of a plan runs, or did so for ADD,
// inside the process: then DEL has the kernel's word for everything that it
// removed.
func (c *Configurator) runsInProcess(p *plan) bool {
	if Engine(p.Engine) != EngineNative {
		return false
	}
	for i, a := range p.Attachments {
		switch n := p.networks[i]; {
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
