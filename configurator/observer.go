package configurator

import (
	"context"

	"github.com/allocnet/allocnet/internal/state/record"
)

// Observer is told when operations and their steps begin and end: for metrics,
// traces and logs. It is called from the goroutines of the operations, several at
// once, must not wait and must not call the Configurator.
type Observer interface {
	// Begin is called before the step, which runs with the context that it
	// returns.
	Begin(ctx context.Context, s Step) context.Context
	// End is called after the step, with the context that Begin returned. What was
	// not known at the beginning (the networks, the engine) is filled in by now.
	End(ctx context.Context, s Step, err error)
}

// operationKey is where a context has the running operation.
type operationKey struct{}

// running is a whole operation, of which steps tell what it did not know at first.
type running struct {
	Step
	container string
	args      [][2]string // as in the record
}

// operation runs an operation, and logs at debug that it succeeded. Without an Observer
// and that level it costs nothing.
func (c *Configurator) operation(ctx context.Context, name, id string, do func(context.Context) error) error {
	observer := c.cfg.Observer
	if observer == nil && !c.cfg.Logger.IsDebug() {
		return do(ctx)
	}
	began := c.now()
	whole := &running{Step: Step{Operation: name, ID: id}, container: id}
	if observer != nil {
		ctx = observer.Begin(ctx, whole.Step)
	}
	err := do(context.WithValue(ctx, operationKey{}, whole))
	if observer != nil {
		whole.Args = publicArgs(whole.args)
		observer.End(ctx, whole.Step, err)
	}
	if err == nil {
		c.cfg.Logger.Debug("operation succeeded", "operation", name, "alloc", id, "container", whole.container,
			"networks", whole.Networks, "engine", whole.Engine, "took", c.now().Sub(began))
	}
	return err
}

// step runs a step of the operation that the context is of. The operation's
// networks and engine are those of the record.
func (c *Configurator) step(ctx context.Context, name string, r *record.Record, do func(context.Context) error) error {
	whole, ok := ctx.Value(operationKey{}).(*running)
	if !ok {
		return do(ctx)
	}
	s := &Step{Operation: whole.Operation, Name: name, ID: r.ID}
	if c.cfg.Observer != nil {
		ctx = c.cfg.Observer.Begin(ctx, *s)
	}
	err := do(ctx)
	s.Engine, s.Networks = Engine(r.Engine), nil
	for _, a := range r.Attachments {
		s.Networks = append(s.Networks, a.Network)
	}
	if whole.ID != "" {
		whole.Engine, whole.Networks, whole.container, whole.args = s.Engine, s.Networks, r.Container(), r.Args
	}
	if c.cfg.Observer != nil {
		c.cfg.Observer.End(ctx, *s, err)
	}
	return err
}

// lock waits for other operations on an allocation.
func (c *Configurator) lock(ctx context.Context, id string) (unlock func(), err error) {
	err = c.step(ctx, StepLock, &record.Record{ID: id}, func(ctx context.Context) error {
		unlock, err = c.store.Lock(ctx, id)
		return err
	})
	return unlock, err
}

// share waits for a GC of the plugins of a record's networks, and keeps the next one
// off them: no ADD or DEL may run beside it (CNI specification, "GC"). The caller has
// the allocation's lock.
func (c *Configurator) lockNetworks(ctx context.Context, r *record.Record) (unlock func(), err error) {
	var names []string
	for _, a := range r.Attachments {
		names = append(names, a.Network)
	}
	return c.store.Share(ctx, names)
}
