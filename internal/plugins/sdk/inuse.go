package sdk

import (
	"context"
	"net/netip"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// InUse returns a function for one ADD. The function returns the owner of an address that
// another attachment of this host has, "" if there is none: an element of allocnet's tables
// names the owner, and a link of it exists. The lease of that attachment was lost, or it is in
// another directory, as those of the embedded network with another state directory.
func (a *CmdArgs) InUse(ctx context.Context, network string) func(netip.Addr) (by string, err error) {
	var linked map[string]bool // the owners of links, after they were listed
	return func(addr netip.Addr) (by string, err error) {
		if a.Host == nil || a.Host.Rules == nil {
			return "", nil
		}
		owners, err := a.Host.Rules.AddressOwners(ctx, addr)
		if netfilter.IsUnsupported(err) {
			return "", nil
		}
		for _, owner := range owners {
			if owner == a.Owner(network).String() {
				continue
			}
			if linked == nil {
				if linked, err = linkedOwners(a.Host.Kernel); err != nil {
					return "", err
				}
			}
			if linked[owner] {
				return owner, nil
			}
		}
		return "", err
	}
}

// linkedOwners returns the owners of all links.
func linkedOwners(host *rtnl.Host) (map[string]bool, error) {
	linked := map[string]bool{}
	_, err := host.OwnedLinks(func(o names.Owner) bool {
		linked[o.String()] = true
		return false
	})
	return linked, err
}
