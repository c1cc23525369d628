package native

import (
	"context"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// A container with several networks answers over its default route, whichever of its
// addresses was reached. So each of its guarded bridge ports permits the addresses of its
// other networks, too. Such an element belongs to the attachment that was made last, so that
// DEL of that one without a result finds it.
//
// A port does not permit addresses of another link layer that hosts on its own one ask for by ARP or neighbour
// discovery: those in the subnets of its network, its gateways, and link-local ones. With them, the
// container could take over the addresses of its neighbours and of the gateway, if an isolated network
// has the same subnet.

// attached is an attachment of a container, with its guarded port if it has one.
type attached struct {
	requested bool // by the operation
	owner     names.Owner
	addresses []netip.Addr
	policed   bool // a policy denies something
	ports     []ruleset.BridgePort
	segment   segment
	gateways  []netip.Addr
}

// attachments returns the attachments of a container that have a result, in their order.
// results, if not nil, are those of the request so far.
func (e *Engine) attachments(ctx context.Context, exec *sdk.Exec, r *engine.Request, results []*types100.Result) ([]attached, error) {
	if len(r.Others)+len(r.Attachments) < 2 {
		return nil, nil
	}
	all := *r
	all.Attachments = nil
	add := func(a engine.Attachment) {
		if a.Result != nil && !a.Loopback {
			all.Attachments = append(all.Attachments, a)
		}
	}
	for _, a := range r.Others {
		add(a)
	}
	others := len(all.Attachments)
	for i, a := range r.Attachments {
		a.IfName = r.IfName(i)
		if results != nil {
			a.Result = results[i]
		}
		add(a)
	}
	if len(all.Attachments) < 2 {
		return nil, nil
	}
	var list []attached
	for i, a := range all.Attachments {
		c := e.newChain(exec, &all, i)
		if c.network.err != nil {
			continue // its own operations report that
		}
		one := attached{requested: i >= others, owner: names.Owner{Network: a.Network.Name, ID: r.ID, IfName: all.IfName(i), Instance: exec.Instance}}
		one.addresses, one.segment = sdk.Addresses(a.Result), c.network.segment
		for _, ip := range a.Result.IPs {
			gateway, _ := netip.AddrFromSlice(ip.Gateway)
			one.gateways = append(one.gateways, gateway.Unmap())
			one.segment.subnets = append(slices.Clip(one.segment.subnets), prefixOf(&ip.Address))
		}
		for j, p := range a.Network.List.Plugins {
			w, err := exec.Wanted(ctx, p.Network.Type, c.args(j, a.Result))
			if err != nil {
				return nil, err
			}
			if w.Elements != nil {
				one.ports = append(one.ports, w.Elements.Ports...)
				one.policed = one.policed || len(w.Elements.Policed) > 0
			}
		}
		list = append(list, one)
	}
	return list, nil
}

// crossing returns the elements that let one of two attachments send from the addresses of
// the other, with the given owner. Over the bridge of a network with a policy, the allocation does not
// send from addresses to which no policy applies.
func crossing(a, b *attached, owner names.Owner) *ruleset.Elements {
	return elementsOf(a, b, owner, mayCross)
}

// mayCross reports whether an attachment may send from an address of another one.
func mayCross(over, from *attached, address netip.Addr) bool {
	if over.policed && !from.policed {
		return false
	}
	return over.segment.is(&from.segment) || !over.segment.has(address) && !slices.Contains(over.gateways, address) && !address.IsLinkLocalUnicast()
}

// refused returns the elements that crossing leaves out.
func refused(a, b *attached, owner names.Owner) *ruleset.Elements {
	return elementsOf(a, b, owner, func(over, from *attached, address netip.Addr) bool { return !mayCross(over, from, address) })
}

// everyCrossing is crossing with all addresses.
func everyCrossing(a, b *attached, owner names.Owner) *ruleset.Elements {
	return elementsOf(a, b, owner, func(_, _ *attached, _ netip.Addr) bool { return true })
}

// elementsOf returns the elements for the addresses of each attachment over the ports of the other one. An
// address that both have is the port's own.
func elementsOf(a, b *attached, owner names.Owner, may func(over, from *attached, address netip.Addr) bool) *ruleset.Elements {
	e := &ruleset.Elements{Owner: owner}
	for _, way := range [][2]*attached{{a, b}, {b, a}} {
		over, from := way[0], way[1]
		addresses := slices.DeleteFunc(slices.Clone(from.addresses), func(one netip.Addr) bool {
			return slices.Contains(over.addresses, one) || !may(over, from, one)
		})
		for _, port := range over.ports {
			if !port.Unaddressed && len(addresses) > 0 {
				e.Ports = append(e.Ports, ruleset.BridgePort{Name: port.Name, Addresses: addresses})
			}
		}
	}
	return e
}

// crossings returns the elements of all pairs of attachments.
func crossings(list []attached) []*ruleset.Elements { return eachPair(list, crossing) }

// eachPair returns the elements of all pairs of attachments that are not empty.
func eachPair(list []attached, of func(a, b *attached, owner names.Owner) *ruleset.Elements) (all []*ruleset.Elements) {
	for b := range list {
		for a := range b {
			if e := of(&list[a], &list[b], list[b].owner); len(e.Ports) > 0 {
				all = append(all, e)
			}
		}
	}
	return all
}

// crossingsOf returns the crossings of the whole request, whose attachments have results.
func (e *Engine) crossingsOf(ctx context.Context, exec *sdk.Exec, r *engine.Request) ([]*ruleset.Elements, error) {
	list, err := e.attachments(ctx, exec, r, nil)
	return crossings(list), err
}

// delCrossings removes the crossings of the attachments of a request before the first of
// their addresses is released. The order in which they were made may not be known.
func (e *Engine) delCrossings(ctx context.Context, exec *sdk.Exec, r *engine.Request) error {
	list, err := e.attachments(ctx, exec, r, nil)
	if err != nil {
		exec.Host.Log.Warn("a configuration cannot be used; searching all elements", "container", r.ID, "because", err)
		var owners []string // other interfaces of the container may be another allocation's
		for i, a := range r.Attachments {
			owners = append(owners, names.Owner{Network: a.Network.Name, ID: r.ID, IfName: r.IfName(i), Instance: exec.Instance}.String())
		}
		return exec.Host.DelOwned(ctx, func(o names.Owner) bool { return slices.Contains(owners, o.String()) })
	}
	for b := range list {
		for a := range b {
			if !list[a].requested && !list[b].requested {
				continue
			}
			for _, owner := range []names.Owner{list[a].owner, list[b].owner} {
				gone := everyCrossing(&list[a], &list[b], owner)
				if len(gone.Ports) == 0 {
					continue
				}
				if err := exec.Host.Rules.Del(ctx, gone); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
