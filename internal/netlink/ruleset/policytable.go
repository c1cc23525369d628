package ruleset

import (
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/conntrack"
	"github.com/allocnet/allocnet/policy"
)

// The tables of network policies, one of each family. They are made with the first
// attachment that needs them, so hosts without policies do not have their chains.
//
// A policy is a chain, which allocations with the same policy share. The link of an
// allocation leads to it by its group, which the link has from the moment at which it is
// made: so no element is added per allocation. Ports of a bridge are not visible where
// policies are applied; there the address leads to the chain. Rules find peers with the
// same labels in one set for a selection, to which each allocation adds an element.
var (
	policies4 = newPolicyTable(unix.NFPROTO_IPV4)
	policies6 = newPolicyTable(unix.NFPROTO_IPV6)

	policyTables = []*table{policies4, policies6}
)

// policySets are the fixed sets of a table of policies. Index 0 is egress, and 1 ingress.
type policySets struct {
	// links lead from the group of a link to the chain of its policy, and addresses from
	// the address of an allocation on a bridge.
	links, addresses [2]*set
	// known are the addresses of all allocations in networks with policies.
	known *set
	// ends are the addresses of allocations with a policy, each paired with itself: as the sender of an ICMP
	// error, and as an end of the connection that the error belongs to.
	ends *set
	// dropped count the packets that a policy has dropped, for each allocation.
	dropped [2]*set
	// flows are those that a policy has dropped. Packets add them. listing limits how many flows of an
	// allocation are added, and unlisted counts the packets of the others.
	flows, listing, unlisted [2]*set
	// constants are the sets of the prefixes that many policies have.
	constants []*set
}

const (
	egress  = 0
	ingress = 1
)

var directions = [2]string{names.Egress, names.Ingress}

const (
	// deniedSize is the maximum number of flows in each of the sets of flows. Further ones are
	// dropped and counted, but not listed.
	deniedSize = 1 << 14
	// deniedTimeout is the time in milliseconds after which a flow leaves the set.
	deniedTimeout = 5 * 60 * 1000
	// An allocation can add listingBurst flows at once, and listingRate in each second: 1624 within
	// deniedTimeout, a tenth of the set. listingTimeout is longer than a new burst takes to accumulate.
	listingBurst, listingRate = 1 << 10, 2
	listingTimeout            = 10 * 60 * 1000
)

func newPolicyTable(family byte) *table {
	t, addr := tableNamed(names.PolicyTable, family)
	p := &policySets{}
	verdict := types{nftables.TypeVerdict}
	for i, direction := range directions {
		p.links[i] = t.newSet(direction+"_links", types{nftables.TypeDevGroup}, verdict)
		p.addresses[i] = t.newSet(direction+"_addresses", types{addr}, verdict)
		p.dropped[i] = t.newSet(direction+"_dropped", types{addr}, nil)
		p.flows[i] = t.newSet(direction+"_flows", types{nftables.TypeInetProto, addr, addr, nftables.TypeInetService}, nil)
		p.listing[i], p.unlisted[i] = t.newSet(direction+"_listing", types{addr}, nil), t.newSet(direction+"_unlisted", types{addr}, nil)
		for _, s := range []*set{p.flows[i], p.listing[i], p.unlisted[i]} {
			s.shared, s.counters, s.size, s.timeout = true, true, deniedSize, deniedTimeout
		}
		p.listing[i].counters, p.listing[i].timeout = false, listingTimeout
		p.links[i].shared, p.dropped[i].counters = true, true
	}
	p.known = t.newSet("allocations", types{addr}, nil)
	p.ends = t.newSet("ends_of_connections", types{addr, addr}, nil)
	for _, one := range []struct {
		name string
		list []netip.Prefix
	}{{names.Metadata, policy.Metadata()}, {names.NotWorld, policy.NotWorld()}} {
		s := t.prefixSet(one.name, t.ofFamily(one.list), true)
		p.constants, t.sets = append(p.constants, s), append(t.sets, s)
	}
	t.policy = p
	t.chains = onceChains(t, t.policyChains)
	return t
}

