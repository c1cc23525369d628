package main

import (
	"context"
	"time"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/netpolicy"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// denials returns what GET /v1/denials serves.
func (h *host) denials(ctx context.Context) *client.HostDenials {
	return h.denialReader().Denials(ctx)
}

func (h *host) denialReader() *netpolicy.Reader {
	r := &netpolicy.Reader{Service: h.active().service}
	if h.rules != nil {
		r.Rules = h.rules
	}
	return r
}

// droppedTime bounds the reading of the counters for the metrics.
const droppedTime = 10 * time.Second

// dropped returns the packets that policies have dropped; none if the kernel has no nftables.
func (h *host) dropped() ([]ruleset.Dropped, error) {
	if h.rules == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), droppedTime)
	defer cancel()
	list, err := h.rules.Dropped(ctx)
	if netfilter.IsUnsupported(err) {
		return nil, nil
	}
	return list, err
}

// denialInterval is the time between two looks for flows that policies have dropped.
const denialInterval = 2 * time.Second

// followDenials publishes the flows that policies drop, while a client reads the events.
func (h *host) followDenials(ctx context.Context) error {
	ticker := time.NewTicker(denialInterval)
	ticker.Stop() // until a client arrives
	defer ticker.Stop()
	var follower *netpolicy.Follower
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-h.telemetry.Events().Arrived():
		case <-ticker.C:
		}
		if h.telemetry.Events().Subscribers() == 0 {
			follower = nil
			ticker.Stop()
			continue
		}
		if follower == nil {
			follower = &netpolicy.Follower{}
			ticker.Reset(denialInterval)
		}
		follower.Reader = *h.denialReader() // a reload replaces the service
		denied, err := follower.Look(ctx)
		if err != nil && ctx.Err() == nil {
			h.logger.Warn("flows that network policies deny cannot be read or named; trying again", "error", err)
		}
		if denied != nil {
			h.telemetry.Denied(denied)
		}
	}
}
