package configurator

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/containernetworking/cni/libcni"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/cniexec"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
)

// nativeEngine can say for which networks it is worth while, and mend an
// allocation without a DEL.
type nativeEngine interface {
	engine.Engine
	Understands(*libcni.NetworkConfigList) bool
	WhyBinaries(*libcni.NetworkConfigList) []string
	Repair(context.Context, *engine.Request) error
	GuardLoopback(context.Context) error
}

// engine is the one that did the ADD of a record, or is to do it. A record that
// was made up, or is not planned yet, has none: its networks decide.
func (c *Configurator) engine(r *record.Record) (engine.Engine, error) {
	if Engine(r.Engine) == EngineAuto {
		if err := c.chooseEngine(r); err != nil {
			return nil, err
		}
	}
	switch Engine(r.Engine) {
	case EngineExec:
		if inSteps(r) || !cniexec.TakesRunner() {
			return c.steps, nil
		}
		return c.exec, nil
	case EngineNative:
		return c.native, nil
	}
	return nil, fmt.Errorf("allocation %q is of engine %q, which this build does not have", r.ID, r.Engine)
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

// chooseEngine settles the engine of a record whose networks are known.
func (c *Configurator) chooseEngine(r *record.Record) error {
	if Engine(r.Engine) != EngineAuto {
		return nil
	}
	r.Engine = string(EngineExec)
	for _, a := range r.Attachments {
		n, err := conflist.Parse(a.Config)
		if err != nil {
			return fmt.Errorf("recorded configuration of network %q: %w", a.Network, err)
		}
		if c.native.Understands(n.List) {
			r.Engine = string(EngineNative)
		}
		c.warnOfBinaries(n)
		if !r.Inline { // those of other allocations may have the same name
			c.tellOfMove(n)
		}
	}
	return nil
}

// tellOfMove logs that a network has another engine than before, as its configuration was
// edited.
func (c *Configurator) tellOfMove(n *conflist.Network) {
	now := EngineExec
	if c.engineOf(n) == c.native {
		now = EngineNative
	}
	if before := c.engines.swap(n.Name, now); before != "" && before != now {
		c.cfg.Logger.Info("network has another engine from now on; what is set up stays with its own",
			"network", n.Name, "engine", now, "before", before, "because", strings.Join(c.native.WhyBinaries(n.List), "; "))
	}
}

// lastEngines remembers the engines of networks. It is safe for concurrent use.
type lastEngines struct {
	mu sync.Mutex
	of map[string]Engine
}

// swap returns the engine that a network had, "" where it is not known, and remembers the
// one that it has. Beyond mostWarnings networks all are forgotten.
func (l *lastEngines) swap(network string, now Engine) (before Engine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.of[network]
	if l.of == nil || len(l.of) >= mostWarnings && before == "" {
		l.of = map[string]Engine{}
	}
	l.of[network] = now
	return before
}

// warnings remembers what has been logged, so that it is not logged for every
// allocation. It is safe for concurrent use.
type warnings struct {
	mu   sync.Mutex
	told map[string]bool
}

// mostWarnings bounds what is remembered; beyond it, all may be logged again.
const mostWarnings = 256

// first reports whether a text is new, and remembers it.
func (w *warnings) first(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.told[text] {
		return false
	}
	if w.told == nil || len(w.told) >= mostWarnings {
		w.told = map[string]bool{}
	}
	w.told[text] = true
	return true
}

// warnOfBinaries logs, once, why plugins of a network run as binaries although there
// are native ones.
func (c *Configurator) warnOfBinaries(n *conflist.Network) {
	for _, reason := range c.native.WhyBinaries(n.List) {
		if c.warned.first(n.Name + " " + reason) {
			c.cfg.Logger.Warn("a plugin runs as a binary: its configuration is misspelt, or only the binary knows it",
				"network", n.Name, "because", reason)
		}
	}
}

// engineOf is the one that a network would be set up with now.
func (c *Configurator) engineOf(n *conflist.Network) engine.Engine {
	if c.cfg.Engine == EngineExec || c.cfg.Engine == EngineAuto && !c.native.Understands(n.List) {
		return c.exec
	}
	return c.native
}

// noteBinaries records which plugins of a record run as binaries: what the native
// engine understands can be another by the time of the DEL.
func (c *Configurator) noteBinaries(r *record.Record) error {
	if Engine(r.Engine) != EngineNative {
		return nil
	}
	for i := range r.Attachments {
		n, err := conflist.Parse(r.Attachments[i].Config)
		if err != nil {
			return fmt.Errorf("recorded configuration of network %q: %w", r.Attachments[i].Network, err)
		}
		r.Attachments[i].Binaries = append([]string{}, c.native.Binaries(n.List)...)
	}
	return nil
}

// runsInProcess reports whether every plugin of a record runs, or did so for ADD,
// inside the process: then DEL has the kernel's word for everything that it
// removed.
func (c *Configurator) runsInProcess(r *record.Record) bool {
	return Engine(r.Engine) == EngineNative && !slices.ContainsFunc(r.Attachments, func(a record.Attachment) bool {
		if a.Binaries != nil {
			return len(a.Binaries) > 0
		}
		n, err := conflist.Parse(a.Config)
		return err != nil || len(c.native.Binaries(n.List)) > 0
	})
}
