package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/wire"
)

func (a *API) listNetworks(*http.Request, *body) (work, error) {
	return func(ctx context.Context) (any, error) {
		networks, skipped := a.options.Service().Networks(ctx)
		list := wire.Networks{Networks: notNil(networks), Skipped: []wire.SkippedFile{}}
		for _, s := range skipped {
			list.Skipped = append(list.Skipped, wire.SkippedFile{File: s.File, Error: wire.FromError(s)})
		}
		return list, nil
	}, nil
}

// hostStatus returns the overview of the host.
func (a *API) hostStatus(*http.Request, *body) (work, error) {
	return a.shared("status", func(ctx context.Context) any { return a.options.Status(ctx) }), nil
}

// hostTraffic returns the traffic of all allocations.
func (a *API) hostTraffic(*http.Request, *body) (work, error) {
	return a.shared("traffic", func(ctx context.Context) any { return a.options.Traffic(ctx) }), nil
}

// hostDenials returns the flows that network policies have dropped.
func (a *API) hostDenials(*http.Request, *body) (work, error) {
	return a.shared("denials", func(ctx context.Context) any { return a.options.Denials(ctx) }), nil
}

// shared returns work that shares one result among all concurrent requests, because it
// looks at all allocations.
func (a *API) shared(key string, do func(context.Context) any) work {
	return func(ctx context.Context) (any, error) {
		answer := a.overview.DoChan(key, func() (any, error) {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.limits.ReadTimeout)
			defer cancel()
			return do(ctx), nil
		})
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case got := <-answer:
			return got.Val, nil
		}
	}
}

func (a *API) history(r *http.Request, _ *body) (work, error) {
	query := r.URL.Query()
	q := configurator.HistoryQuery{ID: query.Get("id")}
	if limit := query.Get("limit"); limit != "" {
		var err error
		if q.Limit, err = strconv.Atoi(limit); err != nil || q.Limit < 1 {
			return nil, fmt.Errorf("%w: query parameter limit: %.64q is not a number of at least 1", wire.ErrMalformed, limit)
		}
	}
	return func(ctx context.Context) (any, error) {
		list, err := a.options.Service().History(ctx, q)
		if err != nil {
			return nil, err
		}
		return wire.History{Operations: notNil(list)}, nil
	}, nil
}

func (a *API) healthz(w http.ResponseWriter, r *http.Request) {
	a.send(w, r, http.StatusOK, wire.Health{Status: "ok"})
}

// readyz shares one answer among all concurrent requests. It does not enter a limiter,
// because a plugin may hang in STATUS.
func (a *API) readyz(w http.ResponseWriter, r *http.Request) {
	answer := a.readiness.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), a.limits.ReadTimeout)
		defer cancel()
		return a.options.Ready(ctx), nil
	})
	select {
	case <-r.Context().Done():
	case got := <-answer:
		checks, _ := got.Val.([]Check)
		a.sendReadiness(w, r, checks)
	}
}

// sendReadiness answers with all checks. The status is 503 if one of them has failed.
func (a *API) sendReadiness(w http.ResponseWriter, r *http.Request, checks []Check) {
	readiness, status := wire.Readiness{Ready: true, Checks: []wire.Check{}}, http.StatusOK
	var errs []error
	for _, c := range checks {
		errs = append(errs, c.Err)
		readiness.Checks = append(readiness.Checks, wire.Check{
			Name: c.Name, Network: c.Network, Ready: c.Err == nil,
			Error: wire.FromError(c.Err), Warning: wire.FromError(c.Warning),
		})
	}
	if err := errors.Join(errs...); err != nil {
		readiness.Ready, readiness.Error, status = false, wire.FromError(err), http.StatusServiceUnavailable
	}
	a.send(w, r, status, readiness)
}
