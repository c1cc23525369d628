package bandwidth

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Del implements sdk.Plugin: it deletes the ifb, no matter which plugin created
// it. It keeps an ifb that belongs to another interface of the container, or to
// another container whose ID and network hash to the same name. The disciplines
// of the veth are deleted with the veth.
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

// GC implements sdk.Plugin. It keeps ifbs of the reference plugin, because they
// name no owner.
func (b *bandwidth) GC(ctx context.Context, c *sdk.CmdArgs) error {
	links, err := c.Host.Kernel.OwnedLinks(c.Stale(b.Name))
	if err != nil {
		return err
	}
	var deletions sync.WaitGroup // concurrent, so that the kernel deletes the links in one batch
	errs := make([]error, len(links))
	for i, name := range links {
		if strings.HasPrefix(name, names.IfbPrefix) {
			deletions.Go(func() { _, errs[i] = c.Host.Kernel.DeleteLink(ctx, name) })
		}
	}
	deletions.Wait()
	return errors.Join(errs...)
}

// Status implements sdk.Plugin: it validates the configuration.
func (b *bandwidth) Status(context.Context, *sdk.CmdArgs) error { return b.limit.Validate() }

// Validate implements sdk.Validator.
func (b *bandwidth) Validate(*types100.Result) error {
	return errors.Join(b.checkVersion(), b.limit.Validate())
}

// NoResult implements sdk.Chained.
func (b *bandwidth) NoResult() error { return errNotChained }
