package configurator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plan"
	policyplugin "github.com/allocnet/allocnet/internal/plugins/policy"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
)

// Attach adds a network to an allocation that is set up: an interface in its network namespace,
// with addresses and routes. The network is the last one of the allocation from then on, and
// Teardown removes it first. Status describes the whole allocation.
//
// The host ports, addresses and the MAC address of the request stay with the networks that got
// them in Setup. A later Setup of the ID must request the networks that the allocation has then,
// else it returns ErrDifferent.
//
// If an address or a port of a bridge is missing that removals behind their Teardown still have,
// Attach waits for them as Setup does.
//
// Attach needs a network whose plugins all are native ones; otherwise it returns
// ErrCannotUpdate. It returns ErrInUse if the interface exists, ErrNotFound if the allocation is
// not set up, a *RevisionError as Update does, and the errors of ADD. After an error nothing has
// changed, unless the attachment could not be removed again. Then, and after the death of the
// process, Recover, Repair and the next change of the allocation remove it.
func (c *Configurator) Attach(ctx context.Context, id, network string, o AttachOptions) (status *Status, err error) {
	err = c.operation(ctx, "attach", id, func(ctx context.Context) error {
		if network == "" {
			return fmt.Errorf("attach allocation %q: %w: name the network", id, ErrInvalidAllocation)
		}
		n, err := c.lookupToUse(network)
		if err != nil {
			return err
		}
		status, err = c.change(ctx, id, o.Revision, n.Name, func(p *plan.Plan) (*Status, error) {
			return c.addNetwork(ctx, p, n, o.Interface)
		})
		return err
	})
	return status, err
}

// addNetwork adds an attachment with the given interface. Without a name, it passes over those
// that something else has in the network namespace, such as another allocation of a runtime.
func (c *Configurator) addNetwork(ctx context.Context, p *plan.Plan, n *conflist.Network, given string) (*Status, error) {
	if given != "" {
		return c.addInterface(ctx, p, n, given)
	}
	for number := 0; ; number++ {
		name := p.InterfacePrefix + strconv.Itoa(number)
		if p.InterfaceAt(name) >= 0 {
			continue
		}
		status, err := c.addInterface(ctx, p, n, name)
		if !errors.Is(err, ErrInUse) || number >= maxInterfaces {
			return status, err
		}
	}
}

// maxInterfaces bounds the search for a free name of an interface.
const maxInterfaces = 1000

// addInterface adds an attachment with an interface. If it lacks what removals behind their Teardown or a
// pool have, it makes one more ADD when they have released something, as Setup does.
func (c *Configurator) addInterface(ctx context.Context, p *plan.Plan, n *conflist.Network, name string) (*Status, error) {
	for released := false; ; released = true {
		one, err := c.planAttachment(p, n, name)
		if err != nil {
			return nil, fmt.Errorf("attach allocation %q to network %q: %w", p.ID, n.Name, err)
		}
		since := c.backlog.moment()
		status, err := c.addAttachment(ctx, p, one)
		if released || ctx.Err() != nil || errors.Is(err, ErrIncomplete) || !lacks(err) || !c.backlog.settle(ctx, since) && !c.yieldSlots(one) {
			return status, err
		}
	}
}

// Detach removes a network of an allocation that is set up, with its interface. It does not
// remove the first network, whose address is that of the allocation, nor one that publishes host
// ports: then it returns ErrCannotUpdate. Limits that none of the other networks can have end with
// it. It returns ErrNotFound if the allocation has no such
// interface, and a *RevisionError as Update does if revision is not "".
//
// Once the removal is recorded, the end of the context does not stop it: it gets ten seconds more.
// If the network cannot be removed, Detach returns ErrIncomplete. Then, and after the death of
// the process, Recover, Repair and the next change of the allocation finish it. So does Detach of
// the same interface, also with the revision from before.
func (c *Configurator) Detach(ctx context.Context, id, interfaceName, revision string) (status *Status, err error) {
	err = c.operation(ctx, "detach", id, func(ctx context.Context) error {
		status, err = c.withLive(ctx, id, "", func(p *plan.Plan) (*Status, error) {
			return c.detach(ctx, p, interfaceName, revision)
		})
		return err
	})
	return status, err
}

