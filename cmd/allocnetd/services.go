package main

import (
	"context"
	"time"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// servicesInterval is the time between two looks at the addresses of services.
const servicesInterval = 5 * time.Second

// exceptServices keeps host ports of every address from taking connections to the addresses that services get
// while the daemon runs: see rtnl.ServiceLinks. It logs an error once.
func (h *host) exceptServices(ctx context.Context) error {
	last := ""
	for {
		list, err := rtnl.ServiceAddresses()
		if err == nil && len(list) > 0 {
			_, err = h.rules.ExceptServices(ctx, list)
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != "" && text != last && ctx.Err() == nil {
			h.logger.Warn("host ports may take connections to services of IPVS", "error", err)
		}
		last = text
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(servicesInterval):
		}
	}
}
