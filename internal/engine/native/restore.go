package native

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime/debug"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Restore is Repair of many allocations at once. It restores the elements of all of
// them in one transaction, and objects that they share once. If several have the same
// host port, the one with the lowest PortOrder gets it. The outcomes are in the order of the requests. The
// error means that nothing could be restored.
func (e *Engine) Restore(ctx context.Context, requests []*engine.Request) ([]engine.Restored, error) {
	host, err := e.open()
	if err != nil {
		return nil, fmt.Errorf("restore %d allocations: %w", len(requests), err)
	}
	host.Cache.Clear()
	r := &restoration{host: host, outcomes: make([]engine.Restored, len(requests))}
	for i, request := range requests {
		if err := r.collect(ctx, e, i, request); err != nil {
			r.outcomes[i].Check, r.outcomes[i].Err = true, fmt.Errorf("restore allocation %q: %w", request.ID, err)
		}
	}
	r.objects(ctx, func(w *sdk.Wanted) []sdk.Object { return w.First })
	if err = r.elements(ctx); err == nil {
		r.objects(ctx, func(w *sdk.Wanted) []sdk.Object { return w.Last })
	}
	r.objects(ctx, func(w *sdk.Wanted) []sdk.Object { return w.Objects })
	r.sources(ctx)
	r.settle(ctx)
	if err != nil {
		return r.outcomes, fmt.Errorf("restore %d allocations: %w", len(requests), err)
	}
	return r.outcomes, nil
}

// DelUnused removes what allocations shared and none uses any more: exemptions from
// masquerading. It returns how many.
func (e *Engine) DelUnused(ctx context.Context) (int, error) {
	host, err := e.open()
	if err != nil {
		return 0, err
	}
	return host.Rules.DelUnusedExemptions(ctx)
}

// restoration is what the host must have for many allocations.
type restoration struct {
	host     *sdk.Host
	outcomes []engine.Restored
	wanted   []wanted
}

// wanted is what one plugin wants for the allocation with a number.
type wanted struct {
	*sdk.Wanted
	by int
	// changed: something of it was restored.
	changed *bool
}

func newWanted(w *sdk.Wanted, by int) wanted { return wanted{w, by, new(bool)} }

// collect asks the plugins of a request what the host must have.
func (r *restoration) collect(ctx context.Context, e *Engine, number int, request *engine.Request) error {
	exec, err := e.exec(request)
	if err != nil {
		return err
	}
	defer exec.Close()
	var errs []error
	for i, a := range request.Attachments {
		c := e.newChain(exec, request, i)
		if c.network.err != nil || a.Result == nil {
			errs = append(errs, c.network.err)
			r.outcomes[number].Check = true
			continue
		}
		for j, p := range a.Network.List.Plugins {
			args := c.args(j, a.Result)
			args.Restoring = true
			w, err := exec.Wanted(ctx, p.Network.Type, args)
			if errs = append(errs, err); err != nil {
				continue
			}
			r.outcomes[number].Check = r.outcomes[number].Check || w.Individual
			r.wanted = append(r.wanted, newWanted(w, number))
		}
	}
	shared, err := e.crossingsOf(ctx, exec, request)
	for _, elements := range shared {
		r.wanted = append(r.wanted, newWanted(&sdk.Wanted{Elements: elements}, number))
	}
	return errors.Join(append(errs, err)...)
}

// elements restores the elements of allocnet's tables.
func (r *restoration) elements(ctx context.Context) error {
	var list []*ruleset.Elements
	var of []wanted
	for _, w := range r.wanted {
		if w.Elements != nil {
			list, of = append(list, w.Elements), append(of, w)
		}
	}
	if len(list) == 0 {
		return nil
	}
	done, err := r.host.Rules.Restore(ctx, list)
	if err != nil {
		return err
	}
	for _, i := range done.Unsettled {
		r.outcomes[of[i].by].Check = true
	}
	var addresses []netip.Addr
	for _, i := range done.Changed {
		r.outcomes[of[i].by].Changed, *of[i].changed = true, true
		addresses = append(addresses, list[i].Translated()...)
		if of[i].Restored == nil {
			continue
		}
		if err := of[i].Restored(ctx); err != nil {
			r.host.Log.Warn("packets of existing connections to the host port may not reach the container", "error", err)
		}
	}
	if err := r.host.FlushStale(ctx, addresses...); err != nil {
		r.host.Log.Warn("connections that began while rules were missing may go on", "error", err)
	}
	return nil
}

// objects restores some of the other objects, each once.
func (r *restoration) objects(ctx context.Context, of func(*sdk.Wanted) []sdk.Object) {
	type outcome struct {
		changed bool
		err     error
	}
	seen := map[string]outcome{}
	for _, w := range r.wanted {
		for _, o := range of(w.Wanted) {
			is, known := seen[o.Key]
			if !known {
				is.changed, is.err = r.restore(ctx, o)
				seen[o.Key] = is
				r.outcomes[w.by].Changed = r.outcomes[w.by].Changed || is.changed
			}
			*w.changed = *w.changed || is.changed
			r.failed(w.by, is.err)
		}
	}
}

// settle calls Settle for all of which something was restored.
func (r *restoration) settle(ctx context.Context) {
	var by []int
	var subjects []any
	var settle func(context.Context, []any) error
	for _, w := range r.wanted {
		if *w.changed && w.Settle != nil {
			by, subjects, settle = append(by, w.by), append(subjects, w.Subject), w.Settle
		}
	}
	if settle == nil {
		return
	}
	_, err := r.restore(ctx, sdk.Object{Key: "what follows", Restore: func(ctx context.Context) (bool, error) { return true, settle(ctx, subjects) }})
	for _, i := range by {
		r.failed(i, err)
	}
}

// restore restores one object. A panic becomes an error, as in all calls of plugins.
func (r *restoration) restore(ctx context.Context, o sdk.Object) (changed bool, err error) {
	defer func() {
		if value := recover(); value != nil {
			r.host.Log.Error("a native plugin panicked", "object", o.Key, "panic", value, "stack", string(debug.Stack()))
			err = fmt.Errorf("restore %s: panicked: %v", o.Key, value)
		}
	}()
	return o.Restore(ctx)
}

// failed notes an error: CHECK decides what it means for the allocation.
func (r *restoration) failed(by int, err error) {
	if err != nil {
		r.outcomes[by].Check, r.outcomes[by].Err = true, errors.Join(r.outcomes[by].Err, err)
	}
}

// sources restores the sources of firewalld's zones. It lists them with one call.
func (r *restoration) sources(ctx context.Context) {
	var is map[netip.Addr]string
	var listErr error
	listed := false
	for _, w := range r.wanted {
		for _, s := range w.Sources {
			if !listed {
				listed = true
				is, listErr = r.host.Firewalld.Sources(ctx)
			}
			err := listErr
			if err == nil && is[s.Address] != s.Zone {
				r.outcomes[w.by].Changed = true
				err = r.host.Firewalld.Add(ctx, s.Zone, s.Address)
			}
			r.failed(w.by, err)
		}
	}
}
