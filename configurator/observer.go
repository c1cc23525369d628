package configurator

import (
	"context"

	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/record"
)

// Observer is called when operations and their steps begin and end. It is for metrics,
// traces and logs. It must be safe for concurrent use, must not block and must not call the
// Configurator.
type Observer interface {
	// Begin is called before a step. The step runs with the returned context.
	Begin(ctx context.Context, s Step) context.Context
	// End is called after a step with the context that Begin returned. s also has the
	// fields that were not known at the beginning: the networks and the engine.
	End(ctx context.Context, s Step, err error)
}

// operationKey is the key of the running operation in a context.
type operationKey struct{}

// running is an operation. Its steps fill in the fields that were not known at the
// beginning.
type running struct {
	Step
	container string
	args      [][2]string // as in the record
}

// operation runs an operation, calls the Observer and logs the success at level debug.
// Without an Observer and that level, it only calls do.
func (c *Configurator) operation(ctx context.Context, name, id string, do func(context.Context) error) error {
	do = c.yielding(name, do)
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
		whole.Args = plan.PublicArgs(whole.args)
		observer.End(ctx, whole.Step, err)
	}
	if err == nil {
		c.cfg.Logger.Debug("operation succeeded", "operation", name, "alloc", id, "container", whole.container,
			"networks", whole.Networks, "engine", whole.Engine, "took", c.now().Sub(began))
	}
	return err
}

// step runs a step of the operation in the context. It takes the networks and the engine from
// the record.
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

// lock locks an allocation. It waits for other operations on it.
func (c *Configurator) lock(ctx context.Context, id string) (unlock func(), err error) {
	err = c.step(ctx, StepLock, &record.Record{ID: id}, func(ctx context.Context) error {
		unlock, err = c.store.Lock(ctx, id)
		return err
	})
	return unlock, err
}

// lockNetworks takes a shared lock of each network of a record. It excludes CNI GC of
// the networks, because no ADD or DEL may run at the same time (CNI specification,
// "GC"). The caller holds the lock of the allocation.
func (c *Configurator) lockNetworks(ctx context.Context, r *record.Record) (unlock func(), err error) {
	var names []string
	for _, a := range r.Attachments {
		names = append(names, a.Network)
	}
	if r.Pending != nil {
		names = append(names, r.Pending.Network)
	}
	return c.store.Share(ctx, names)
}