// policyPriority is that of the policies in their hooks: after the translation of
// destinations and before that of sources, and before the chains that accept packets on
// behalf of iptables. So a policy sees the client of a host port, and the allocation's port.
const policyPriority = -20

// policyChains returns the fixed chains.
func (t *table) policyChains() []chain {
	list := slices.Concat(t.clearing(), t.denials(egress), t.denials(ingress), []chain{t.dispatch(egress), t.dispatch(ingress), t.errors(), t.redirected(),
		t.truncated(), newChain("invalid_dropped", hook{}, t.dropOf(egress)...), t.unguarded()})
	if t.family == unix.NFPROTO_IPV6 {
		list = append(list, newChain("fragments", hook{}, slices.Concat(t.dropOf(egress), t.dropOf(ingress))...))
	}
	for _, h := range policyHooks {
		var rules []rule
		for _, d := range h.directions {
			rules = append(rules, newRule("a policy applies: clear the mark", append(needsPolicy(d), setMark(0)...)...))
		}
		for _, d := range h.directions {
			rules = append(rules, newRule("connections of links that are not ready", slices.Concat(
				[]expr.Any{linkGroup(d), equal(native(names.PendingGroup)), &expr.Ct{Key: expr.CtKeySTATE, Register: 1}},
				anyBit(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), []expr.Any{&expr.Counter{}, drop()})...))
		}
		rules = append(rules, t.trackedRules(h.directions[0])...)
		switch {
		case h.number == unix.NF_INET_FORWARD:
			rules = append(rules, t.whenForwarded()...)
		case t.family == unix.NFPROTO_IPV6:
			rules = append(rules, neighbours()...)
		}
		for _, d := range h.directions {
			rules = append(rules, t.ended(d)...)
		}
		for _, d := range h.directions {
			rules = append(rules, newRule("policies of "+peers[d], jump(chainOf(d))))
		}
		list = append(list, newChain(h.name, base("filter", h.number, policyPriority), rules...))
	}
	return append(list, newChain("postrouting", base("filter", unix.NF_INET_POST_ROUTING, policyPriority),
		newRule("redirected connections of the host", append(needsPolicy(ingress), jump("redirected"))...)))
}

// redirected applies the policy to connections of the host to its own host ports. The output hook
// keeps the link of the former destination, so the policy does not apply there.
func (t *table) redirected() chain {
	rules := t.trackedRules(ingress)
	if t.family == unix.NFPROTO_IPV6 {
		rules = append(rules, neighbours()...)
	}
	return newChain("redirected", hook{}, append(rules, newRule("policies of receivers", append(overNone(ingress, true), jump(chainOf(ingress)))...))...)
}

// policyHooks are the hooks in which policies are applied, and the directions of traffic there,
// seen from the allocation.
var policyHooks = []struct {
	name       string
	number     uint32
	directions []int
}{
	{"forward", unix.NF_INET_FORWARD, []int{egress, ingress}},
	{"input", unix.NF_INET_LOCAL_IN, []int{egress}},
	{"output", unix.NF_INET_LOCAL_OUT, []int{ingress}},
}

var peers = [2]string{"senders", "receivers"}

func chainOf(direction int) string   { return directions[direction] }
func denialsOf(direction int) string { return directions[direction] + "_denied" }
func accepts() *expr.Verdict         { return &expr.Verdict{Kind: expr.VerdictAccept} }
func returns() *expr.Verdict         { return &expr.Verdict{Kind: expr.VerdictReturn} }
func notInSet(s *set) *expr.Lookup {
	return &expr.Lookup{SetName: s.name, SetID: noSetID, SourceRegister: 1, Invert: true}
}
func transport(offset, length, at uint32) *expr.Payload {
	return &expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: length, DestRegister: register(at)}
}

