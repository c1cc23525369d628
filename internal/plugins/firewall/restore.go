package firewall

import (
	"context"
	"errors"
	"fmt"

	"github.com/allocnet/allocnet/internal/firewalld"
	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

var _ sdk.Restorer = (*firewall)(nil)

// Repair implements sdk.Repairer. It repeats ADD, which only changes the host
// and is idempotent.
func (f *firewall) Repair(ctx context.Context, c *sdk.CmdArgs) error {
	_, p, err := f.attachment(c)
	if err != nil {
		return err
	}
	p.repair = true
	return f.apply(ctx, c, p)
}

// Wanted implements sdk.Restorer. An individual CHECK finds missing rules of the
// backend iptables, and those of the reference plugin.
func (f *firewall) Wanted(ctx context.Context, c *sdk.CmdArgs) (*sdk.Wanted, error) {
	previous, p, err := f.attachment(c)
	if err != nil || len(p.addresses) == 0 {
		return &sdk.Wanted{}, err
	}
	z, own := f.backend.(zoned)
	if !own || sdk.AddedByReference(c, f.Name, previous) {
		return &sdk.Wanted{Individual: true}, nil
	}
	runs, err := c.Host.Firewalld.Runs(ctx)
	if err != nil || z.required && !runs {
		return &sdk.Wanted{Individual: true}, nil // the zone of the addresses is not known
	}
	w := &sdk.Wanted{}
	if runs {
		p.zone = z.zone
		for _, a := range p.addresses {
			w.Sources = append(w.Sources, sdk.Source{Zone: z.zone, Address: a})
		}
	}
	w.Elements = p.elements(c)
	if !runs || z.zone == firewalld.DefaultZone {
		w.Objects = []sdk.Object{p.acceptRule(c)}
	}
	return w, nil
}

// acceptRule returns the forward-accept rule.
func (p *attachment) acceptRule(c *sdk.CmdArgs) sdk.Object {
	families := p.families()
	return sdk.Object{Key: fmt.Sprint("forward-accept rule ", families, p.admin), Restore: func(ctx context.Context) (bool, error) {
		err := c.Host.Accept.Check(ctx, families, p.admin)
		if !errors.Is(err, iptables.ErrMissing) {
			return false, err
		}
		return true, c.Host.Accept.Ensure(ctx, families, p.admin)
	}}
}
