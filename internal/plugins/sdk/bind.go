package sdk

import (
	"context"
	"errors"
	"fmt"
)

// Binder is a plugin whose ADD may run before the allocation is known, for a slot of a
// pool. Of the request, the ADD of a slot has only the network.
type Binder interface {
	// Bind does what ADD does for the rest of the request, such as host ports. The
	// arguments have the container ID and the result of the ADD. After an error, the
	// caller runs DEL.
	Bind(context.Context, *CmdArgs) error
}

// errNoBinder: the ADD of a plugin needs to know the allocation.
var errNoBinder = errors.New("its ADD depends on the request")

// Bind calls the Binder of a native plugin. Other native plugins have nothing to do.
func (e *Exec) Bind(ctx context.Context, name string, a *CmdArgs) (err error) {
	a.exec, a.Host, a.Instance = e, e.Host, e.Instance
	factory, native := e.Plugins[name]
	if !native {
		return fmt.Errorf("plugin %q: %w", name, errNoBinder)
	}
	defer e.recovered(name, "bind", &err)
	p, why, err := e.choose(ctx, name, Repair, factory, a)
	if err := errors.Join(err, why); err != nil {
		return fmt.Errorf("plugin %q: %w", name, err)
	}
	if b, ok := p.(Binder); ok {
		if err := b.Bind(ctx, a); err != nil {
			return fmt.Errorf("plugin %q: %w", name, err)
		}
	}
	return nil
}

// Binds returns an error if the ADD of a plugin depends on more of a request than a Binder
// does afterwards. The ADD of a Restorer that is no Binder depends on nothing.
func (c *PluginConf) Binds(name string, factory Factory) error {
	p, err := c.make(pluginKey{name: name}, factory)
	if err != nil {
		return err
	}
	switch p.(type) {
	case Binder, Restorer:
		return nil
	}
	return errNoBinder
}
