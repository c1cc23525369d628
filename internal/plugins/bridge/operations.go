package bridge

import (
	"context"
	"errors"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/spoofcheck"
	"github.com/allocnet/allocnet/internal/plugins/veth"
)

var _ sdk.Restorer = (*bridge)(nil)

// Disconnect implements sdk.Disconnecter. A VLAN's tags and the MAC check stay until DEL.
func (b *bridge) Disconnect(ctx context.Context, c *sdk.CmdArgs) error {
	closed, err := b.closesWithoutElements(ctx, c)
	if err != nil {
		return err
	}
	return veth.Disconnect(ctx, c, &b.Common, b.Rules, closed)
}

// Del implements sdk.Plugin.
func (b *bridge) Del(ctx context.Context, c *sdk.CmdArgs) error {
	err := b.Verbs.Del(ctx, c)
	return errors.Join(err, b.delMACGuard(ctx, c)) // after the link is deleted
}

// Validate implements sdk.Validator.
func (b *bridge) Validate(planned *types100.Result) error {
	err := b.Rules.Masquerade.Validate()
	if err == nil && planned != nil {
		b.route(planned)
		err = veth.DistinctRoutes(planned)
	}
	return err
}

// GC implements sdk.Plugin. The bridge stays.
func (b *bridge) GC(ctx context.Context, c *sdk.CmdArgs) error {
	return errors.Join(b.Verbs.GC(ctx, c), spoofcheck.Collect(ctx, c.Stale(b.Name)))
}
