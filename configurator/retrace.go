package configurator

import (
	"context"
	"errors"
	"slices"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
)

// retrace corrects the plan of planWithoutRecord by the owners and leases found on the
// host. They show the interface of each attachment and, if the caller names no
// networks, the networks of the allocation. If one of these networks has no
// configuration any more, retrace drops all attachments, and cleanup finds leftovers by
// the ID alone.
//
// Plans with a separate container ID or with inline configurations are not changed:
// their caller is a runtime that names network and interface itself, and the same
// container may have other attachments.
func (c *Configurator) retrace(ctx context.Context, p *plan.Plan, a *Allocation) error {
	if p.ContainerID != "" || p.Inline || len(p.Attachments) == 0 {
		return nil
	}
	traces, err := bounded(ctx, c, func(ctx context.Context) ([]cleanup.Trace, error) {
		return cleanup.Traces(ctx, p.Container(), c.cfg.StateDir)
	})
	if err != nil {
		return err
	}
	if len(a.Networks) == 0 {
		if known := c.attachTraced(p, traces); !known {
			p.Drop()
			return nil
		}
	}
	var errs []error
	for i := range p.Attachments {
		at := &p.Attachments[i]
		leases, err := cleanup.LeaseTraces(p.Container(), at.Network, at.Config)
		errs = append(errs, err)
		at.IfName = tracedInterface(at, append(slices.Clone(traces), leases...))
	}
	return errors.Join(errs...)
}

// attachTraced adds the networks in which objects of the allocation exist. It returns
// false if one of them has no configuration any more.
func (c *Configurator) attachTraced(p *plan.Plan, traces []cleanup.Trace) bool {
	networks, _ := c.confs.Networks()
	for _, n := range networks {
		if !slices.ContainsFunc(p.Attachments, func(at record.Attachment) bool { return at.Network == n.Name }) && c.isTraced(p, n, traces) {
			if p.AddNetwork(n) != nil {
				return false
			}
		}
	}
	return !slices.ContainsFunc(traces, func(t cleanup.Trace) bool {
		return !slices.ContainsFunc(p.Attachments, func(at record.Attachment) bool { return t.Of(at.Network) })
	})
}

// isTraced reports whether objects of the allocation exist in a network. If the leases
// cannot be read, only the traces count.
func (c *Configurator) isTraced(p *plan.Plan, n *conflist.Network, traces []cleanup.Trace) bool {
	leases, _ := cleanup.LeaseTraces(p.Container(), n.Name, n.Bytes)
	return len(leases) > 0 || slices.ContainsFunc(traces, func(t cleanup.Trace) bool { return t.Of(n.Name) })
}

// tracedInterface returns the interface that the traces show for an attachment. It
// prefers the name in the attachment, and returns that if there are no traces.
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
