package cleanup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/state/statedir"
)

// elementFinder finds elements of allocnet's own nftables tables: those that name the
// allocation as their owner, and the guards of its links, which have no owner.
type elementFinder struct {
	*search
	found bool
}

// guarded returns the links that the plugin firewall may have guarded for this allocation
// alone. The guard of a bridge belongs to all allocations on it.
func (f *elementFinder) guarded() []string {
	var links []string
	for _, a := range f.attachments {
		links = append(links, f.ownerIn(a).Veth())
	}
	return links
}

// ownerIn returns the owner that native plugins give the objects of an attachment.
func (s *search) ownerIn(a *attachment) names.Owner {
	return names.Owner{Network: a.Network, ID: s.target.ID, IfName: a.IfName, Instance: s.instance}
}

// isOwner reports whether an owner is the target in one of its networks.
func (s *search) isOwner(o names.Owner) bool {
	return o.OfID(s.target.ID) && o.Instance == s.instance && s.hasInterface(o.IfName) && (len(s.attachments) == 0 ||
		slices.ContainsFunc(s.attachments, func(a *attachment) bool { return o.OfNetwork(a.Network) }))
}

// hasInterface reports whether an object with the ID that names an interface can belong to the target.
func (s *search) hasInterface(ifName string) bool {
	return len(s.target.IfNames) == 0 || slices.Contains(s.target.IfNames, ifName)
}

// anyNetwork reports whether objects that only name the ID belong to the target in every network.
func (s *search) anyNetwork() bool { return len(s.attachments) == 0 && len(s.target.IfNames) == 0 }

func (f *elementFinder) find(ctx context.Context) ([]Leftover, error) {
	f.found = false
	if f.instanceErr != nil {
		return nil, f.instanceErr
	}
	var list []Leftover
	err := withRules(func(r *ruleset.Ruleset) error {
		elements, err := r.Owned(ctx, f.isOwner)
		guards, guardErr := r.Guards(ctx, f.guarded())
		for _, e := range append(elements, guards...) {
			list = append(list, Leftover{Kind: KindNFTablesElement, Where: "table " + names.Table, Object: e})
		}
		return errors.Join(err, guardErr)
	})
	f.found = len(list) > 0
	return list, err
}

func (f *elementFinder) remove(ctx context.Context) ([]Leftover, error) {
	if !f.found || f.sources.kept || f.routes.kept {
		return nil, nil
	}
	removed, err := f.find(ctx)
	return removed, errors.Join(err, withRules(func(r *ruleset.Ruleset) error {
		errs := []error{r.DelOwned(ctx, f.isOwner)}
		for _, link := range f.guarded() {
			errs = append(errs, r.DelGuard(ctx, link))
		}
		return errors.Join(errs...)
	}))
}

// withRules calls act with a connection to nftables. A kernel without nftables has no
// elements.
func withRules(act func(*ruleset.Ruleset) error) error {
	err := ruleset.Lend(act)
	if netfilter.IsUnsupported(err) {
		return nil
	}
	return err
}

// findOwned finds the host's end of a link by the name that is derived from its owner.
// It is used if the result of ADD is unknown.
func (f *linkFinder) findOwned(a *attachment) error {
	if f.instanceErr != nil {
		return f.instanceErr
	}
	owner := f.ownerIn(a)
	return f.add(owner.Veth(), a.Network, func(link netlink.Link) bool {
		return link.Attrs().Alias == owner.String()
	})
}

// mayBeRenamed reports whether a link that names the target as its owner may have another name
// than those that were looked up. That is so if no network is known, and for each attachment
// without a link of its name that native plugins have, or may have, made. Links of other plugins
// name no owner.
func (f *linkFinder) mayBeRenamed() bool {
	return len(f.attachments) == 0 || slices.ContainsFunc(f.attachments, func(a *attachment) bool {
		name := f.ownerIn(a).Veth()
		isIt := func(l hostLink) bool { return l.Attrs().Name == name }
		return !slices.ContainsFunc(f.found, isIt) && (a.result == nil || slices.ContainsFunc(a.result.Interfaces, func(i *current.Interface) bool {
			return i.Sandbox == "" && i.Name == name
		}))
	})
}

// findAllOwned finds all links that name the target as their owner, whatever their names are.
// It reads all links of the host.
func (f *linkFinder) findAllOwned() error {
	if f.instanceErr != nil {
		return f.instanceErr
	}
	owned, err := rtnl.OwnedLinks(f.isOwner)
	errs := []error{err}
	for _, name := range owned {
		// Check the owner again, because the name may belong to a new link.
		link, err := rtnl.LinkByName(name)
		switch {
		case rtnl.IsNotFound(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("look up link %q: %w", name, err))
		default:
			if owner, ok := names.ParseOwner(link.Attrs().Alias); ok && f.isOwner(owner) {
				f.addLink(link, owner.Network)
			}
		}
	}
	return errors.Join(errs...)
}

// Owners returns the sorted IDs of the allocations of a state directory that objects in
// the kernel name as their owner in a network. It omits IDs that were too long to be
// stored in the kernel.
func Owners(ctx context.Context, network, stateDir string) ([]string, error) {
	owned, err := OwnedAttachments(ctx, network, stateDir)
	ids := map[string]bool{}
	for _, a := range owned {
		ids[a.ContainerID] = true
	}
	return slices.Sorted(maps.Keys(ids)), err
}

// OwnedAttachments returns the attachments of the Owners, in no order. If it returns an error, the
// list is incomplete.
func OwnedAttachments(ctx context.Context, network, stateDir string) ([]types.GCAttachment, error) {
	state, err := statedir.Resolve(stateDir)
	if err != nil {
		return nil, err
	}
	owned := map[types.GCAttachment]bool{}
	note := func(o names.Owner) {
		if o.OfNetwork(network) && o.Instance == state.Instance && !names.IsHash(o.ID) {
			owned[types.GCAttachment{ContainerID: o.ID, IfName: o.IfName}] = true
		}
	}
	err = eachOwner(ctx, note)
	return slices.Collect(maps.Keys(owned)), err
}
