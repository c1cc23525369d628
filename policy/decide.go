package policy

import "net/netip"

// Remote is the other end of a packet.
type Remote struct {
	// Addr is its address. An IPv4-mapped address counts as IPv4; a zone is ignored.
	Addr netip.Addr
	// Known says that the address is that of an allocation of this host, with the ID
	// Allocation and the Labels.
	Known      bool
	Allocation string
	Labels     map[string]string
	// Host says that the address is one of the host's own. It is ignored with Known.
	Host bool
	// OwnNetwork says that the address is in the network of the allocation whose policy decides,
	// or that of the gateway of that network.
	OwnNetwork bool
	// HostPort says that the packet was sent to a host port of the allocation.
	HostPort bool
}

// elsewhere reports whether the address is the host's or another allocation's, but not in the own
// network: what the preset no-host denies.
func (r *Remote) elsewhere() bool {
	return !r.OwnNetwork && (r.Host || r.Known && !r.HostPort)
}

// unpublished reports whether a packet was neither sent to a host port, nor by an allocation in the own
// network: what the preset published-only denies, unless it is from the host.
func (r *Remote) unpublished() bool { return !r.HostPort && !(r.Known && r.OwnNetwork) }

// Flow is what the first packet of a connection carries: the number of the protocol and the
// destination port, or for ICMP and ICMPv6 the type.
type Flow struct {
	Protocol uint8
	Port     uint16
}

// String returns the flow in the notation of ParseFlow; only the number of a protocol that no
// Service has.
func (f Flow) String() string {
	name := ProtocolName(f.Protocol)
	_, known := protocols[name]
	return Span{Protocol: f.Protocol, Ports: known, First: f.Port, Last: f.Port}.String()
}

// Decision is the verdict on a packet. Rule is the name of the rule that decides, or
// its place such as "egress.rules[2]"; "preset" and the name of the preset; "host" for ingress
// from the host that no rule names; or "default".
type Decision struct {
	Verdict Verdict
	Rule    string
}

// The names of decisions that no rule makes.
const (
	byDefault = "default"
	byHost    = "host"
)

// The ranks of a peer, from the least to the most specific. A CIDR has the rank rankCIDR plus
// the length of its prefix.
const (
	rankNone     = -1
	rankEveryone = 0 // a rule without peers
	rankWorld    = 1
	rankCIDR     = 2
	rankHost     = rankCIDR + 128 + 1
	rankSelector = rankHost + 1
	rankID       = rankSelector + 1
)

// Decide returns the verdict on the first packet of a connection, and the rule that makes
// it. It defines what a policy means. Of the rules that match the peer and the service,
// the one with the most specific peer decides. From the most to the least specific, peers are
// an allocation's ID, a selector, "host", a CIDR by the length of its prefix ("metadata"
// being CIDRs of full length), "world", and every peer of a rule without peers. Among equally
// specific rules, one that denies decides. If no rule matches, ingress from the host is
// allowed, what the presets "no-host" and "published-only" are about denied if the policy has them, and
// the default decides on everything else. Ingress from the host is also allowed if only rules match that do not
// name "host".
func (p *Policy) Decide(t Traffic, remote Remote, flow Flow) Decision {
	remote.Addr = remote.Addr.Unmap().WithZone("")
	remote.Host = remote.Host && !remote.Known
	best, decision := rankNone, Decision{p.fallback(t), byDefault}
	for _, rule := range p.sources(t) {
		rank := rule.rank(remote)
		if rank < best || rank == rankNone || !rule.matches(flow) {
			continue
		}
		verdict := rule.action()
		if rank > best || verdict == Deny && decision.Verdict == Allow {
			best, decision = rank, Decision{verdict, rule.name}
		}
	}
	switch {
	case t == Ingress && remote.Host && best != rankHost:
		return Decision{Allow, byHost}
	case best == rankNone && decision.Verdict == Allow && p.closesHost(t) && remote.elsewhere():
		return Decision{Deny, byNoHost}
	case best == rankNone && decision.Verdict == Allow && p.admitsPublished(t) && remote.unpublished():
		return Decision{Deny, byPublishedOnly}
	}
	return decision
}

func (r *Rule) matches(flow Flow) bool {
	for _, s := range r.spans() {
		if s.matches(flow) {
			return true
		}
	}
	return false
}

// rank returns the rank of the most specific peer of the rule that matches, or rankNone.
func (r *Rule) rank(remote Remote) int {
	if len(r.Peers) == 0 {
		return rankEveryone
	}
	best := rankNone
	for i := range r.Peers {
		best = max(best, r.Peers[i].rank(remote))
	}
	return best
}

func (p *Peer) rank(remote Remote) int {
	switch {
	case p.Selector != nil && remote.Known && p.Selector.Matches(remote.Labels):
		return rankSelector
	case p.Selector != nil:
		return rankNone
	case p.Allocation != "" && remote.Known && p.Allocation == remote.Allocation:
		return rankID
	case p.Name == nameHost && remote.Host:
		return rankHost
	case p.Name == nameWorld && !remote.Host && !remote.Known && !contains(notWorld, remote.Addr):
		return rankWorld
	}
	best := rankNone
	for _, prefix := range p.prefixes() {
		if prefix.Contains(remote.Addr) {
			best = max(best, rankCIDR+prefix.Bits())
		}
	}
	return best
}

// prefixes returns the addresses of the peer if it has some.
func (p *Peer) prefixes() []netip.Prefix {
	switch {
	case p.Name == nameMetadata:
		return metadata
	case p.CIDR.IsValid():
		return []netip.Prefix{p.CIDR}
	}
	return nil
}
