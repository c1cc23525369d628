package configurator

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// plan is the input of one operation on one allocation: its record and its parsed
// networks. It is made once, at the beginning of the operation, and passed down.
type plan struct {
	*record.Record
	// networks are the networks of the record's attachments, in the same order. If a
	// recorded configuration cannot be parsed, its entry is nil and unreadable has the
	// error.
	networks   []*conflist.Network
	unreadable error
	// others are further attachments of the allocation, which stay as they are.
	others []record.Attachment
}

// planOf makes the plan of an operation on a recorded allocation.
func (c *Configurator) planOf(r *record.Record) *plan { return newPlan(r, c.confs.Recorded) }

// parseRecorded is conflist.Dir.Recorded without a directory: it always parses the
// configuration.
func parseRecorded(_ string, config []byte) (*conflist.Network, error) { return conflist.Parse(config) }

func newPlan(r *record.Record, parse func(network string, config []byte) (*conflist.Network, error)) *plan {
	p := &plan{Record: r}
	var errs []error
	for _, a := range r.Attachments {
		n, err := parse(a.Network, a.Config)
		if err != nil {
			errs = append(errs, fmt.Errorf("recorded configuration of network %q: %w", a.Network, err))
			n = nil
		}
		p.networks = append(p.networks, n)
	}
	p.unreadable = errors.Join(errs...)
	return p
}

// changed returns the plan with a changed copy of its record, whose networks stay the same. change
// replaces slices and maps of the record; it does not write into them.
func (p *plan) changed(change func(*record.Record)) *plan {
	r := *p.Record
	change(&r)
	other := *p
	other.Record = &r
	return &other
}

// attach adds an attachment to the record.
func (p *plan) attach(a record.Attachment, n *conflist.Network) {
	p.Attachments = append(p.Attachments, a)
	p.networks = append(p.networks, n)
}

// readable returns the networks whose configuration could be parsed.
func (p *plan) readable() []*conflist.Network {
	return slices.DeleteFunc(slices.Clone(p.networks), func(n *conflist.Network) bool { return n == nil })
}

// drop removes all attachments from the record.
func (p *plan) drop() { p.Attachments, p.networks, p.unreadable = nil, nil, nil }

