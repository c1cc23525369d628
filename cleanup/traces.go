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

// A Trace is an attachment that objects on the host name and whose record is lost.
type Trace struct{ network, IfName string }

// Of reports whether a trace is of a network.
func (t Trace) Of(network string) bool { return names.Owner{Network: t.network}.OfNetwork(network) }

// Traces are the attachments that objects in the kernel name with an ID, of the users of a state directory: each once,
// in the order of their interfaces.
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

// eachOwner notes the owners that elements of allocnet's tables and links name.
func eachOwner(ctx context.Context, note func(names.Owner)) error {
	rulesErr := withRules(func(r *ruleset.Ruleset) error {
		_, err := r.Owned(ctx, func(o names.Owner) bool { note(o); return false })
		return err
	})
	_, linksErr := rtnl.OwnedLinks(func(o names.Owner) bool { note(o); return false })
	return errors.Join(rulesErr, linksErr)
}

// compareIfNames puts eth2 before eth10.
func compareIfNames(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return slices.Compare([]byte(a), []byte(b))
}

// LeaseTraces are the interfaces for which an ID holds leases of host-local in a network, by its conflist.
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
