package main

import (
	"context"
	"time"

	"github.com/allocnet/allocnet/cmd/internal/cni"
)

// gone maps the ID of a runtime's allocation to the time at which the daemon first
// found its network namespace missing.
type gone map[string]time.Time

// interval returns how often the records are read: four times within the time after
// which allocations are torn down, but between once a second and once a minute.
func interval(after time.Duration) time.Duration { return min(max(after/4, time.Second), time.Minute) }

// tearDownGone tears down allocations of runtimes whose network namespace has been gone
// for the time in the settings. It runs until the context ends. It is needed because
// runtimes send DEL late or never.
func (h *host) tearDownGone(ctx context.Context) error {
	since := gone{}
	for {
		after := h.active().settings.Reconcile.NetnsGone
		if after > 0 {
			h.tearDownGoneOnce(ctx, since, time.Now(), after)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(interval(after)):
		}
	}
}

// tearDownGoneOnce reads the records once. A failed teardown is repeated by the next
// call.
func (h *host) tearDownGoneOnce(ctx context.Context, since gone, now time.Time, after time.Duration) {
	service := h.active().service
	records, err := service.List(ctx)
	if err != nil {
		h.logger.Debug("looking for missing network namespaces: not all records could be read", "error", err)
	}
	before := gone{}
	for id, t := range since {
		before[id] = t
	}
	clear(since)
	for i := range records {
		r := &records[i]
		if !r.NetnsGone || !cni.IsRuntimes(r.Scope) {
			continue
		}
		first, known := before[r.ID]
		if !known {
			first = now
		}
		since[r.ID] = first
		if now.Sub(first) < after || ctx.Err() != nil {
			continue
		}
		switch was, err := service.TeardownGone(ctx, r.ID); {
		case err != nil:
			h.logger.Warn("network namespace is gone, and the allocation could not be torn down", "alloc", r.ID, "netns", r.Netns, "error", err)
		case was:
			h.logger.Warn("network namespace is gone: tore the allocation down", "alloc", r.ID, "netns", r.Netns, "for", now.Sub(first).Round(time.Second))
			delete(since, r.ID)
		}
	}
}