// planSetup validates an allocation and plans its Setup, without examining the host. It
// plans only networks that the allocation contains; complete adds those that are looked
// up by name.
func (c *Configurator) planSetup(a *Allocation) (*plan, error) {
	ports, portErr := c.mappings(a)
	if err := errors.Join(validateAllocation(a), portErr); err != nil {
		return nil, err
	}
	r, err := c.newRecord(a, ports)
	if err != nil {
		return nil, err
	}
	p := &plan{Record: r}
	return p, errors.Join(validateBounds(r), p.addConflists(a))
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

// policyOrNil returns nil for the zero value, which means the same.
func policyOrNil(p *policy.Policy) *policy.Policy {
	if p.IsEmpty() {
		return nil
	}
	return p
}

func (c *Configurator) newRecord(a *Allocation, ports []portmap.Mapping) (*record.Record, error) {
	capabilities, err := capabilityArgs(a, ports)
	boot, _ := c.boot() // "" is not known
	return &record.Record{
		ID: a.ID, ContainerID: containerID(a), Scope: a.Scope, Labels: a.Labels, Policy: policyOrNil(a.Policy), Netns: a.Netns, Phase: record.Adding, Engine: string(c.cfg.Engine),
		Requested: a.Networks, RequestedPorts: a.Ports, Args: cniArgs(a), Capabilities: capabilities,
		Inline: len(a.Conflists) > 0, PluginDirs: a.PluginDirs, NetnsOverride: a.NetnsOverride, Interface: a.Interface, Previous: a.PrevResult, Instance: &c.instance, RequireAddress: a.RequireAddress,
		InterfacePrefix: c.cfg.InterfacePrefix, Ports: ports, Created: c.now(), Boot: boot,
	}, err
}

// addConflists adds the networks whose configuration the allocation contains.
func (p *plan) addConflists(a *Allocation) error {
	for i, text := range a.Conflists {
		if err := validateDocument(fmt.Sprintf("conflists[%d]", i), text); err != nil {
			return err
		}
		n, err := conflist.Parse(text)
		if err != nil {
			return fmt.Errorf("%w: conflists[%d]: %w", ErrInvalidAllocation, i, err)
		}
		if n.IsOurs() {
			return fmt.Errorf("%w: conflists[%d]: type %q would call itself", ErrInvalidAllocation, i, conflist.OwnType)
		}
		if err := p.addNetwork(n); err != nil {
			return err
		}
	}
	return nil
}

// planNetworks looks up the requested networks, or those of the Config if none are
// requested, and adds them to the plan. It does nothing if the allocation contains its
// configurations.
func (c *Configurator) planNetworks(p *plan) error {
	if p.Inline {
		return nil
	}
	names := p.Requested
	if len(names) == 0 {
		names = c.cfg.Networks
	}
	for _, name := range names {
		n, err := c.lookup(name)
		if err != nil {
			return err
		}
		if err := p.addNetwork(n); err != nil {
			return err
		}
	}
	return nil
}

// addNetwork adds a network to the plan.
func (p *plan) addNetwork(n *conflist.Network) error {
	for _, earlier := range p.Attachments {
		if earlier.Network == n.Name {
			return fmt.Errorf("%w: network %q is named twice", ErrInvalidAllocation, n.Name)
		}
	}
	if err := validateNetworkName(n); err != nil {
		return err
	}
	n, err := n.WithoutCapabilities(p.declared(oneInterface)...)
	if err != nil {
		return err
	}
	p.attach(record.Attachment{
		Network: n.Name, IfName: interfaceName(p.Record, n), Config: n.Bytes, Loopback: n.IsLoopback(),
	}, n)
	return nil
}

// interfaceName returns the interface name of the next attachment of a record. A
// loopback network uses lo and does not count towards the numbers of the others. If the
// name requested for the first attachment equals a numbered name, the attachment that
// would have that number gets the name of number 0 instead.
func interfaceName(r *record.Record, n *conflist.Network) string {
	if n.IsLoopback() {
		return rtnl.LoopbackName
	}
	i := 0
	for _, a := range r.Attachments {
		if !a.Loopback {
			i++
		}
	}
	numbered := func(i int) string { return r.InterfacePrefix + strconv.Itoa(i) }
	switch {
	case r.Interface == "":
		return numbered(i)
	case i == 0:
		return r.Interface
	case numbered(i) == r.Interface:
		return numbered(0)
	}
	return numbered(i)
}

// primaryOf returns the index of the primary attachment of a record: the first one that
// is not a loopback network, or 0 if all are.
func primaryOf(r *record.Record) int {
	return max(0, slices.IndexFunc(r.Attachments, func(a record.Attachment) bool { return !a.Loopback }))
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
func (c *Configurator) installed(p *plan) error {
	e, err := c.engine(p)
	errs := []error{err}
	if err != nil {
		return err
	}
	if p.unreadable != nil {
		return p.unreadable
	}
	for i, a := range p.Attachments {
		for _, t := range e.Binaries(p.networks[i]) {
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
func (c *Configurator) request(p *plan) (*engine.Request, error) {
	arguments, err := p.arguments()
	if err != nil {
		return nil, err
	}
	req := &engine.Request{
		ID: p.Container(), Sandbox: p.Sandbox, Instance: c.instanceOf(p.Record), Tag: c.processTagOf(p.Record), Args: p.Args, Capabilities: arguments, InterfacePrefix: p.InterfacePrefix,
	}
	// Without an open sandbox, the namespace is gone, or its path leads to another one.
	// CNI_NETNS then stays empty: according to the specification, plugins then release
	// as much as they can.
	if p.Sandbox != nil {
		req.Netns = p.Netns
	}
	if p.unreadable != nil {
		return nil, p.unreadable
	}
	previous, err := previousOf(p.Record)
	if err != nil { // recorded by an earlier version, which did not validate it; no plugin has used it
		previous = nil
	}
	var types []string
	for i, a := range p.Attachments {
		types = append(types, pluginTypes(p.networks[i])...)
		attachment := engine.Attachment{Network: p.networks[i], IfName: a.IfName, Loopback: a.Loopback, Attached: a.Attached, Binaries: a.Binaries}
		if i == primaryOf(p.Record) {
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
func (c *Configurator) othersOf(p *plan) ([]engine.Attachment, error) {
	var others []engine.Attachment
	for _, a := range p.others {
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

// previousOf parses the prevResult of a record. Every operation gets its own copy,
// because an ADD may change it.
func previousOf(r *record.Record) (*types100.Result, error) {
	if r.Previous == nil {
		return nil, nil
	}
	result, err := engine.ParseResult(r.Previous)
	if err != nil {
		return nil, fmt.Errorf("%w: prevResult: %w", ErrInvalidAllocation, err)
	}
	return result, nil
}
