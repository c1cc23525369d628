package sdk

import (
	"context"
	"errors"
	"fmt"
)

// Handoverer is a plugin that can give the link and the leases of one container to another
// one. Its elements are those of Wanted.
type Handoverer interface {
	// Handover gives what the container from has to the container of the arguments, whose
	// result already has the new names. If the plugin cannot do that, or something
	// is missing, it returns an error; then the attachments of both containers are to be
	// removed.
	Handover(ctx context.Context, c *CmdArgs, from string) error
}

// ErrNoHandover: a plugin cannot give its attachment to another container.
var ErrNoHandover = errors.New("the attachment cannot be handed over")

// Handover calls the Handoverer of a plugin. Other native plugins have nothing to hand over.
// For a binary the error is ErrNoHandover.
func (e *Exec) Handover(ctx context.Context, name string, a *CmdArgs, from string) (err error) {
	a.exec, a.Host, a.Instance = e, e.Host, e.Instance
	factory, native := e.Plugins[name]
	if !native {
		return fmt.Errorf("plugin %q: %w", name, ErrNoHandover)
	}
	defer e.recovered(name, "handover", &err)
	p, why, err := e.choose(ctx, name, Repair, factory, a)
	if err != nil || why != nil || p == nil {
		return fmt.Errorf("plugin %q: %w", name, errors.Join(ErrNoHandover, err, why))
	}
	if h, ok := p.(Handoverer); ok {
		if err := h.Handover(ctx, a, from); err != nil {
			return fmt.Errorf("plugin %q: %w", name, err)
		}
	}
	return nil
}

// HandsOver returns an error if the plugin of a configuration has something that names the
// container and that neither a Handoverer nor a Restorer can give to another one.
func (c *PluginConf) HandsOver(name string, factory Factory) error {
	p, err := c.make(pluginKey{name: name}, factory)
	if err != nil {
		return err
	}
	switch p.(type) {
	case Handoverer, Restorer:
		return nil
	}
	return ErrNoHandover
}

// DelegateHandover calls the Handoverer of an IPAM plugin. For an IPAM plugin without one
// the error is ErrNoHandover: its addresses name the container.
func (a *CmdArgs) DelegateHandover(ctx context.Context, name, from string) error {
	p, _, err := a.exec.choose(ctx, name, Repair, a.exec.Plugins[name], a)
	if err != nil {
		return err
	}
	h, ok := p.(Handoverer)
	if !ok {
		return fmt.Errorf("plugin %q: %w", name, ErrNoHandover)
	}
	return h.Handover(ctx, a, from)
}