// trackedRules returns the rules for packets of tracked connections. Those that a change of a policy has ended are
// marked: their answers are dropped, and the policies decide on the other packets. In hooks of egress, ICMP errors
// are decided separately.
func (t *table) trackedRules(direction int) []rule {
	mark, reply := &expr.Ct{Key: expr.CtKeyMARK, Register: 1}, []byte{1} // IP_CT_DIR_REPLY
	goesOn := func(comment string, state uint32, then ...expr.Any) rule {
		return newRule(comment, slices.Concat([]expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}}, anyBit(state),
			[]expr.Any{mark, unequal(native(conntrack.Ended))}, then)...)
	}
	const established, related = expr.CtStateBitESTABLISHED, expr.CtStateBitRELATED
	var rules []rule
	if direction == egress {
		rules = []rule{
			goesOn("tracked connections", established, returns()),
			goesOn("ICMP errors about connections", related, protocol(0), equal(t.icmp()), goTo(chainErrors)),
			goesOn("related connections", related, returns()),
		}
	} else {
		rules = []rule{goesOn("tracked connections", established|related, returns())}
	}
	return append(rules, newRule("answers of ended connections", mark, equal(native(conntrack.Ended)),
		&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1}, equal(reply), &expr.Counter{}, drop()))
}

const chainErrors = "icmp_errors"

// errors accepts ICMP errors from an end of the connection that they belong to, and from senders without a
// policy. Others may be forged, to end or slow down a connection of others: the egress policy of the sender
// decides on them, as on a first packet. That is not redirected, even if the connection is, so those about
// connections to host ports are dropped.
func (t *table) errors() chain {
	end := func(direction byte) []expr.Any {
		return []expr.Any{t.src(0), t.connection(ctSource, direction, t.addrLen), inSet(t.policy.ends), accepts()}
	}
	rules := []rule{
		newRule("from the client", end(ctOriginal)...),
		newRule("from the server", end(ctReply)...),
	}
	for _, of := range [][]expr.Any{{t.src(0), inSet(t.policy.dropped[egress])}, needsPolicy(egress)} {
		rules = append(rules, newRule("about redirected connections of others", slices.Concat(redirected(), of, counted(drop()))...))
	}
	return newChain(chainErrors, hook{}, append(rules,
		newRule("policies of "+peers[egress], jump(chainOf(egress))),
		newRule("permitted", accepts()))...)
}

// icmp returns the number of the ICMP of the table's family.
func (t *table) icmp() []byte {
	if t.family == unix.NFPROTO_IPV6 {
		return []byte{unix.IPPROTO_ICMPV6}
	}
	return []byte{unix.IPPROTO_ICMP}
}

// ended drops TCP packets of allocations with a policy that are not the first of a connection, and belong to no
// tracked one. From those with ACK, the kernel would track the connection anew in the direction of such a packet
// (nf_conntrack_tcp_loose), so that a connection that the policy of one end has ended would go on as soon as
// the other end sends. Others, such as RST, are invalid to it. By the link, that holds for what is behind the
// allocation as well.
func (t *table) ended(direction int) []rule {
	const flags, relevant, syn = 13, 0x17, 0x02 // of FIN, SYN, RST and ACK
	packets := slices.Concat(
		[]expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}}, anyBit(expr.CtStateBitNEW|expr.CtStateBitINVALID),
		[]expr.Any{protocol(0), equal([]byte{unix.IPPROTO_TCP}),
			transport(flags, 1, 0), mask([]byte{relevant}, []byte{0}), unequal([]byte{syn})})
	var rules []rule
	for _, of := range [][]expr.Any{{t.subject(direction, 0), inSet(t.policy.dropped[direction])}, needsPolicy(direction)} {
		rules = append(rules, newRule("TCP connections that are not tracked", slices.Concat(packets, of, []expr.Any{&expr.Counter{}, drop()})...))
	}
	return rules
}

