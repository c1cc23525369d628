package flannel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// GC implements sdk.Plugin. It runs GC of the delegate, and of those that the network
// had before, and removes the files of containers that are not valid any more.
func (p *flannel) GC(ctx context.Context, c *sdk.CmdArgs) error {
	stale, delegates, err := p.stale(c)
	if err != nil {
		return err
	}
	if d, err := p.derive(); err == nil {
		delegates = append([]*delegate{d}, delegates...)
	} else if len(delegates) == 0 {
		return fmt.Errorf("the delegate is not known: %w", err)
	}
	var errs []error
	seen := map[string]bool{}
	for _, d := range delegates {
		if !seen[d.Type] {
			seen[d.Type] = true
			errs = append(errs, p.collect(ctx, c, d))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, id := range stale {
		errs = append(errs, p.files.remove(id))
	}
	return errors.Join(errs...)
}

// collect runs GC of a delegate.
func (p *flannel) collect(ctx context.Context, c *sdk.CmdArgs, d *delegate) error {
	with, err := d.with(sdk.ValidKey, append([]types.GCAttachment{}, c.Valid...)) // [] instead of null
	if err != nil {
		return err
	}
	_, err = with.run(ctx, "GC", c, nil)
	return err
}

// stale returns the containers with a file of the network that are not among the valid
// attachments, and the delegates of all files of the network. A container with a link
// of another instance belongs to that one.
func (p *flannel) stale(c *sdk.CmdArgs) (stale []string, delegates []*delegate, err error) {
	ids, err := p.files.ids()
	if err != nil {
		return nil, nil, err
	}
	others, err := c.Others(p.Name)
	if err != nil {
		return nil, nil, err
	}
	for _, id := range ids {
		text, err := p.files.read(id)
		if errors.Is(err, fs.ErrNotExist) || isNoFile(err) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		d, err := parseDelegate(text)
		if err != nil || d.Name != p.Name {
			continue
		}
		delegates = append(delegates, d)
		isValid := slices.ContainsFunc(c.Valid, func(a types.GCAttachment) bool { return a.ContainerID == id })
		isOther := slices.ContainsFunc(others, func(o names.Owner) bool { return o.OfID(id) })
		if !isValid && !isOther {
			stale = append(stale, id)
		}
	}
	return stale, delegates, nil
}
