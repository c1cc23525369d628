package configurator

import (
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/invoke"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// planOf makes the plan of an operation on a recorded allocation.
func (c *Configurator) planOf(r *record.Record) *plan.Plan { return plan.New(r, c.confs.Recorded) }

// planSetup validates an allocation and plans its Setup, without examining the host. It
// plans only networks that the allocation contains; complete adds those that are looked
// up by name.
func (c *Configurator) planSetup(a *Allocation) (*plan.Plan, error) {
	ports, portErr := c.mappings(a)
	if err := errors.Join(plan.Validate(a), portErr); err != nil {
		return nil, err
	}
	r, err := c.newRecord(a, ports)
	if err != nil {
		return nil, err
	}
	p := &plan.Plan{Record: r}
	return p, errors.Join(plan.ValidateBounds(r), p.AddConflists(a))
}

func (c *Configurator) portOptions() portmap.Options {
	return portmap.Options{IgnoreHostIP: c.cfg.IgnorePortMappingHostIP}
}

// mappings returns the port mappings of an allocation, one per port and protocol.
func (c *Configurator) mappings(a *Allocation) ([]portmap.Mapping, error) {
	mappings, err := portmap.Mappings(a.Ports, c.portOptions())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalidAllocation, err)
	}
	return mappings, nil
}

func (c *Configurator) newRecord(a *Allocation, ports []portmap.Mapping) (*record.Record, error) {
	capabilities, err := plan.CapabilityArgs(a, ports)
	boot, _ := c.boot() // "" is not known
	return &record.Record{
		ID: a.ID, ContainerID: plan.ContainerID(a), Scope: a.Scope, Labels: a.Labels, Policy: plan.PolicyOrNil(a.Policy), Netns: a.Netns, Phase: record.Adding, Engine: string(c.cfg.Engine),
		Requested: a.Networks, RequestedPorts: a.Ports, Args: plan.CNIArgs(a), Capabilities: capabilities,
		Inline: len(a.Conflists) > 0, PluginDirs: a.PluginDirs, NetnsOverride: a.NetnsOverride, Interface: a.Interface, Previous: a.PrevResult, Instance: &c.instance, RequireAddress: a.RequireAddress,
		InterfacePrefix: c.cfg.InterfacePrefix, Ports: ports, WaitForPorts: a.WaitForPorts, Created: c.now(), Boot: boot,
	}, err
}

// planNetworks looks up, with lookup, the requested networks, or those of the Config if none are
// requested, and adds them to the plan. It does nothing if the allocation contains its
// configurations.
func (c *Configurator) planNetworks(p *plan.Plan, lookup func(string) (*conflist.Network, error)) error {
	if p.Inline {
		return nil
	}
	names := p.Requested
	if len(names) == 0 {
		names = c.cfg.Networks
	}
	for _, name := range names {
		n, err := lookup(name)
		if err != nil {
			return err
		}
		if err := p.AddNetwork(n); err != nil {
			return err
		}
	}
	return nil
}

func (c *Configurator) lookup(name string) (*conflist.Network, error) {
	n, err := c.confs.Lookup(name)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknownNetwork, err)
	}
	return n, nil
}

// installed returns an error for each plugin binary of a plan that is missing or not
// executable.
func (c *Configurator) installed(p *plan.Plan) error {
	e, err := c.engine(p)
	errs := []error{err}
	if err != nil {
		return err
	}
	if p.Unreadable != nil {
		return p.Unreadable
	}
	for i, a := range p.Attachments {
		for _, t := range e.Binaries(p.Networks[i]) {
			dirs := c.pluginDirs(p.PluginDirs, t)
			path, err := invoke.FindInPath(t, dirs)
			if err != nil {
				errs = append(errs, fmt.Errorf("%w: network %q needs plugin %q, which is in none of %q; install it there or name its directory",
					ErrPluginNotInstalled, a.Network, t, dirs))
			} else if err := unix.Access(path, unix.X_OK); err != nil {
				errs = append(errs, fmt.Errorf("%w: network %q needs plugin %q, and %s cannot be executed: %w",
					ErrPluginNotInstalled, a.Network, t, path, err))
			}
		}
	}
	return errors.Join(errs...)
}

// request converts a plan to the request of an engine.
func (c *Configurator) request(p *plan.Plan) (*engine.Request, error) {
	arguments, err := p.Arguments()
	if err != nil {
		return nil, err
	}
	req := &engine.Request{
		ID: p.Container(), Sandbox: p.Sandbox, Instance: c.instanceOf(p.Record), Tag: c.processTagOf(p.Record), Args: p.Args, Capabilities: arguments, InterfacePrefix: p.InterfacePrefix,
		WaitForPorts: p.WaitForPorts, PortOrder: p.PortOrder + 1,
	}
	// Without an open sandbox, the namespace is gone, or its path leads to another one.
	// CNI_NETNS then stays empty: according to the specification, plugins then release
	// as much as they can.
	if p.Sandbox != nil {
		req.Netns = p.Netns
	}
	if p.Unreadable != nil {
		return nil, p.Unreadable
	}
	previous, err := plan.PreviousOf(p.Record)
	if err != nil { // recorded by an earlier version, which did not validate it; no plugin has used it
		previous = nil
	}
	var types []string
	for i, a := range p.Attachments {
		types = append(types, pluginTypes(p.Networks[i])...)
		attachment := engine.Attachment{Network: p.Networks[i], IfName: a.IfName, Loopback: a.Loopback, Attached: a.Attached, Binaries: a.Binaries, Known: a.Known}
		if i == plan.PrimaryOf(p.Record) {
			attachment.Previous = previous
		}
		if a.Result != nil {
			// ADD with an invalid result has failed, so DEL gets no result.
			if result, err := engine.ParseResult(a.Result); err == nil {
				attachment.Result = result
			}
		}
		req.Attachments = append(req.Attachments, attachment)
	}
	if req.Others, err = c.othersOf(p); err != nil {
		return nil, err
	}
	req.PluginDirs = c.pluginDirs(p.PluginDirs, types...)
	return req, nil
}

// othersOf returns the attachments of the allocation that a plan does not concern.
func (c *Configurator) othersOf(p *plan.Plan) ([]engine.Attachment, error) {
	var others []engine.Attachment
	for _, a := range p.Others {
		if a.Result == nil {
			continue
		}
		n, err := c.confs.Recorded(a.Network, a.Config)
		if err != nil {
			return nil, err
		}
		result, err := engine.ParseResult(a.Result)
		if err != nil {
			return nil, fmt.Errorf("result of network %q: %w", a.Network, err)
		}
		others = append(others, engine.Attachment{Network: n, IfName: a.IfName, Loopback: a.Loopback, Binaries: a.Binaries, Result: result})
	}
	return others, nil
}
