package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/allocnet/allocnet/cmd/internal/server/strict"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/wire"
)

// gc requires the list of live allocations, even if it is empty: without the list all
// allocations would be removed.
func (a *API) gc(r *http.Request, b *body) (work, error) {
	var request wire.Collect
	err := b.decode(&request, false)
	if err == nil && request.Live == nil {
		err = fmt.Errorf("%w: %w", wire.ErrMalformed, strict.Wrong("live", "is missing"))
	}
	if err == nil {
		err = a.permit(r, len(request.Conflists), len(request.PluginDirs))
	}
	return func(ctx context.Context) (any, error) {
		collect := a.options.Service().GCScope
		if request.DryRun {
			collect = a.options.Service().PlanGC
		}
		report, err := collect(ctx, configurator.Scope{
			Name: request.Scope, Live: request.Live, Attachments: request.Attachments, Networks: request.Networks, Conflists: request.Conflists,
			PluginDirs: request.PluginDirs, DestroyNetns: request.DestroyNetns,
		})
		if report == nil {
			return nil, err
		}
		return wire.Collected{GCReport: *report, Error: wire.FromError(err)}, err
	}, err
}

func (a *API) repair(_ *http.Request, b *body) (work, error) {
	var request wire.Selection
	err := b.decode(&request, true)
	return func(ctx context.Context) (any, error) {
		report, err := a.options.Service().RepairScope(ctx, configurator.Scope{Name: request.Scope})
		if report == nil {
			return nil, err
		}
		return wire.Repaired{RepairReport: *report, Error: wire.FromError(err)}, err
	}, err
}

func (a *API) recoverAllocations(_ *http.Request, b *body) (work, error) {
	var request wire.Selection
	err := b.decode(&request, true)
	return func(ctx context.Context) (any, error) {
		report, err := a.options.Service().RecoverScope(ctx, configurator.Scope{Name: request.Scope})
		if report == nil {
			return nil, err
		}
		return wire.Recovered{RecoverReport: *report, Error: wire.FromError(err)}, err
	}, err
}
