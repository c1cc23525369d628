package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/allocnet/allocnet/cmd/internal/server/strict"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/wire"
)

// gc wants the live allocations named, even if there are none: to forget them
// would take all away.
func (a *API) gc(r *http.Request, b *body) (work, error) {
	var asked wire.Collect
	err := b.decode(&asked, false)
	if err == nil && asked.Live == nil {
		err = fmt.Errorf("%w: %w", wire.ErrMalformed, strict.Wrong("live", "is missing"))
	}
	if err == nil {
		err = a.permit(r, len(asked.Conflists), len(asked.PluginDirs))
	}
	return func(ctx context.Context) (any, error) {
		collect := a.options.Service().GCScope
		if asked.DryRun {
			collect = a.options.Service().PlanGC
		}
		report, err := collect(ctx, configurator.Scope{
			Name: asked.Scope, Live: asked.Live, Attachments: asked.Attachments, Networks: asked.Networks, Conflists: asked.Conflists,
			PluginDirs: asked.PluginDirs, DestroyNetns: asked.DestroyNetns,
		})
		if report == nil {
			return nil, err
		}
		return wire.Collected{GCReport: *report, Error: wire.FromError(err)}, err
	}, err
}

func (a *API) repair(_ *http.Request, b *body) (work, error) {
	var asked wire.Selection
	err := b.decode(&asked, true)
	return func(ctx context.Context) (any, error) {
		report, err := a.options.Service().RepairScope(ctx, configurator.Scope{Name: asked.Scope})
		if report == nil {
			return nil, err
		}
		return wire.Repaired{RepairReport: *report, Error: wire.FromError(err)}, err
	}, err
}

func (a *API) recoverAllocations(_ *http.Request, b *body) (work, error) {
	var asked wire.Selection
	err := b.decode(&asked, true)
	return func(ctx context.Context) (any, error) {
		report, err := a.options.Service().RecoverScope(ctx, configurator.Scope{Name: asked.Scope})
		if report == nil {
			return nil, err
		}
		return wire.Recovered{RecoverReport: *report, Error: wire.FromError(err)}, err
	}, err
}