// whenForwarded returns the rules of the hook forward that precede the policies.
func (t *table) whenForwarded() (rules []rule) {
	if t.family == unix.NFPROTO_IPV6 {
		// Connection tracking has reassembled fragments before (nf_defrag_ipv6), which removes one fragment header.
		// If there is a second one, the packet is a fragment within a fragment: rules do not see the protocol and
		// the port that the receiver sees after it has removed that, too. The host itself refuses such packets
		// (ipv6_frag_rcv).
		rules = append(rules, newRule("fragments", append(fragments6(), jump("fragments"))...), discovery())
	}
	unguarded := []expr.Any{linkGroup(egress), mask(native(names.LinkGroups), native(0)), unequal(native(names.GuardedGroup & names.LinkGroups))}
	return append(rules,
		newRule("packets of no connection", append(invalid(), jump("invalid"))...),
		newRule("allocations on unguarded links", append(unguarded, t.src(0), inSet(t.policy.known), jump("unguarded"))...))
}

// invalid matches packets that connection tracking cannot classify.
func invalid() []expr.Any {
	return append([]expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}}, anyBit(expr.CtStateBitINVALID)...)
}

// truncated lists packets of allocations with a policy that connection tracking cannot classify because they end
// before the header of their protocol does, as packets that a policy denies. Others, such as the last ones of a
// TCP connection, are only dropped.
func (t *table) truncated() chain {
	const dropped = "invalid_dropped"
	others := []expr.Any{protocol(0)}
	c := newChain("invalid", hook{})
	for _, whole := range []struct {
		protocol     byte
		last, length uint32 // the last field of the header
	}{{unix.IPPROTO_TCP, 18, 2}, {unix.IPPROTO_UDP, 6, 2}, {unix.IPPROTO_SCTP, 8, 4}} {
		c.rules = append(c.rules, newRule("whole header", protocol(0), equal([]byte{whole.protocol}), transport(whole.last, whole.length, 0),
			&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: make([]byte, whole.length)}, goTo(dropped)))
		others = append(others, unequal([]byte{whole.protocol}))
	}
	c.rules = append(c.rules, newRule("other protocols", append(others, goTo(dropped))...),
		newRule("senders without a policy", t.subject(egress, 0), notInSet(t.policy.dropped[egress]), goTo(dropped)),
		newRule("truncated packets", goTo(denialsOf(egress))))
	return c
}

// extension matches packets that have an extension header of IPv6.
func extension(kind uint8) []expr.Any {
	const present = 1 // NFT_EXTHDR_F_PRESENT
	return []expr.Any{&expr.Exthdr{Op: expr.ExthdrOpIpv6, Type: kind, Len: 1, Flags: present, DestRegister: register(0)}, equal([]byte{1})}
}

// unguarded drops packets to allocations with a policy that have the address of another allocation as
// their source, but come from elsewhere: rules about that allocation would match them. The source guard
// has checked those of guarded links, and of the ports of bridges. A bridge without an address of the host
// has no route. Other links are those of allocations without the guard, to which the routes lead, and
// those of other machines.
func (t *table) unguarded() chain {
	const iifKind = 26 // NFT_META_IIFKIND
	bridge := []expr.Any{&expr.Meta{Key: iifKind, Register: 1}, equal(linkName("bridge")), returns()}
	behind := []expr.Any{&expr.Fib{Register: 1, FlagSADDR: true, FlagIIF: true, ResultOIF: true}, unequal(native(0)), returns()}
	return newChain("unguarded", hook{}, append([]rule{newRule("bridges", bridge...), newRule("source that is behind the link", behind...)},
		t.dropOf(ingress)...)...)
}

