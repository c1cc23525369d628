package routes

import (
	"context"
	"errors"
	"fmt"

	"github.com/allocnet/allocnet/internal/netlink/announce"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Repair implements sdk.Repairer. It repeats ADD, which is idempotent.
func (p *routes) Repair(ctx context.Context, c *sdk.CmdArgs) error {
	_, list, err := p.wanted(c)
	if err != nil {
		return err
	}
	return announcerOf(c).Add(ctx, c.Owner(p.Name), list)
}

// Wanted implements sdk.Restorer. A link that does not exist now may do so when Repair runs:
// the bridge plugin makes the bridge again.
func (p *routes) Wanted(_ context.Context, c *sdk.CmdArgs) (*sdk.Wanted, error) {
	_, list, err := p.wanted(c)
	if errors.Is(err, errLinkGone) {
		return &sdk.Wanted{Individual: true}, nil
	}
	if err != nil {
		return &sdk.Wanted{}, err
	}
	w := &sdk.Wanted{Elements: announce.Elements(c.Owner(p.Name), list)}
	announcer := announcerOf(c)
	for _, r := range list {
		w.Objects = append(w.Objects, sdk.Object{
			Key:     fmt.Sprintf("route %s table %d", r.Address.Masked(), r.Table),
			Restore: func(context.Context) (bool, error) { return announcer.Ensure(r) },
		})
	}
	return w, nil
}
