package sdk

import (
	"context"
	"time"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// servicesTTL is the time for which ExceptServices takes what it has listed to be true.
const servicesTTL = 10 * time.Second

// ExceptServices makes host ports of every address not apply to addresses of services: see rtnl.ServiceLinks. A
// long-lived process does not list these again for ten seconds, unless Cache was cleared.
func (h *Host) ExceptServices(ctx context.Context) error {
	return h.Cache.UnlessWithin(servicesTTL, "addresses of services", func() error {
		_, err := h.RestoreServices(ctx)
		return err
	})
}

// RestoreServices does so at once, and reports whether something has changed.
func (h *Host) RestoreServices(ctx context.Context) (changed bool, err error) {
	list, err := rtnl.ServiceAddresses()
	if err == nil && len(list) > 0 {
		changed, err = h.Rules.ExceptServices(ctx, list)
	}
	return changed, err
}
