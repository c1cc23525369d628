package sdk

import (
	"context"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/names"
)

// DelOwned removes every nftables element of the attachment. It reads all
// elements, so only a DEL without a result uses it.
func DelOwned(ctx context.Context, c *CmdArgs, network string) error {
	owner := c.Owner(network).String()
	return c.Host.DelOwned(ctx, func(o names.Owner) bool { return o.String() == owner })
}

// Stale returns a function that reports whether an owner belongs to the network
// and the instance of a GC, but is not among its valid attachments.
func (a *CmdArgs) Stale(network string) func(names.Owner) bool {
	valid := make(map[string]bool, len(a.Valid))
	for _, v := range a.Valid {
		o := names.Owner{Network: network, ID: v.ContainerID, IfName: v.IfName, Instance: a.Instance}
		valid[o.String()] = true
	}
	return func(o names.Owner) bool {
		return o.OfNetwork(network) && o.Instance == a.Instance && !valid[o.String()]
	}
}

// Others returns the owners of links of a network that belong to another
// instance.
func (a *CmdArgs) Others(network string) ([]names.Owner, error) {
	if a.Host == nil || a.Host.Kernel == nil {
		return nil, nil
	}
	var others []names.Owner
	_, err := a.Host.Kernel.OwnedLinks(func(o names.Owner) bool {
		if o.OfNetwork(network) && o.Instance != a.Instance {
			others = append(others, o)
		}
		return false
	})
	return others, err
}

// AddedByReference reports whether a result shows that the reference plugins
// set up the attachment, before allocnet's plugins replaced them. Then DEL
// removes the reference plugins' rules as well.
func AddedByReference(c *CmdArgs, network string, r *types100.Result) bool {
	return r != nil && !slices.ContainsFunc(r.Interfaces, func(i *types100.Interface) bool {
		return i != nil && i.Sandbox == "" && i.Name == c.Owner(network).Veth()
	})
}
