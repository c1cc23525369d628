package cleanup

import (
	"context"
	"errors"
	"slices"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/internal/state/statedir"
)

// A Trace is an attachment without a record that objects on the host name.
type Trace struct{ network, IfName string }

// Of reports whether a trace belongs to a network.
func (t Trace) Of(network string) bool { return names.Owner{Network: t.network}.OfNetwork(network) }

// Traces returns the attachments of an ID and a state directory that owners of objects
// in the kernel name: each once, sorted by interface.
func Traces(ctx context.Context, id, stateDir string) ([]Trace, error) {
	state, err := statedir.Resolve(stateDir)
	if err != nil {
		return nil, err
	}
	var found []Trace
	err = eachOwner(ctx, func(o names.Owner) {
		t := Trace{network: o.Network, IfName: o.IfName}
		if o.OfID(id) && o.Instance == state.Instance && !slices.Contains(found, t) {
			found = append(found, t)
		}
	})
	slices.SortFunc(found, func(a, b Trace) int { return compareIfNames(a.IfName, b.IfName) })
	return found, err
}

// eachOwner calls note for the owners of elements of allocnet's tables and of links.
func eachOwner(ctx context.Context, note func(names.Owner)) error {
	rulesErr := withRules(func(r *ruleset.Ruleset) error {
		_, err := r.Owned(ctx, func(o names.Owner) bool { note(o); return false })
		return err
	})
	_, linksErr := rtnl.OwnedLinks(func(o names.Owner) bool { note(o); return false })
	return errors.Join(rulesErr, linksErr)
}

// compareIfNames sorts eth2 before eth10.
func compareIfNames(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return slices.Compare([]byte(a), []byte(b))
}

// LeaseTraces returns the interfaces of an ID that have a host-local lease in a network
// with that conflist.
func LeaseTraces(id, network string, config []byte) ([]Trace, error) {
	var found []Trace
	err := eachLease(network, config, func(o lease.Owner) {
		t := Trace{network: network, IfName: o.IfName}
		if o.ID == id && o.IfName != "" && !slices.Contains(found, t) {
			found = append(found, t)
		}
	})
	slices.SortFunc(found, func(a, b Trace) int { return compareIfNames(a.IfName, b.IfName) })
	return found, err
}