// detach is Detach under the locks of the allocation and its networks.
func (c *Configurator) detach(ctx context.Context, p *plan.Plan, interfaceName, revision string) (*Status, error) {
	repeats := p.IsDetaching(interfaceName)
	if repeats && revision == plan.RevisionBefore(p.Record) {
		revision = ""
	}
	err := c.beginChange(ctx, p, revision)
	switch {
	case repeats && errors.Is(err, record.ErrUnfinished):
		return nil, fmt.Errorf("%w: %w", ErrIncomplete, err)
	case err != nil:
		return nil, err
	case repeats:
		return plan.StatusOf(p.Record)
	}
	i, err := p.Detachable(interfaceName)
	if err != nil {
		return nil, fmt.Errorf("detach interface %q of allocation %q: %w", interfaceName, p.ID, err)
	}
	return c.removeAttachment(ctx, p, i)
}

// planAttachment returns the plan of a new attachment alone.
func (c *Configurator) planAttachment(p *plan.Plan, n *conflist.Network, name string) (*plan.Plan, error) {
	if err := names.ValidateNewInterface(name); err != nil {
		return nil, fmt.Errorf("%w: interface: %w", ErrInvalidAllocation, err)
	}
	if err := p.RequireNative(); err != nil {
		return nil, err
	}
	if n.IsLoopback() {
		return nil, fmt.Errorf("%w: it is the loopback interface", ErrInvalidAllocation)
	}
	if slices.ContainsFunc(p.Attachments, func(a record.Attachment) bool { return a.Network == n.Name }) {
		return nil, fmt.Errorf("%w: the allocation is attached to it already", ErrInvalidAllocation)
	}
	if err := plan.ValidateNetworkName(n); err != nil {
		return nil, err
	}
	n, err := n.WithoutCapabilities(plan.OneInterface...)
	if err != nil {
		return nil, err
	}
	if p.InterfaceAt(name) >= 0 {
		return nil, fmt.Errorf("%w: it has an interface %q already", ErrInUse, name)
	}
	one := p.Single(record.Attachment{Network: n.Name, IfName: name, Attached: true, Config: n.Bytes}, n)
	if err := one.RequirePolicies(p.Policy); err != nil {
		return nil, err
	}
	if err := c.requireRoom(n); err != nil {
		return nil, err
	}
	c.noteBinaries(one)
	if !c.native.Understands(n) || !c.runsInProcess(one) {
		return nil, fmt.Errorf("%w: plugins of the network run as binaries", ErrCannotUpdate)
	}
	return one, nil
}

// addAttachment records the intent, runs ADD of the attachment of one, and records the result.
// If that fails, it removes the attachment again.
func (c *Configurator) addAttachment(ctx context.Context, p, one *plan.Plan) (*Status, error) {
	intent := p.Changed(func(r *record.Record) { r.Pending = &one.Attachments[0] })
	if err := c.reserve(ctx, intent); err != nil {
		return nil, err
	}
	err := c.enforceOnAll(ctx, p)
	if err == nil {
		err = c.step(ctx, StepAdd, one.Record, func(ctx context.Context) error {
			ctx, cancel := c.withAddTimeout(ctx)
			defer cancel()
			request, err := c.request(one)
			if err != nil {
				return fmt.Errorf("%w: %w", engine.ErrNothingDone, err)
			}
			results, err := c.native.Add(ctx, request)
			return errors.Join(err, keepResults(one, results))
		})
	}
	if err == nil {
		err = ctx.Err()
	}
	done := p.With(append(slices.Clone(p.Attachments), one.Attachments[0]), append(slices.Clone(p.Networks), one.Networks[0]))
	if err == nil {
		err = c.step(ctx, StepRecord, done.Record, func(context.Context) error { return c.put(done.Record) })
	}
	if err != nil {
		return nil, errors.Join(err, c.undoAttach(ctx, p, intent, err))
	}
	return plan.StatusOf(done.Record)
}

