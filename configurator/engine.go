package configurator

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/containernetworking/cni/libcni"

	"github.com/allocnet/allocnet/internal/conflist"
	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/cniexec"
	"github.com/allocnet/allocnet/internal/record"
)

// nativeEngine can say for which networks it is worth while, and mend an
// allocation without a DEL.
type nativeEngine interface {
	engine.Engine
	Understands(*libcni.NetworkConfigList) bool
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
	}
	return nil
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
