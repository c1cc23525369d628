package sdk

import (
	"context"
	"errors"

	"github.com/allocnet/allocnet/internal/firewalld"
	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/netlink/conntrack"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/object"
	"github.com/allocnet/allocnet/internal/state/boot"
	"github.com/allocnet/allocnet/internal/state/bridges"
	"github.com/allocnet/allocnet/internal/state/policystate"
	"github.com/allocnet/allocnet/internal/state/switches"
)

// Host is the state that all plugins of one host share. It is safe for
// concurrent use.
type Host struct {
	Kernel *rtnl.Host
	Rules  *ruleset.Ruleset
	// Accept makes iptables accept packets that Rules approved.
	Accept *iptables.AcceptRule
	// Firewalld is the client of firewalld; nil means that firewalld is not
	// running.
	Firewalld *firewalld.Client
	// Policies has the network policies of all attachments of a state directory; nil means
	// that there is none, as in plugin binaries.
	Policies *policystate.Store
	// Conntrack deletes tracked connections.
	Conntrack *conntrack.Conn
	// Switches enables forwarding, and records what it changes; nil records nothing.
	Switches *switches.Store
	// Bridges are the bridges that an ADD has created; nil if that is not recorded.
	Bridges *bridges.Store
	// Cache is nil in a process that runs a single command.
	Cache *TTLCache
	// Boot returns the ID of this boot of the host; nil means that it is not known.
	Boot func() (string, error)
	// Hold is a share in the guard that the process holds, which Close releases. It is nil in a
	// process that ends after an operation.
	Hold *GuardHold
	Log  Logger
}

// View returns a view of the host for one operation.
func (h *Host) View() *object.View {
	return object.Host{Kernel: h.Kernel, Switches: h.Switches, Bridges: h.Bridges, Once: h.Cache.Unless, Forget: h.Cache.Clear}.View()
}

// OpenDropInHost opens the host for plugins that a runtime starts one by one. As with the
// reference plugins, only the runtime decides which containers share a host port.
func OpenDropInHost(log Logger) (*Host, error) {
	h, err := OpenHost(log)
	if err == nil {
		h.Rules.MayNarrow = true
	}
	return h, err
}

// OpenHost opens the host of the process.
func OpenHost(log Logger) (*Host, error) {
	h := &Host{Accept: iptables.NewAcceptRule(), Firewalld: firewalld.Shared, Conntrack: conntrack.New(), Boot: boot.ID, Log: log}
	var err error
	h.Kernel = rtnl.OpenHost()
	if h.Rules, err = ruleset.Open(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	kernel := h.Kernel // the Rules must not refer to the host, which may refer to an engine
	h.Rules.Attached(func() (map[string]bool, error) { return linkedOwners(kernel) })
	rules := h.Rules
	rules.PortsLost(func(ctx context.Context) error { return releaseLostPorts(ctx, kernel, rules, log) })
	h.AfterRules(nil)
	return h, nil
}

// AfterRules sets what ends, after rules were made again that all policies share, the connections that policies deny.
// After other rules, the connections are flushed that these translate otherwise: see FlushStale. Call it before the
// first operation. endDenied must not refer to the host.
func (h *Host) AfterRules(endDenied func(context.Context) error) {
	rules, conn, log := h.Rules, h.Conntrack, h.Log
	rules.RulesRestored(func(ctx context.Context, policies bool) {
		var err error
		switch {
		case !policies:
			err = flushStale(ctx, rules, conn)
		case endDenied != nil:
			err = endDenied(ctx)
		}
		if err != nil {
			log.Warn("connections that began while rules were missing may go on", "error", err)
		}
	})
}

// Guard adds the rules that drop packets with addresses that do not belong to their link: see
// ruleset.Ruleset.Guard. A long-lived process holds these rules until it ends, so that a
// flush of the ruleset does not remove them.
func (h *Host) Guard(ctx context.Context, families ...ruleset.Family) error {
	err := h.Rules.Guard(ctx, families...)
	if h.Hold != nil {
		err = errors.Join(err, h.Hold.hold(ctx, families...))
	}
	return err
}

// RestoreGuard adds the rules of Guard again if some are missing.
func (h *Host) RestoreGuard(ctx context.Context, families ...ruleset.Family) (changed bool, err error) {
	err = h.Rules.CheckGuard(ctx, families...)
	if err == nil && h.Hold != nil { // the process may be a new one
		err = h.Hold.hold(ctx, families...)
	}
	if !errors.Is(err, ruleset.ErrMissing) {
		return false, err
	}
	h.Cache.Clear()
	return true, errors.Join(h.Guard(ctx, families...), h.Rules.Repair(ctx))
}

// HoldGuard makes a long-lived process hold the rules of Guard that exist, as if it had made them. If
// these rules are all that is left of the guard of bridge ports, it releases the ports of plugin binaries.
func (h *Host) HoldGuard(ctx context.Context) error {
	if h.Hold == nil {
		return nil
	}
	closed, err := h.Rules.ClosesPorts(ctx)
	if err == nil && closed {
		err = releaseLostPorts(ctx, h.Kernel, h.Rules, h.Log)
	}
	return errors.Join(err, h.Hold.holdExisting(ctx))
}

// Close closes what OpenHost opened. No operation may be running.
func (h *Host) Close() error {
	errs := []error{h.Accept.Close(), h.Conntrack.Close(), h.Hold.Release()}
	h.Kernel.Close()
	if h.Rules != nil {
		errs = append(errs, h.Rules.Close())
	}
	return errors.Join(errs...)
}
