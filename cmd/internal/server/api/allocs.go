package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"

	"github.com/allocnet/allocnet/cmd/internal/server/strict"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/wire"
)

func (a *API) listAllocations(r *http.Request, _ *body) (work, error) {
	return func(ctx context.Context) (any, error) {
		records, err := a.options.Service().List(ctx)
		for i := range records {
			records[i].Networks = visible(r, records[i].Networks)
		}
		return wire.Allocations{Allocations: notNil(records), Error: wire.FromError(err)}, nil
	}, nil
}

func (a *API) getAllocation(r *http.Request, _ *body) (work, error) {
	return func(ctx context.Context) (any, error) {
		record, err := a.options.Service().Get(ctx, pathID(r))
		if err == nil {
			shown := *record
			shown.Networks = visible(r, record.Networks)
			record = &shown
		}
		return given(record, err)
	}, nil
}

// visible omits configurations for users other than root, who may not be allowed to read
// their files.
func visible(r *http.Request, networks []configurator.NetworkRecord) []configurator.NetworkRecord {
	if byRoot(r) {
		return networks
	}
	networks = slices.Clone(networks)
	for i := range networks {
		networks[i].Config = nil
	}
	return networks
}

func (a *API) setup(r *http.Request, b *body) (work, error) {
	alloc, err := allocation(r, b, false)
	if err == nil {
		err = a.permitAllocation(r, &alloc)
	}
	return func(ctx context.Context) (any, error) {
		return applied(a.options.Service().Setup(ctx, alloc))
	}, err
}

// applied is the answer with the Status of an allocation.
func applied(status *configurator.Status, err error) (any, error) {
	if status == nil || err != nil {
		return nil, err
	}
	return wire.Applied{Status: *status, Results: status.Results}, nil
}

func (a *API) update(r *http.Request, b *body) (work, error) {
	var change configurator.Change
	err := b.decode(&change, false)
	if err == nil {
		err = refuseNull(b.Bytes())
	}
	return func(ctx context.Context) (any, error) {
		return applied(a.options.Service().Update(ctx, pathID(r), change))
	}, err
}

// refuseNull returns an error for fields that are null: a client can mean a removal, but a Change
// leaves what it does not have.
func refuseNull(object []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(object, &fields); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrMalformed, err)
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if string(fields[name]) == "null" {
			return fmt.Errorf("%w: %s: is null: leave it out to keep what the allocation has; {} ends its policy or its limits", wire.ErrMalformed, name)
		}
	}
	return nil
}

func (a *API) attach(r *http.Request, b *body) (work, error) {
	var in wire.Attach
	err := b.decode(&in, false)
	return func(ctx context.Context) (any, error) {
		return applied(a.options.Service().Attach(ctx, pathID(r), in.Network, configurator.AttachOptions{Interface: in.Interface, Revision: in.Revision}))
	}, err
}

func (a *API) detach(r *http.Request, b *body) (work, error) {
	return func(ctx context.Context) (any, error) {
		return applied(a.options.Service().Detach(ctx, pathID(r), r.PathValue("interface"), r.URL.Query().Get("revision")))
	}, b.decode(&struct{}{}, true)
}

func (a *API) teardown(r *http.Request, b *body) (work, error) {
	alloc, err := a.recorded(r, b)
	return func(ctx context.Context) (any, error) {
		return nil, a.options.Service().Teardown(ctx, alloc)
	}, err
}

func (a *API) check(r *http.Request, b *body) (work, error) {
	alloc, err := a.recorded(r, b)
	repairs, queryErr := flagOf(r, "repair", true)
	return func(ctx context.Context) (any, error) {
		if !repairs {
			return nil, a.options.Service().CheckOnly(ctx, alloc)
		}
		return nil, a.options.Service().Check(ctx, alloc)
	}, errors.Join(err, queryErr)
}

