package main

import (
	"context"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/traffic"
)

// traffic returns what GET /v1/traffic serves.
func (h *host) traffic(ctx context.Context) *client.HostTraffic {
	return traffic.Collect(ctx, traffic.Options{Service: h.active().service, Links: h.links, Conns: h.conns, Rules: h.rules})
}