// dropOf returns rules that drop packets of allocations with a policy: of their addresses, for which they
// are counted, and of others that are behind a link.
func (t *table) dropOf(direction int) []rule {
	return []rule{
		newRule(peers[direction]+" with a policy, by address", t.subject(direction, 0), inSet(t.policy.dropped[direction]), drop()),
		newRule(peers[direction]+" with a policy, by link", append(needsPolicy(direction), &expr.Counter{}, drop())...),
	}
}

// neighbours returns the rules for neighbour discovery and for the management of multicast
// groups: without them, no address can be reached. Both are between neighbours. In a table of all
// families, ipv6 matches IPv6.
//
// Messages about groups come from a link-local address, or from :: as long as the sender has none,
// and are sent to a group with the hop limit 1 (RFC 2710, RFC 3810). The hop limit alone does not
// show that a router has not forwarded them: in the hook forward it is decremented already
// (ip6_forward). There, rules are not needed for them: no policy applies to these addresses within
// a bridge, and routers do not forward them.
func neighbours(ipv6 ...expr.Any) []rule {
	const hopLimit = 1
	linkLocal := []expr.Any{network(source6At, 2, 0), mask([]byte{0xff, 0xc0}, []byte{0, 0}), equal([]byte{0xfe, 0x80})}
	unspecified := []expr.Any{network(source6At, 16, 0), equal(make([]byte, 16))}
	groups := func(comment string, source []expr.Any, first, last byte) rule {
		toGroup := []expr.Any{network(target6At, 1, 0), equal([]byte{0xff})}
		return newRule(comment, slices.Concat(ipv6, betweenNeighbours(hopLimit, first, last), toGroup, source, []expr.Any{returns()})...)
	}
	return []rule{
		discovery(ipv6...),
		groups("multicast groups", linkLocal, 130, 132),
		groups("multicast groups", linkLocal, 143, 143),
		groups("multicast groups before there is an address", unspecified, 131, 132),
		groups("multicast groups before there is an address", unspecified, 143, 143),
	}
}

// discovery returns the rule for neighbour discovery. Its hop limit is 255, which no packet has that a
// router has forwarded (RFC 4861). With another one, a packet of the same type is one of a workload.
func discovery(ipv6 ...expr.Any) rule {
	const hopLimit = 255
	return newRule("neighbour discovery", slices.Concat(ipv6, betweenNeighbours(hopLimit, 133, 137), []expr.Any{returns()})...)
}

// betweenNeighbours matches ICMPv6 packets with a hop limit, of the types from first to last.
func betweenNeighbours(hopLimit, first, last byte) []expr.Any {
	const hopLimitAt = 7
	return []expr.Any{protocol(0), equal([]byte{unix.IPPROTO_ICMPV6}), network(hopLimitAt, 1, 0), equal([]byte{hopLimit}), transport(0, 1, 0),
		&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: []byte{first}, ToData: []byte{last}}}
}

// source6At and target6At are the offsets of the addresses in the header of IPv6.
const source6At, target6At = 8, 24

// subject loads the address of the allocation whose policy is applied, and peer the other
// one.
func (t *table) subject(direction int, at uint32) *expr.Payload {
	if direction == ingress {
		return t.dest(at)
	}
	return t.src(at)
}

func (t *table) peer(direction int, at uint32) *expr.Payload {
	return t.subject(1-direction, at)
}

// dispatch leads to the policy. A link of one of the groups that lead to policies, without a
// policy, is one that is being set up or removed, or one whose policy another program has
// removed.
func (t *table) dispatch(direction int) chain {
	return newChain(chainOf(direction), hook{},
		newRule("by link", linkGroup(direction), verdictOf(t.policy.links[direction])),
		newRule("links that need a policy", append(needsPolicy(direction), &expr.Counter{}, drop())...),
		newRule("by address", t.subject(direction, 0), verdictOf(t.policy.addresses[direction])))
}

