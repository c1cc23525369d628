package bandwidth

import (
	"context"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

var _ sdk.Restorer = (*bandwidth)(nil)

// Repair implements sdk.Repairer. It restores token buckets, the ifb and the redirection to it.
func (b *bandwidth) Repair(ctx context.Context, c *sdk.CmdArgs) error {
	if !b.hasLimits() {
		return nil
	}
	_, _, err := b.setLimits(ctx, c)
	return err
}

// Wanted implements sdk.Restorer. Limits are restored one attachment after the other.
func (b *bandwidth) Wanted(context.Context, *sdk.CmdArgs) (*sdk.Wanted, error) {
	return &sdk.Wanted{Individual: b.hasLimits()}, nil
}

// hasLimits reports whether an ADD sets limits.
func (b *bandwidth) hasLimits() bool {
	ingress, egress, err := b.limit.buckets()
	return err == nil && (ingress != nil || egress != nil)
}
