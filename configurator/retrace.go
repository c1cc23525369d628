package configurator

import (
	"context"
	"errors"
	"slices"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
)

// retrace corrects a guessed record by the owners and leases on the host: they show
// which interface an attachment had, and, if the caller names no networks, to which
// networks the allocation was attached. If one of these has no configuration any more,
// cleanup looks for leftovers by the ID alone. Records of runtimes that use CNI are not
// corrected: a runtime names network and interface, and may have other attachments of
// the same container.
func (c *Configurator) retrace(ctx context.Context, p *plan, a *Allocation) error {
	defer c.chooseEngine(p)
	if p.Container() != p.ID || p.Inline || len(p.Attachments) == 0 {
		return nil
	}
	traces, err := cleanup.Traces(ctx, p.ID, c.cfg.StateDir)
	if err != nil {
		return err
	}
	if len(a.Networks) == 0 {
		if known := c.attachTraced(p, traces); !known {
			p.drop()
			return nil
		}
	}
	var errs []error
	for i := range p.Attachments {
		at := &p.Attachments[i]
		leases, err := cleanup.LeaseTraces(p.ID, at.Network, at.Config)
		errs = append(errs, err)
		at.IfName = tracedInterface(at, append(slices.Clone(traces), leases...))
	}
	return errors.Join(errs...)
}

// attachTraced adds the networks in which there is something of the allocation. It
// is false if one of them has no configuration any more.
func (c *Configurator) attachTraced(p *plan, traces []cleanup.Trace) bool {
	networks, _ := c.confs.Networks()
	for _, n := range networks {
		if !slices.ContainsFunc(p.Attachments, func(at record.Attachment) bool { return at.Network == n.Name }) && c.isTraced(p, n, traces) {
			if planNetwork(p, n) != nil {
				return false
			}
		}
	}
	return !slices.ContainsFunc(traces, func(t cleanup.Trace) bool {
		return !slices.ContainsFunc(p.Attachments, func(at record.Attachment) bool { return t.Of(at.Network) })
	})
}

// isTraced reports whether there is something of the allocation in a network. Leases
// that cannot be read are not of one that nothing else tells of.
func (c *Configurator) isTraced(p *plan, n *conflist.Network, traces []cleanup.Trace) bool {
	leases, _ := cleanup.LeaseTraces(p.ID, n.Name, n.Bytes)
	return len(leases) > 0 || slices.ContainsFunc(traces, func(t cleanup.Trace) bool { return t.Of(n.Name) })
}

// tracedInterface is the interface that traces name for an attachment, else its
// own.
func tracedInterface(at *record.Attachment, traces []cleanup.Trace) string {
	ifName := ""
	for _, t := range traces {
		if t.Of(at.Network) && (ifName == "" || t.IfName == at.IfName) {
			ifName = t.IfName
		}
	}
	if ifName == "" {
		return at.IfName
	}
	return ifName
}
