package main

import (
	"context"
	"time"

	"github.com/allocnet/allocnet/cmd/internal/cni"
)

// gone is since when the network namespaces of runtimes' allocations are known to be
// gone, by ID.
type gone map[string]time.Time

// looks is how often, within the time that a namespace may be gone, the records are
// read: at least once a minute, and at most once a second.
func looks(after time.Duration) time.Duration { return min(max(after/4, time.Second), time.Minute) }

// tearDownGone tears down what runtimes attached to network namespaces that are gone,
// once the time of the settings has passed, until the context ends. Runtimes send DEL
// late, or never.
func (h *host) tearDownGone(ctx context.Context) error {
	since := gone{}
	for {
		after := h.inForce().settings.Reconcile.NetnsGone
		if after > 0 {
			h.tearDownGoneOnce(ctx, since, time.Now(), after)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(looks(after)):
		}
	}
}

// tearDownGoneOnce looks once. What fails is tried again when it looks the next time.
func (h *host) tearDownGoneOnce(ctx context.Context, since gone, now time.Time, after time.Duration) {
	service := h.inForce().service
	records, err := service.List(ctx)
	if err != nil {
		h.logger.Debug("not all records were read to find network namespaces that are gone", "error", err)
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
