package veth

import (
	"context"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// Handover gives the veth and the addresses of a container to another one: see
// sdk.Handoverer.
func Handover(ctx context.Context, c *sdk.CmdArgs, common *sdk.Common, ipam IPAM, from string) error {
	if ipam == "" || !c.InProcess(string(ipam)) {
		return sdk.ErrNoHandover
	}
	owner := c.Owner(common.Name)
	former := names.Owner{Network: owner.Network, ID: from, IfName: owner.IfName, Instance: owner.Instance}
	if err := c.Host.Kernel.Adopt(former.Veth(), owner.Veth(), owner.String()); err != nil {
		return err
	}
	return c.DelegateHandover(ctx, string(ipam), from)
}
