package veth

import (
	"context"
	"errors"
	"fmt"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/object"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/lease"
)

// Attachment is what an attachment has. Its plugin compiles it from the configuration and the result of ADD; all operations
// follow from it.
type Attachment struct {
	Ends
	// Guard are the families of the source guard.
	Guard []ruleset.Family
	// Shared are objects of the host that several attachments have. With an equal Key, they are the same.
	Shared []object.Object
	Key    string
	// Own are the other objects of the host: the host's end of the veth with what belongs to it. Reach are those of them that a
	// repair of many attachments restores.
	Own, Reach []object.Object
	// Last are objects that are restored after the rules, and that only the CHECK of an attachment finds to be missing.
	Last []object.Object
	// Inside are the objects of the container's end.
	Inside []object.Object
	// Forwards: the host forwards for it, also if nothing else of the host is looked at.
	Forwards bool
	// Unclear says why the result cannot be that of the plugin.
	Unclear error
}

// Verbs are the operations of a plugin that follow from what its attachments have.
type Verbs struct {
	Keys  *sdk.Common // those of the plugin's configuration
	IPAM  IPAM
	Rules Rules
	// Compile returns what an attachment has according to the result of its ADD.
	Compile func(*sdk.CmdArgs, *types100.Result) *Attachment
}

//lint:ignore ST1005 text of the reference plugin
var errNoResult = errors.New("Required prevResult missing")

// previous returns the result of ADD.
func (v *Verbs) previous(c *sdk.CmdArgs) (*types100.Result, error) {
	r, err := c.Previous(v.Keys)
	if err == nil && r == nil {
		err = errNoResult
	}
	return r, err
}

// Check implements sdk.Plugin.
func (v *Verbs) Check(ctx context.Context, c *sdk.CmdArgs) error {
	r, err := v.previous(c)
	if err != nil {
		return err
	}
	if err := v.IPAM.Check(ctx, c); err != nil {
		return err
	}
	a := v.Compile(c, r)
	if a.Unclear != nil {
		return a.Unclear
	}
	host, inside, err := a.Views()
	if err != nil {
		return err
	}
	errs := []error{
		object.Check(ctx, host, a.Shared...), object.Check(ctx, inside, a.Inside...), object.Check(ctx, host, a.Own...),
		object.Check(ctx, host, a.Last...),
	}
	if len(a.Guard) > 0 {
		errs = append(errs, c.Host.Rules.CheckGuard(ctx, a.Guard...))
	}
	return errors.Join(append(errs, v.Rules.Check(ctx, c, r))...)
}

// Repair implements sdk.Repairer: it restores the leases, the source guard, both ends of the veth, what attachments share, and the
// rules. The MTU of the host's end comes before that of a bridge, and the elements before the port, which sends nothing without
// them.
func (v *Verbs) Repair(ctx context.Context, c *sdk.CmdArgs) error {
	r, err := c.Previous(v.Keys)
	if err != nil || r == nil {
		return err
	}
	leaseErr := v.IPAM.Repair(ctx, c)
	if errors.Is(leaseErr, lease.ErrTaken) {
		return leaseErr // another container has the address, and what the host has for it
	}
	errs := []error{leaseErr}
	a := v.Compile(c, r)
	if len(a.Guard) > 0 {
		_, err := c.Host.RestoreGuard(ctx, a.Guard...)
		errs = append(errs, err)
	}
	host, inside, err := a.Views()
	_, endErr := object.Restore(ctx, host, a.ends()...)
	_, sharedErr := object.Restore(ctx, host, a.Shared...)
	errs = append(errs, err, endErr, sharedErr, v.Rules.Restore(ctx, c, r))
	_, err = object.Restore(ctx, host, a.Own...)
	if errs = append(errs, err); inside != nil {
		_, err := object.Restore(ctx, inside, a.Inside...)
		errs = append(errs, err)
	}
	_, err = object.Restore(ctx, host, a.Last...)
	return errors.Join(append(errs, err)...)
}

// ends returns the host's end of the veth alone.
func (a *Attachment) ends() (list []object.Object) {
	for _, o := range a.Own {
		if _, is := o.(*object.End); is {
			list = append(list, o)
		}
	}
	return list
}

// Wanted implements sdk.Restorer. Individual CHECKs find what the reference plugin has set up.
func (v *Verbs) Wanted(_ context.Context, c *sdk.CmdArgs) (*sdk.Wanted, error) {
	r, err := c.Previous(v.Keys)
	if err != nil || r == nil || sdk.AddedByReference(c, v.Keys.Name, r) {
		return &sdk.Wanted{Individual: true}, err
	}
	a := v.Compile(c, r)
	w := &sdk.Wanted{Individual: len(a.Last) > 0}
	if len(a.Shared) > 0 {
		w.Objects = append(w.Objects, sdk.Object{Key: a.Key, Restore: a.restore(a.Shared)})
	}
	if len(a.Guard) > 0 {
		w.Objects = append(w.Objects, sdk.Object{
			Key:     fmt.Sprint("source guard ", a.Guard),
			Restore: func(ctx context.Context) (bool, error) { return c.Host.RestoreGuard(ctx, a.Guard...) },
		})
	}
	w.Objects = append(w.Objects, sdk.Object{Key: "veth " + c.Owner(v.Keys.Name).Veth(), Restore: a.restore(a.Reach)})
	v.Rules.Want(w, c, r)
	return w, nil
}

func (a *Attachment) restore(objects []object.Object) func(context.Context) (bool, error) {
	return func(ctx context.Context) (bool, error) { return object.Restore(ctx, a.Args.Host.View(), objects...) }
}

// Bind implements sdk.Binder. What another program has changed of the host meanwhile, it restores.
func (v *Verbs) Bind(ctx context.Context, c *sdk.CmdArgs) error {
	r, err := v.previous(c)
	if err != nil {
		return err
	}
	a := v.Compile(c, r)
	if err := RequireMTU(c.Host.Kernel, a.MTU, r); err != nil {
		return err
	}
	if !c.Unchanged {
		if len(a.Guard) > 0 {
			if err := c.Host.Guard(ctx, a.Guard...); err != nil {
				return err
			}
		}
		if _, err := object.Restore(ctx, c.Host.View(), slices.Concat(a.Shared, a.Reach)...); err != nil {
			return err
		}
	}
	if a.Forwards {
		return Forward(c.Host, r)
	}
	return nil
}

// Del implements sdk.Plugin.
func (v *Verbs) Del(ctx context.Context, c *sdk.CmdArgs) error {
	return Detach(ctx, c, v.Keys, v.IPAM, v.Rules)
}

// Disconnect implements sdk.Disconnecter.
func (v *Verbs) Disconnect(ctx context.Context, c *sdk.CmdArgs) error {
	return Disconnect(ctx, c, v.Keys, v.Rules, false)
}

// Status implements sdk.Plugin.
func (v *Verbs) Status(ctx context.Context, c *sdk.CmdArgs) error {
	return errors.Join(v.Rules.Masquerade.Validate(), v.IPAM.Status(ctx, c))
}

// GC implements sdk.Plugin.
func (v *Verbs) GC(ctx context.Context, c *sdk.CmdArgs) error {
	return Collect(ctx, c, v.Keys, v.IPAM, v.Rules)
}
