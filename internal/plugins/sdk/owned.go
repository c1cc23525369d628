package sdk

import (
	"context"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/names"
)

// DelOwned removes every nftables element of the call's attachment. It reads all
// elements, so it is for a DEL without a result.
func DelOwned(ctx context.Context, c *CmdArgs, network string) error {
	owner := c.Owner(network).String()
	return c.Host.DelOwned(ctx, func(o names.Owner) bool { return o.String() == owner })
}

// Stale tells the owners of the network of a GC, and of this instance, that are
// not among its valid attachments.
func (c *CmdArgs) Stale(conf *Common) func(names.Owner) bool {
	valid := make(map[string]bool, len(conf.ValidAttachments))
	for _, a := range conf.ValidAttachments {
		o := names.Owner{Network: conf.Name, ID: a.ContainerID, IfName: a.IfName, Instance: c.Instance}
		valid[o.String()] = true
	}
	return func(o names.Owner) bool {
		return o.OfNetwork(conf.Name) && o.Instance == c.Instance && !valid[o.String()]
	}
}

// Others are the owners of links of a network that belong to another instance.
func (c *CmdArgs) Others(network string) ([]names.Owner, error) {
	if c.Host == nil || c.Host.Kernel == nil {
		return nil, nil
	}
	var others []names.Owner
	_, err := c.Host.Kernel.OwnedLinks(func(o names.Owner) bool {
		if o.OfNetwork(network) && o.Instance != c.Instance {
			others = append(others, o)
		}
		return false
	})
	return others, err
}

// MadeElsewhere reports whether a result tells that the reference plugins set up
// the attachment, before these took their place: then what they laid out has to
// go as well.
func MadeElsewhere(c *CmdArgs, network string, r *types100.Result) bool {
	return r != nil && !slices.ContainsFunc(r.Interfaces, func(i *types100.Interface) bool {
		return i != nil && i.Sandbox == "" && i.Name == c.Owner(network).Veth()
	})
}