// linkGroup loads the group of the link of the allocation.
func linkGroup(direction int) *expr.Meta {
	return &expr.Meta{Key: [2]expr.MetaKey{expr.MetaKeyIIFGROUP, expr.MetaKeyOIFGROUP}[direction], Register: 1}
}

// needsPolicy matches links of the groups whose packets are dropped unless a policy applies.
func needsPolicy(direction int) []expr.Any {
	return []expr.Any{linkGroup(direction), mask(native(names.LinkGroups), native(0)), equal(native(names.GuardedGroup & names.LinkGroups)),
		linkGroup(direction), unequal(native(names.GuardedGroup))}
}

// denials returns the chains that count and drop packets that a policy denies. They list flows only
// of allocations with a policy, for whose addresses ForgetDenials is called. An allocation that adds many flows
// does not keep those of others from being listed.
func (t *table) denials(direction int) []chain {
	name := denialsOf(direction)
	flows, unlisted := t.policy.flows[direction], directions[direction]+"_unlisted"
	key := func(service expr.Any) []expr.Any {
		return []expr.Any{protocol(0), t.subject(direction, 4), t.peer(direction, 4+t.addrLen), service}
	}
	limited := func(new ...expr.Any) rule {
		return newRule("too many flows", append(new, t.subject(direction, 0), renew(t.policy.listing[direction],
			&expr.Limit{Type: expr.LimitTypePkts, Rate: listingRate, Unit: expr.LimitTimeSecond, Burst: listingBurst, Over: true}), goTo(unlisted))...)
	}
	// A lookup that is inverted does not count. A set that is full ends the second rule.
	list := func(suffix string, service func(at uint32) *expr.Payload) chain {
		of := key(service(4 + 2*t.addrLen))
		return newChain(name+suffix, hook{}, limited(append(of, notInSet(flows))...),
			newRule("flows", append(of, renew(flows), returns())...), newRule("no room", goTo(unlisted)))
	}
	present := func(load *expr.Payload) []expr.Any {
		return []expr.Any{load, &expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: make([]byte, load.Len)}}
	}
	none := &expr.Immediate{Register: register(4 + 2*t.addrLen), Data: make([]byte, 2)}
	// The type and the code of ICMP are where ports would be. In a chain of their own, nft takes
	// them for a port, so that their type is that of the set; otherwise it could not load what
	// it has listed. Packets that end before have the port 0.
	return []chain{
		newChain(unlisted, hook{}, newRule("packets of flows that are not listed", t.subject(direction, 0), renew(t.policy.unlisted[direction]))),
		list("_icmp", func(at uint32) *expr.Payload { return transport(0, 2, at) }),
		list("_ports", port),
		newChain(name+"_flows", hook{},
			newRule("flows of ICMP", slices.Concat([]expr.Any{protocol(0), equal(t.icmp())}, present(transport(0, 1, 0)), []expr.Any{goTo(name + "_icmp")})...),
			newRule("flows with ports", slices.Concat([]expr.Any{protocol(0), unequal(t.icmp())}, present(port(0)), []expr.Any{goTo(name + "_ports")})...),
			limited(),
			newRule("flows of short packets", append(key(none), renew(flows), returns())...),
			newRule("no room", goTo(unlisted))),
		newChain(name, hook{},
			newRule("packets of allocations", t.subject(direction, 0), inSet(t.policy.dropped[direction]), jump(name+"_flows")),
			newRule("packets", drop())),
	}
}

// renew adds the key to a set, or renews the timeout of its element. Each element has its own state of the
// expressions, which decide whether the rule goes on.
func renew(s *set, exprs ...expr.Any) *expr.Dynset {
	return &expr.Dynset{SrcRegKey: register(0), SetName: s.name, SetID: noSetID, Operation: dynsetUpdate, Exprs: exprs}
}

// dynsetUpdate is NFT_DYNSET_OP_UPDATE: it renews the timeout of an element, or adds it.
const dynsetUpdate = 1
