package configurator

import (
	"context"

	"github.com/allocnet/allocnet/cleanup"
)

// bounded calls a search of package cleanup, for at most Config.Timeout. Searches run iptables
// and nft, which can hang, or wait for a lock that another program holds.
func bounded[T any](ctx context.Context, c *Configurator, search func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	return search(ctx)
}

func (c *Configurator) audit(ctx context.Context, t cleanup.Target) ([]Leftover, error) {
	return bounded(ctx, c, func(ctx context.Context) ([]Leftover, error) { return cleanup.Audit(ctx, t) })
}

func (c *Configurator) removeLeftovers(ctx context.Context, t cleanup.Target) ([]Leftover, error) {
	return bounded(ctx, c, func(ctx context.Context) ([]Leftover, error) { return cleanup.Force(ctx, t) })
}

func (c *Configurator) flushConntrack(ctx context.Context, t cleanup.Target) error {
	_, err := bounded(ctx, c, func(ctx context.Context) (struct{}, error) { return struct{}{}, cleanup.FlushConntrack(ctx, t) })
	return err
}
