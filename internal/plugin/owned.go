package plugin

import (
	"context"

	"github.com/allocnet/allocnet/internal/names"
)

// DelOwned removes every nftables element of the call's attachment. It reads all
// elements, so it is for a DEL without a result.
func DelOwned(ctx context.Context, c *Call, network string) error {
	owner := c.Owner(network).String()
	return c.Host.Rules.DelOwned(ctx, func(o names.Owner) bool { return o.String() == owner })
}

// Stale tells the owners of a network that are not among the valid attachments
// of a GC.
func (c *Common) Stale() func(names.Owner) bool {
	valid := ValidOwners(c.Name, c.ValidAttachments)
	return func(o names.Owner) bool { return o.OfNetwork(c.Name) && !valid[o.String()] }
}
