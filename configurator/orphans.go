package configurator

import "context"

// Orphans returns the paths of the network namespaces that DestroyOrphans would destroy now,
// sorted. It leaves out those of allocations that another operation is working on.
func (c *Configurator) Orphans(ctx context.Context) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return c.netns.Orphans()
}

// DestroyOrphans destroys the network namespaces that Setup has made for allocations (OwnNetns)
// that no longer have a record, in all scopes, and returns their paths, sorted. It decides while it
// holds the lock of the allocation, so it does not touch what a Setup has made meanwhile, nor a
// namespace that another allocation uses. It continues after errors and joins them.
func (c *Configurator) DestroyOrphans(ctx context.Context) ([]string, error) {
	if err := c.requirePrivileges(); err != nil {
		return nil, err
	}
	return c.netns.GC(ctx, Scope{DestroyNetns: true}, nil)
}
