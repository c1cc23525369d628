package sdk

import (
	"errors"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Validator is a plugin that finds more than its Factory does of what every Add with its configuration refuses.
type Validator interface {
	// Validate returns that as an error. planned is what Add of the IPAM plugin returns in every
	// case; nil if that is not known.
	Validate(planned *types100.Result) error
}

// Planner is an IPAM plugin whose configuration tells what Add returns.
type Planner interface {
	// Planned returns the routes, and one address of each range set with its gateway.
	Planned() (*types100.Result, error)
}

// Chained is a plugin whose Add needs the result of a plugin before it.
type Chained interface {
	// NoResult returns the error of Add if there is none.
	NoResult() error
}

// Policed is a plugin that not every network with the plugin policy can have.
type Policed interface {
	// Policed returns the error of Add in such a network.
	Policed() error
}

// ErrNeedsRuntime is in the error of a Factory if the configuration is complete only with capability arguments.
var ErrNeedsRuntime = errors.New("a capability argument is missing")

// Chain is what Validate of a PluginConf has to know about the network.
type Chain struct {
	Plugins map[string]Factory
	// First reports that no plugin runs before this one.
	First bool
	// Policed reports that the network has the plugin policy.
	Policed bool
	// Requested reports that capability arguments can complete the configuration.
	Requested bool
}

// Validate returns what every ADD with the configuration refuses, of the plugin and of its IPAM plugin, "" for
// none. It does not interpret what belongs to a binary, and does not look at the host.
func (c *PluginConf) Validate(name, ipam string, chain Chain) error {
	p, err := c.native(name, chain)
	if p == nil {
		return named(name, err)
	}
	if chained, ok := p.(Chained); ok && chain.First {
		return named(name, Invalid(chained.NoResult()))
	}
	if policed, ok := p.(Policed); ok && chain.Policed {
		if err := policed.Policed(); err != nil {
			return named(name, Invalid(err))
		}
	}
	var planned *types100.Result
	if ipam != "" {
		if planned, err = c.planned(ipam, chain); err != nil {
			return named(ipam, err)
		}
	}
	if v, ok := p.(Validator); ok {
		err = v.Validate(planned)
	}
	return named(name, Invalid(err))
}

// planned returns what the IPAM plugin returns in every case, or nil.
func (c *PluginConf) planned(ipam string, chain Chain) (*types100.Result, error) {
	p, err := c.native(ipam, chain)
	if planner, ok := p.(Planner); ok {
		planned, err := planner.Planned()
		return planned, Invalid(err)
	}
	return nil, err
}

// native returns the native plugin of the configuration, nil if a binary runs, or if the configuration is complete
// only with the capability arguments of an allocation.
func (c *PluginConf) native(name string, chain Chain) (Plugin, error) {
	factory, ok := chain.Plugins[name]
	if !ok {
		return nil, nil
	}
	p, err := c.make(pluginKey{name: name}, factory)
	switch {
	case IsUnknownKey(err), chain.Requested && errors.Is(err, ErrNeedsRuntime):
		return nil, nil
	case err != nil:
		return nil, Invalid(err)
	}
	return p, nil
}

// NeedsRuntime returns the error of a configuration that is complete only with capability arguments.
func NeedsRuntime(err error) error { return needsRuntime{err} }

type needsRuntime struct{ error }

func (n needsRuntime) Unwrap() error        { return n.error }
func (n needsRuntime) Is(target error) bool { return target == ErrNeedsRuntime }
