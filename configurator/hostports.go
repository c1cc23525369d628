package configurator

import (
	"cmp"
	"context"
	"errors"

	"github.com/allocnet/allocnet/internal/hostports"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// hostPorts looks at what the host does with published ports.
func (c *Configurator) hostPorts() hostports.Checker {
	return hostports.Checker{Ignore: c.cfg.Listeners == ListenerIgnore, Logger: c.cfg.Logger, First: c.warned.first}
}

// searchListeners starts a search for processes of the host that listen on the host ports of a
// record.
func (c *Configurator) searchListeners(r *record.Record) *hostports.Search {
	return c.hostPorts().Search(r.Ports, cmp.Or(r.ContainerID, r.ID))
}

// portWarnings logs what the caller of a Setup should know about the host ports of an allocation, and returns
// the texts for Status.Warnings.
func (c *Configurator) portWarnings(ctx context.Context, r *record.Record, s *hostports.Search, status *Status) (texts []string) {
	waiting, err := c.waiting(r)
	if err != nil && c.warned.first(err.Error()) {
		c.cfg.Logger.Warn("cannot look for the allocations that have requested host ports before", "error", err)
	}
	for _, w := range waiting {
		texts = append(texts, w.String())
		c.cfg.Logger.Info("a host port leads to an older allocation until that is removed", "alloc", r.ID, "port", w.Mapping.Published(), "older", w.ID)
	}
	return append(texts, c.hostPorts().Warnings(ctx, r.Ports, s, r.ID, status)...)
}

// refuseListeners waits for a search and returns an error for each listener, if the Config is
// ListenerRefuse.
func (c *Configurator) refuseListeners(ctx context.Context, s *hostports.Search, id string) error {
	if c.cfg.Listeners != ListenerRefuse {
		return nil
	}
	return s.Errors(ctx, id)
}

// pickerFor returns what picks numbers for the ports of an allocation, among them of freed ports that the
// same change unpublishes; nil if all of them have a number.
func (c *Configurator) pickerFor(id string, ports, freed []portmap.Port) *hostports.Picker {
	return hostports.NewPicker(hostports.PickerOptions{
		Store: c.store, ID: id, First: c.cfg.DynamicPorts.First, Last: c.cfg.DynamicPorts.Last, IgnoreHostIP: c.cfg.IgnorePortMappingHostIP,
		Freed: freed,
	}, ports)
}

// setUpPicked is Setup of an allocation with ports that have no number.
func (c *Configurator) setUpPicked(ctx context.Context, a Allocation, k *hostports.Picker) (*Status, error) {
	ports := k.Keep()
	for {
		kept := ports != nil
		if !kept {
			var err error
			if ports, err = k.Pick(ctx); err != nil {
				return nil, err
			}
		}
		a.Ports = ports
		status, err := c.setUpNumbered(ctx, a)
		switch {
		case err == nil, ctx.Err() != nil:
			return status, err
		case k.Again(err):
			ports = nil
		case errors.Is(err, ErrDifferent) && !kept: // another Setup of the ID was quicker
			if ports = k.Keep(); ports == nil {
				return nil, err
			}
		default:
			return nil, err
		}
	}
}