// flagOf returns a boolean parameter of the query.
func flagOf(r *http.Request, name string, otherwise bool) (bool, error) {
	switch value := r.URL.Query().Get(name); value {
	case "":
		return otherwise, nil
	case "true", "false":
		return value == "true", nil
	default:
		return false, fmt.Errorf("%w: query parameter %s: %.64q is neither true nor false", wire.ErrMalformed, name, value)
	}
}

func (a *API) teardownGone(r *http.Request, b *body) (work, error) {
	return func(ctx context.Context) (any, error) {
		gone, err := a.options.Service().TeardownGone(ctx, pathID(r))
		return wire.Gone{Gone: gone, Error: wire.FromError(err)}, err
	}, b.decode(&struct{}{}, true)
}

func (a *API) audit(r *http.Request, b *body) (work, error) {
	alloc, err := a.recorded(r, b)
	return func(ctx context.Context) (any, error) {
		found, err := a.options.Service().Audit(ctx, alloc)
		return wire.Found{Leftovers: notNil(found), Error: wire.FromError(err)}, err
	}, err
}

func (a *API) force(r *http.Request, b *body) (work, error) {
	alloc, err := a.recorded(r, b)
	return func(ctx context.Context) (any, error) {
		removed, err := a.options.Service().Force(ctx, alloc)
		return wire.Found{Leftovers: notNil(removed), Error: wire.FromError(err)}, err
	}, err
}

// readyFor uses only some fields of an allocation, so it needs no ID.
func (a *API) readyFor(r *http.Request, b *body) (work, error) {
	var alloc configurator.Allocation
	err := b.decode(&alloc, true)
	if err == nil {
		err = a.permitAllocation(r, &alloc)
	}
	return func(ctx context.Context) (any, error) {
		return nil, a.options.Service().ReadyFor(ctx, alloc)
	}, err
}

// recorded returns the allocation of a request whose record, if there is one, overrides
// the body: then the configurations and directories in the body are dropped.
func (a *API) recorded(r *http.Request, b *body) (configurator.Allocation, error) {
	alloc, err := allocation(r, b, true)
	if err != nil {
		return alloc, err
	}
	refused := a.permitAllocation(r, &alloc)
	if refused == nil {
		return alloc, nil
	}
	_, err = a.options.Service().Get(r.Context(), alloc.ID)
	if errors.Is(err, configurator.ErrNotFound) {
		err = refused
	}
	alloc.Conflists, alloc.PluginDirs, alloc.NetnsOverride = nil, nil, false
	return alloc, err
}

func (a *API) permitAllocation(r *http.Request, alloc *configurator.Allocation) error {
	if alloc.NetnsOverride && !byRoot(r) {
		return fmt.Errorf("%w: only root may set up the host's own network namespace", wire.ErrForbidden)
	}
	return a.permit(r, len(alloc.Conflists), len(alloc.PluginDirs))
}

// permit refuses network configurations and plugin directories that the sender is not
// permitted to send. Directories would let it run any program as root.
func (a *API) permit(r *http.Request, conflists, pluginDirs int) error {
	switch {
	case conflists > 0 && !a.maySendConflists(r):
		return wire.ErrConflists
	case pluginDirs > 0 && !byRoot(r):
		return fmt.Errorf("%w: only root may name plugin directories", wire.ErrForbidden)
	}
	return nil
}

// allocation returns the allocation that the body describes, with the ID of the path.
func allocation(r *http.Request, b *body, optional bool) (configurator.Allocation, error) {
	var alloc configurator.Allocation
	err := b.decode(&alloc, optional)
	if err == nil && alloc.ID != "" && alloc.ID != pathID(r) {
		err = fmt.Errorf("%w: %w", wire.ErrMalformed, strict.Wrong("id", fmt.Sprintf("is %q, but the path has %q", alloc.ID, pathID(r))))
	}
	alloc.ID = pathID(r)
	return alloc, err
}

// given returns nil for a nil pointer, so that it does not become a non-nil value.
func given[T any](v *T, err error) (any, error) {
	if v == nil || err != nil {
		return nil, err
	}
	return v, nil
}

func notNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