// enforceOnAll makes the policies of an allocation apply to its addresses on every network, before one
// more network is attached.
func (c *Configurator) enforceOnAll(ctx context.Context, p *plan.Plan) error {
	if !p.Declares(policyplugin.Capability) {
		return nil
	}
	return c.apply(ctx, StepEnforce, p, func(ctx context.Context, request *engine.Request) error {
		request.More = true
		return c.native.Enforce(ctx, request)
	})
}

// undoAttach removes an attachment after an ADD that failed with cause, and records that nothing
// has changed.
func (c *Configurator) undoAttach(ctx context.Context, p, intent *plan.Plan, cause error) error {
	if errors.Is(cause, engine.ErrNothingDone) {
		if err := c.put(p.Record); err != nil {
			return record.Unfinished(err)
		}
		return nil
	}
	if err := c.dropPending(ctx, intent); err != nil {
		return fmt.Errorf("%w: the attachment could not be removed; Repair tries it again: %w", ErrIncomplete, err)
	}
	return nil
}

// removeAttachment records the intent, and runs DEL of one attachment.
func (c *Configurator) removeAttachment(ctx context.Context, p *plan.Plan, i int) (*Status, error) {
	gone := p.Attachments[i]
	done := p.With(slices.Delete(slices.Clone(p.Attachments), i, i+1), slices.Delete(slices.Clone(p.Networks), i, i+1))
	done.Pending = &gone
	if !done.Declares(plan.Bandwidth) { // a Setup could not request limits of the remaining networks
		var err error
		if done.Capabilities, err = plan.WithLimits(p.Capabilities, Bandwidth{}); err != nil {
			return nil, err
		}
	}
	if err := c.put(done.Record); err != nil {
		return nil, err
	}
	if err := c.dropPending(ctx, done); err != nil {
		return nil, fmt.Errorf("detach interface %q of allocation %q: %w: %w", gone.IfName, p.ID, ErrIncomplete, err)
	}
	return plan.StatusOf(done.Record)
}

// dropPending runs DEL of the attachment that is being added or removed, and records that it is
// gone. The end of the context does not stop that before undoTimeout is over. An error is also a
// record.ErrUnfinished.
func (c *Configurator) dropPending(ctx context.Context, p *plan.Plan) error {
	ctx, cancel := withTimeAfter(ctx, undoTimeout)
	defer cancel()
	if err := c.delPending(ctx, p); err != nil {
		return record.Unfinished(err)
	}
	return nil
}

func (c *Configurator) delPending(ctx context.Context, p *plan.Plan) error {
	n, err := c.confs.Recorded(p.Pending.Network, p.Pending.Config)
	if err != nil {
		return err
	}
	one := p.Single(*p.Pending, n)
	err = c.step(ctx, StepDel, one.Record, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
		defer cancel()
		request, err := c.request(one)
		if err != nil {
			return err
		}
		return c.native.Del(ctx, request)
	})
	if err != nil {
		return err
	}
	gone := p.Changed(func(r *record.Record) { r.Pending = nil })
	if err := c.put(gone.Record); err != nil {
		return err
	}
	*p.Record = *gone.Record
	return nil
}

// finishPending finishes an Attach or Detach that was interrupted, if there is one. The caller
// holds the locks of the allocation and its networks, and has opened its network namespace.
func (c *Configurator) finishPending(ctx context.Context, p *plan.Plan) error {
	if p.Pending == nil {
		return nil
	}
	c.cfg.Logger.Warn("an attach or detach was interrupted; removing the attachment", "alloc", p.ID, "network", p.Pending.Network, "interface", p.Pending.IfName)
	if err := c.dropPending(ctx, p); err != nil {
		return fmt.Errorf("finish the interrupted attach or detach of allocation %q: remove its attachment to network %q: %w", p.ID, p.Pending.Network, err)
	}
	return nil
}

// planToRemove is planOf for the removal of the whole allocation: it includes an attachment that
// is being added or removed.
func (c *Configurator) planToRemove(r *record.Record) *plan.Plan {
	if r.Pending != nil {
		r.Attachments, r.Pending = append(slices.Clone(r.Attachments), *r.Pending), nil
	}
	return c.planOf(r)
}
