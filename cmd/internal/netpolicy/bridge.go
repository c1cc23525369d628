package netpolicy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/policy"
)

// The rules of reasons that no policy has: a bridge does not pass such packets
// from and to allocations with a policy.
const (
	noLinkLocal = "bridge: no link-local"
	noGroups    = "bridge: no multicast or broadcast"
)

// ErrUndecided: whether a packet passes depends on policies of its receivers, which the address
// does not name.
var ErrUndecided = errors.New("the other end decides whether they pass")

// isBridged reports whether an interface of a network is a port of a bridge. As
// in the result of the plugins, the bridge and the port come before the
// interface of the allocation; a routed interface has one link of the host.
func isBridged(list []allocnet.Interface, network string) bool {
	links := 0
	for _, i := range list {
		switch {
		case i.Network != network:
		case i.Sandbox != "":
			return links > 1
		default:
			links++
		}
	}
	return false
}

// Denies reports whether a policy denies anything in a direction.
func Denies(p *policy.Policy, t policy.Traffic) bool {
	if p == nil {
		return false
	}
	steps, fallback := p.Steps(t)
	for i := range steps {
		if steps[i].Verdict == policy.Deny {
			return true
		}
	}
	return fallback == policy.Deny
}

// restricted reports whether a policy of the allocation or of its network
// denies anything. Only such policies are in the kernel.
func (e *end) restricted() bool {
	for _, p := range []*policy.Policy{e.general, e.own} {
		if Denies(p, policy.Egress) || Denies(p, policy.Ingress) {
			return true
		}
	}
	return false
}

// unpassed returns the rule by which a bridge does not pass a packet between an
// allocation and a peer; "" if the policies decide. They apply to IPv4
// link-local addresses, to which a bridge has a route as to others.
func (e *end) unpassed(peer netip.Addr) string {
	switch peer = peer.Unmap().WithZone(""); {
	case !e.bridged:
		return ""
	case peer.Is6() && peer.IsLinkLocalUnicast():
		return noLinkLocal
	case isGroup(peer), slices.ContainsFunc(e.networks, func(p netip.Prefix) bool { return peer.Is4() && peer == rtnl.Broadcast(p) }):
		return noGroups
	}
	return ""
}

// isGroup reports whether nothing can be sent from an address: a multicast
// group, or an IPv4 address from 240.0.0.0 upwards, of which the last one is
// the broadcast address.
func isGroup(a netip.Addr) bool {
	return a.IsMulticast() || a.Is4() && a.As4()[0] >= 224
}

// isDiscovery reports whether a flow is neighbour discovery or the management
// of multicast groups, to which policies do not apply. Both are between
// neighbours; to others, packets of these types are as all others.
func (h *Host) isDiscovery(from, to netip.Addr, flow policy.Flow) bool {
	return flow.Protocol == unix.IPPROTO_ICMPV6 && (flow.Port >= 130 && flow.Port <= 137 || flow.Port == 143) &&
		h.isNeighbour(from, to) && h.isNeighbour(to, from)
}

// isNeighbour reports whether a peer is on the link of the allocation with an
// address: the host, the groups and the link-local addresses, and on a bridge
// the network of the allocation. It is true if no allocation has the address.
func (h *Host) isNeighbour(of, peer netip.Addr) bool {
	e := h.ends[of.Unmap()]
	peer = peer.Unmap().WithZone("")
	return e == nil || h.local.Has(peer) || peer.IsMulticast() || peer.IsLinkLocalUnicast() ||
		e.bridged && slices.ContainsFunc(e.networks, func(p netip.Prefix) bool { return p.Contains(peer) })
}

// onBridge returns why the bridge of an allocation does not pass a packet; nil
// if the policies decide. It returns ErrUndecided if that depends on who receives
// the packet.
func (h *Host) onBridge(t policy.Traffic, of, peer netip.Addr) (*Reason, error) {
	e := h.ends[of.Unmap()]
	if e == nil {
		return nil, nil
	}
	rule := e.unpassed(peer)
	switch {
	case rule == "", !e.restricted() && h.local.Has(peer):
		return nil, nil
	case !e.restricted():
		return nil, fmt.Errorf("explain packets between allocation %q and %s on a bridge: no policy of the allocation denies anything, so %w", e.id, peer, ErrUndecided)
	}
	return &Reason{t.String(), e.id, e.network, policy.Deny, rule}, nil
}
