package netpolicy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/policy"
)

// Host are the allocations of a host with their policies and labels. It is safe for concurrent
// use.
type Host struct {
	ends  map[netip.Addr]*end
	local *rtnl.HostAddresses
}

// end is an interface of an allocation in a network that enforces policies.
type end struct {
	id, network string
	labels      map[string]string
	networks    []netip.Prefix // of the interface's addresses and gateways
	own         *policy.Policy // of the allocation
	general     *policy.Policy // of the network
	bridged     bool           // the interface is a port of a bridge
}

// New returns a Host with the allocations of these records, and with the addresses of the host
// of this process. Without the configuration of a network, which the daemon gives only to
// root, the network counts as one without a policy of its own.
func New(records []allocnet.Record) (*Host, error) {
	h := &Host{ends: map[netip.Addr]*end{}}
	known := map[string]network{}
	for i := range records {
		if err := h.add(&records[i], known); err != nil {
			return nil, err
		}
	}
	var err error
	h.local, err = rtnl.ListHostAddresses()
	return h, err
}

// network is what a configuration list says about policies.
type network struct {
	general  *policy.Policy
	enforces bool
}

// add adds the addresses of an allocation. known caches configuration lists, which most
// allocations share.
func (h *Host) add(r *allocnet.Record, known map[string]network) error {
	if r.Status == nil || r.Acknowledged {
		return nil
	}
	for _, attached := range r.Networks {
		n, found := known[string(attached.Config)]
		if !found {
			var err error
			if n.general, n.enforces, err = PolicyOf(attached.Config); err != nil {
				return fmt.Errorf("allocation %q: network %q: %w", r.ID, attached.Network, err)
			}
			known[string(attached.Config)] = n
		}
		if !n.enforces {
			continue
		}
		for _, i := range r.Status.Interfaces {
			if i.Network == attached.Network && i.Sandbox != "" {
				h.addInterface(r, &i, end{network: i.Network, general: n.general, bridged: isBridged(r.Status.Interfaces, i.Network)})
			}
		}
	}
	return nil
}

// addInterface adds the addresses of an interface of an allocation.
func (h *Host) addInterface(r *allocnet.Record, i *allocnet.Interface, e end) {
	e.id, e.labels, e.own = r.ID, r.Labels, r.Policy
	e.networks = []netip.Prefix{netip.MustParsePrefix("fe80::/10")}
	for _, a := range i.Addresses {
		if p, err := netip.ParsePrefix(a.Address); err == nil {
			e.networks = append(e.networks, p.Masked())
			h.ends[p.Addr().Unmap()] = &e
		}
		if g, err := netip.ParseAddr(a.Gateway); err == nil {
			e.networks = append(e.networks, netip.PrefixFrom(g, g.BitLen()))
		}
	}
}

// PolicyOf returns the policy that a configuration list has for all allocations, and whether
// the network enforces policies. A missing list counts as one that does.
func PolicyOf(conflist []byte) (general *policy.Policy, enforces bool, err error) {
	if len(conflist) == 0 {
		return nil, true, nil
	}
	var list struct {
		Plugins []json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(conflist, &list); err != nil {
		return nil, false, err
	}
	for _, plugin := range list.Plugins {
		var kind struct {
			Type string `json:"type"`
		}
		var conf struct {
			Policy *policy.Policy `json:"policy"`
		}
		if err := json.Unmarshal(plugin, &kind); err != nil || kind.Type != "policy" {
			continue
		}
		err := json.Unmarshal(plugin, &conf)
		return conf.Policy, true, err
	}
	return nil, false, nil
}

// Allocation returns the ID of the allocation that has an address in a network that enforces
// policies; "" if none has.
func (h *Host) Allocation(a netip.Addr) string {
	if e := h.ends[a.Unmap()]; e != nil {
		return e.id
	}
	return ""
}

// Addresses returns the addresses of the host that others can reach, sorted.
func (h *Host) Addresses() []netip.Addr { return h.local.Unicast() }

// Describe returns who has an address: an allocation, the host, or neither.
func (h *Host) Describe(a netip.Addr) string {
	switch id := h.Allocation(a); {
	case id != "":
		return fmt.Sprintf("%s (allocation %s)", a, id)
	case h.local.Has(a):
		return fmt.Sprintf("%s (host)", a)
	}
	return a.String()
}

// Reason is the decision of one policy on a flow.
type Reason struct {
	Direction string `json:"direction"` // seen from the allocation
	// Allocation is the one whose traffic the policy is about.
	Allocation string `json:"allocation"`
	// Network is the network whose policy it is; "" for the policy of the allocation.
	Network string         `json:"network,omitempty"`
	Verdict policy.Verdict `json:"verdict"`
	Rule    string         `json:"rule"`
}

// Policy says whose policy it is.
func (r *Reason) Policy() string {
	if r.Network != "" {
		return "network " + r.Network
	}
	return "allocation " + r.Allocation
}

// Explain returns the decisions on a flow from one address to another, in the
// order in which they are made: those on the egress of the sender, and those on
// the ingress of the receiver. The first one that denies decides. There are
// none within an allocation, and none on neighbour discovery of neighbours. It returns
// ErrUndecided if the decision depends on what the records do not say.
func (h *Host) Explain(from, to netip.Addr, flow policy.Flow) ([]Reason, error) {
	if isGroup(from.Unmap()) {
		return nil, fmt.Errorf("no packet has the source %s: give the address of a host", from)
	}
	if id := h.Allocation(from); id != "" && id == h.Allocation(to) || h.isDiscovery(from, to, flow) {
		return nil, nil
	}
	var list []Reason
	for _, side := range []struct {
		traffic  policy.Traffic
		of, peer netip.Addr
	}{{policy.Egress, from, to}, {policy.Ingress, to, from}} {
		unpassed, err := h.onBridge(side.traffic, side.of, side.peer)
		if err != nil {
			return nil, err
		}
		if unpassed != nil {
			list = append(list, *unpassed)
			continue
		}
		list = append(list, h.Decisions(side.traffic, side.of, side.peer, flow)...)
	}
	return list, nil
}

// Decisions returns the decisions of the policies of the allocation with an address, on a flow that was
// not sent to a host port.
func (h *Host) Decisions(t policy.Traffic, of, peer netip.Addr, flow policy.Flow) []Reason {
	return h.decisions(t, of, peer, flow, false)
}

func (h *Host) decisions(t policy.Traffic, of, peer netip.Addr, flow policy.Flow, hostPort bool) []Reason {
	e := h.ends[of.Unmap()]
	if e == nil {
		return nil
	}
	remote := policy.Remote{Addr: peer, Host: h.local.Has(peer) || t == policy.Egress && h.local.Receives(peer), HostPort: hostPort}
	remote.OwnNetwork = slices.ContainsFunc(e.networks, func(p netip.Prefix) bool { return p.Contains(peer.Unmap()) })
	if p := h.ends[peer.Unmap()]; p != nil {
		remote.Known, remote.Allocation, remote.Labels = true, p.id, p.labels
	}
	var list []Reason
	for _, one := range []struct {
		network string
		policy  *policy.Policy
	}{{e.network, e.general}, {"", e.own}} {
		if one.policy != nil {
			d := one.policy.Decide(t, remote, flow)
			list = append(list, Reason{t.String(), e.id, one.network, d.Verdict, d.Rule})
		}
	}
	return list
}

// Denial returns the first of some decisions that denies; nil if none does.
func Denial(reasons []Reason) *Reason {
	for i := range reasons {
		if reasons[i].Verdict == policy.Deny {
			return &reasons[i]
		}
	}
	return nil
}
