package sdk

import (
	"context"
	"errors"
)

// Binder is a plugin whose ADD may run before the allocation is known, for a slot of a
// pool. Of the request, the ADD of a slot has only the network.
type Binder interface {
	// Bind does what ADD does for the rest of the request, such as host ports. The
	// arguments have the container ID and the result of the ADD. After an error, the
	// caller runs DEL.
	Bind(context.Context, *CmdArgs) error
}

// Preparer is a Binder that can do a part of Bind ahead, in the slot, because it depends on the
// network alone.
type Preparer interface {
	Binder
	// Prepare is called after the ADD of a slot, with its result. Bind may rely on it if
	// CmdArgs.Unchanged is set. DEL removes what it makes.
	Prepare(context.Context, *CmdArgs) error
}

// errNoBinder: the ADD of a plugin needs to know the allocation.
var errNoBinder = errors.New("its ADD depends on the request")

// Bind calls the Binder of a native plugin. Other native plugins have nothing to do.
func (e *Exec) Bind(ctx context.Context, name string, a *CmdArgs) error {
	return e.forSlot(ctx, name, "bind", a, func(p Plugin) error {
		if b, ok := p.(Binder); ok {
			return b.Bind(ctx, a)
		}
		return nil
	})
}

// Prepare calls the Preparer of a native plugin. Other native plugins have nothing to do.
func (e *Exec) Prepare(ctx context.Context, name string, a *CmdArgs) error {
	return e.forSlot(ctx, name, "prepare", a, func(p Plugin) error {
		if b, ok := p.(Preparer); ok {
			return b.Prepare(ctx, a)
		}
		return nil
	})
}

// forSlot runs a native plugin for a slot, as do does it.
func (e *Exec) forSlot(ctx context.Context, name, command string, a *CmdArgs, do func(Plugin) error) (err error) {
	a.exec, a.Host, a.Instance = e, e.Host, e.Instance
	factory, native := e.Plugins[name]
	if !native {
		return named(name, errNoBinder)
	}
	defer e.recovered(name, command, &err)
	p, why, err := e.choose(ctx, name, Repair, factory, a)
	if err = errors.Join(err, why); err == nil {
		err = do(p)
	}
	return named(name, err)
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
