package ruleset

import (
	"context"
	"fmt"
)

// PortsLost sets the function that is called when the guard of bridge ports begins to hold for ports whose
// elements another program has removed together with the table: before the table is made, so that an
// operation that dies in between leaves no port closed, and after it, for a port that an ADD completed
// meanwhile. It is also called for the first table of a host. PortsLost must be called before the
// Ruleset is used.
func (r *Ruleset) PortsLost(release func(context.Context) error) { r.portsLost = release }

// aroundPorts calls a function that makes tables. If the one of the guard of bridge ports is among them, and is
// missing, aroundPorts calls the function of PortsLost before and after that.
func (r *Ruleset) aroundPorts(ctx context.Context, withPorts bool, makeTables func() error) error {
	if !withPorts || r.portsLost == nil {
		return makeTables()
	}
	missing, err := r.lacksPorts(ctx)
	if err == nil && missing {
		err = r.portsLost(ctx)
	}
	if err == nil {
		err = makeTables()
	}
	if err == nil && missing {
		err = r.portsLost(ctx)
	}
	return err
}

// lacksPorts reports whether the table of the guard of bridge ports does not exist, or is only reserved.
func (r *Ruleset) lacksPorts(ctx context.Context) (bool, error) {
	is, err := r.inspect(ctx, ports)
	return err == nil && (!is.exists || ports.isReserved(is)), err
}

// ClosesPorts reports whether all guarded bridge ports are closed, because another program has removed the
// table of their guard, and a process holds the second one: see HoldGuard.
func (r *Ruleset) ClosesPorts(ctx context.Context) (bool, error) {
	held, _, err := r.has(ctx, guards[Bridge].held)
	if err == nil && held {
		held, err = r.lacksPorts(ctx)
	}
	if err != nil {
		return false, fmt.Errorf("look for the guard of bridge ports: %w", err)
	}
	return held, nil
}

// PortsWithMAC returns the names of the guarded bridge ports that have an element with a MAC. A port
// without one sends nothing.
func (r *Ruleset) PortsWithMAC(ctx context.Context) (map[string]bool, error) {
	list, err := r.dumpElements(ctx, ports.macs, func(*element) bool { return true })
	if err != nil {
		return nil, fmt.Errorf("list guarded bridge ports: %w", err)
	}
	with := make(map[string]bool, len(list))
	for i := range list {
		with[list[i].link()] = true
	}
	return with, nil
}

// HasMAC reports whether the element with the MAC of a bridge port exists.
func (r *Ruleset) HasMAC(ctx context.Context, p *BridgePort) (bool, error) {
	var l lister
	l.add(ports.macs, linkName(p.Name), p.MAC)
	found, err := r.lookUp(ctx, l.list)
	if err != nil {
		return false, fmt.Errorf("look up the MAC of bridge port %q: %w", p.Name, err)
	}
	return found[0].set != nil, nil
}
