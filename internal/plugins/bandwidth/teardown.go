package bandwidth

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Del implements sdk.Plugin: it deletes the ifb, whoever made it, unless it
// belongs to another interface of the container, or to another container whose
// ID and network happen to make the same name. What is on the veth goes with it.
func (b *bandwidth) Del(ctx context.Context, c *sdk.CmdArgs) error {
	name := ifbName(b.Name, c.ContainerID)
	link, err := c.Host.Kernel.LinkByName(name)
	if rtnl.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find ifb %q: %w", name, err)
	}
	alias := link.Attrs().Alias
	if _, owned := names.ParseOwner(alias); owned && alias != c.Owner(b.Name).String() {
		return nil
	}
	_, err = c.Host.Kernel.DeleteLink(ctx, name)
	return err
}

// GC implements sdk.Plugin. Ifbs that the reference plugin made name no owner
// and stay.
func (b *bandwidth) GC(ctx context.Context, c *sdk.CmdArgs) error {
	links, err := c.Host.Kernel.OwnedLinks(c.Stale(&b.Common))
	if err != nil {
		return err
	}
	var deletions sync.WaitGroup // at the same time, so that they leave together
	errs := make([]error, len(links))
	for i, name := range links {
		if strings.HasPrefix(name, ifbPrefix) {
			deletions.Go(func() { _, errs[i] = c.Host.Kernel.DeleteLink(ctx, name) })
		}
	}
	deletions.Wait()
	return errors.Join(errs...)
}

// Status implements sdk.Plugin: whether the configuration makes sense.
func (b *bandwidth) Status(context.Context, *sdk.CmdArgs) error {
	_, _, err := b.limit.buckets()
	return err
}
