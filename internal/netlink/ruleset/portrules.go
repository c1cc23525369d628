package ruleset

import (
	"math"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
)

// The chains of the guard of bridge ports.
const (
	chainFromPort  = "from_port"
	chainToPort    = "to_port"
	chainToRouters = "to_routers"
	chainOwnMAC    = "own_mac"
	chainOwnIP6    = "own_ip6"
	chainOwnICMP6  = "own_icmp6"
	chainOwnAuto6  = "own_autoconfigured6"
	chainOwnARP    = "own_arp"
	chainOwnIGMP   = "own_igmp"
	chainOwnTagged = "own_tagged"
	chainRouters6  = "multicast_routers6"
	chainPermitted = "permitted"
)

// portGuard is the priority of the guard in the bridge's hook prerouting. The chains of the
// held table come immediately before and after it.
const portGuard = math.MinInt32 + 1

// portExit is the priority of the guard in the bridge's hook postrouting, likewise. Behind it are
// only the hooks of IP, if the bridge calls them.
const portExit = math.MaxInt32 - 2

const (
	hookBridgePrerouting  = 0 // NF_BR_PRE_ROUTING
	hookBridgePostrouting = 4 // NF_BR_POST_ROUTING
)

// fromGuarded matches frames from guarded ports, and from ports that are being removed.
func fromGuarded() []expr.Any { return guardedBy(expr.MetaKeyIIFGROUP) }

// toGuarded matches frames to such ports, and toReady those to a port whose network policy, if
// there is one, is active: GuardedPortGroup and DropInPortGroup, which differ by one bit.
func toGuarded() []expr.Any { return guardedBy(expr.MetaKeyOIFGROUP) }

func toReady() []expr.Any {
	const either = ^uint32(names.GuardedPortGroup ^ names.DropInPortGroup)
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFGROUP, Register: 1}, mask(native(either), native(0)), equal(native(names.GuardedPortGroup))}
}

func guardedBy(group expr.MetaKey) []expr.Any {
	return []expr.Any{&expr.Meta{Key: group, Register: 1}, mask(native(names.PortGroups), native(0)), equal(native(names.GuardedGroup))}
}

// portChains returns the chains that drop frames of guarded ports unless the port has
// elements for their MAC and addresses. Chains to which others go end in a verdict.
func (t *table) portChains() []chain {
	return []chain{
		newChain(chainPermitted, hook{}, newRule("checked", append(setMark(0), &expr.Verdict{Kind: expr.VerdictAccept})...)),
		t.ownARP(),
		t.ownIGMP(),
		t.multicastRouters6(),
		t.ownAutoconfigured6(),
		t.ownICMP6(),
		t.ownIP6(),
		t.ownTagged(),
		t.ownMAC(),
		newChain(chainFromPort, hook{},
			newRule("the port's own MAC", t.inPortSet(t.macs, sourceMAC, goTo(chainOwnMAC))...),
			newRule("another MAC", counted(drop())...)),
		newChain("own_frames", base("filter", hookBridgePrerouting, portGuard),
			newRule("from a guarded port", append(fromGuarded(), goTo(chainFromPort))...)),
		t.toPort(),
		toRouters(),
		newChain("frames_to_ports", base("filter", hookBridgePostrouting, portExit),
			newRule("to a guarded port", append(toReady(), goTo(chainToPort))...),
			newRule("to a port that is being set up or removed", append(toGuarded(), counted(drop())...)...)),
	}
}

// toPort permits frames for the port's own MAC, and those for groups. A port without elements is
// that of an allocation that is being set up, or one that is being removed.
func (t *table) toPort() chain {
	own := []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Payload{Base: expr.PayloadBaseLLHeader, Offset: 0, Len: macLen, DestRegister: register(unix.IFNAMSIZ)}, inSet(t.macs), goTo(chainPermitted)}
	return newChain(chainToPort, hook{},
		newRule("for a group", append(toGroup(), goTo(chainPermitted))...), // first, because a bridge copies it to all ports
		newRule("for the port's own MAC", own...),
		newRule("for another MAC", counted(drop())...))
}

// toRouters drops what only routers read, which are not behind guarded ports: reports of multicast groups, as switches
// keep them from hosts (RFC 4541, section 2.1.1), and solicitations of routers. When its link comes up, the kernel of a
// container sends several of them, and a bridge would copy each of them to all ports.
func toRouters() chain {
	return newChain(chainToRouters, hook{},
		newRule("reports multicast groups, or solicits routers", transport(0, 1, 0),
			&expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: []byte{mldReport}, ToData: []byte{routerSolicitation}}, drop()),
		newRule("reports multicast groups", append(icmpType(mld2Report), drop())...))
}

// heldPortChains returns the chains that mark frames of guarded ports before the guard, and
// after it drop those that it has not checked. The mark is ForwardMark, of which the guard
// clears the bit: a frame never leaves the hook with it.
func heldPortChains() []chain {
	around := func(suffix string, number uint32, priority int32, guarded func() []expr.Any) []chain {
		unchecked := append(append(guarded(), &expr.Meta{Key: expr.MetaKeyMARK, Register: 1}), anyBit(ForwardMark)...)
		return []chain{
			newChain("unchecked"+suffix, base("filter", number, priority-1),
				newRule("frames to check", append(guarded(), setMark(ForwardMark)...)...)),
			newChain("checked"+suffix, base("filter", number, priority+1),
				newRule("the guard is missing", append(unchecked, counted(drop())...)...)),
		}
	}
	return append(around("", hookBridgePrerouting, portGuard, fromGuarded), around("_to_ports", hookBridgePostrouting, portExit, toGuarded)...)
}

// ownMAC checks what comes from the port's own MAC.
func (t *table) ownMAC() chain {
	ipv4, ipv6, arp := etherType(unix.ETH_P_IP), etherType(unix.ETH_P_IPV6), etherType(unix.ETH_P_ARP)
	tags := func(kind uint16) []expr.Any { // no policy applies behind a tag
		return slices.Concat(etherType(kind), t.inPortSet(t.tagged, nil, notInSet(t.policed), goTo(chainOwnTagged)))
	}
	others := []expr.Any{protocol4, unequal([]byte{unix.IPPROTO_IGMP}), unequal([]byte{unix.IPPROTO_PIM}), goTo(chainPermitted)}
	return newChain(chainOwnMAC, hook{}, append(t.portFragments(ipv4, ipv6),
		newRule("IPv4 from its own address", slices.Concat(ipv4, t.inPortSet(t.addresses4, source4), others)...),
		newRule("IGMP and PIM from its own address", slices.Concat(ipv4, t.inPortSet(t.addresses4, source4, goTo(chainOwnIGMP)))...),
		newRule("IPv6", append(slices.Clone(ipv6), jump(chainOwnIP6))...),
		newRule("ARP", append(slices.Clone(arp), jump(chainOwnARP))...),
		newRule("IPv4 from a port without known addresses", slices.Concat(ipv4, t.inPortSet(t.unaddressed, nil, goTo(chainPermitted)))...),
		newRule("VLAN tags", tags(unix.ETH_P_8021Q)...),
		newRule("VLAN service tags", tags(unix.ETH_P_8021AD)...),
		newRule("another IPv4 address", slices.Concat(ipv4, counted(drop()))...),
		newRule("another IPv6 address", slices.Concat(ipv6, counted(drop()))...),
		newRule("ARP for another address", slices.Concat(arp, counted(drop()))...),
		newRule("another protocol", counted(drop())...))...)
}

// ownARP permits ARP for the port's own addresses. Probes have no address of a sender, and ask for
// the one that the port is about to use: one for another's is a conflict for its holder (RFC 5227,
// section 2.1.1).
func (t *table) ownARP() chain {
	own := slices.Concat(etherType(unix.ETH_P_ARP),
		[]expr.Any{network(0, 4, 0), equal([]byte{0, 1, 8, 0})}, // Ethernet and IPv4
		[]expr.Any{network(4, 2, 0), equal([]byte{macLen, 4})},
		t.inPortSet(t.macs, network(8, macLen, unix.IFNAMSIZ)))
	sender, target := network(14, 4, unix.IFNAMSIZ), network(24, 4, unix.IFNAMSIZ)
	return newChain(chainOwnARP, hook{},
		newRule("for its own address", slices.Concat(own, t.inPortSet(t.addresses4, sender, goTo(chainPermitted)))...),
		newRule("probe", slices.Concat(own, []expr.Any{network(14, 4, 0), equal(make([]byte, 4))}, t.inPortSet(t.addresses4, target, goTo(chainPermitted)))...),
		newRule("from a port without known addresses", slices.Concat(own, t.inPortSet(t.unaddressed, nil, goTo(chainPermitted)))...))
}

// Bridges learn from multicast routers: one that sends queries makes a bridge forward multicasts only to
// the ports that report their groups, and one that sends group-specific queries shortens the time until
// it forgets those ports. A port that sends both ends the neighbour discovery of all others. So the guard
// permits what receivers send, and drops what only multicast routers send: queries, advertisements of
// routers (RFC 4286) and PIM.

// ownIGMP permits the IGMP messages of receivers. The kernel's bridge does not look at the offset of a
// fragment, so a type that cannot be read may be a query.
func (t *table) ownIGMP() chain {
	const report1, report2, leave, report3, solicitation = 0x12, 0x16, 0x17, 0x22, 0x31
	c := newChain(chainOwnIGMP, hook{})
	for _, kind := range []byte{report2, report3, leave, report1, solicitation} {
		c.rules = append(c.rules, newRule("reports multicast groups", slices.Concat(
			[]expr.Any{protocol4, equal([]byte{unix.IPPROTO_IGMP})}, icmpType(kind), []expr.Any{goTo(chainPermitted)})...))
	}
	c.rules = append(c.rules, newRule("IGMP or PIM of a multicast router", counted(drop())...))
	return c
}

// multicastRouters6 drops IPv6 packets that only multicast routers send. A bridge reads MLD behind an
// authentication header, too, at which rules end; it does so only if hop-by-hop options are the first
// header (ipv6_mc_check_exthdrs), as they can be once fragments are reassembled.
func (t *table) multicastRouters6() chain {
	dropped := func(comment string, protocolNumber byte, exprs ...expr.Any) rule {
		return newRule(comment, slices.Concat([]expr.Any{protocol(0), equal([]byte{protocolNumber})}, exprs, counted(drop()))...)
	}
	return newChain(chainRouters6, hook{},
		dropped("queries multicast groups", unix.IPPROTO_ICMPV6, icmpType(mldQuery)...),
		dropped("advertises a multicast router", unix.IPPROTO_ICMPV6, icmpType(multicastRouterAdvertisement)...),
		dropped("ends a multicast router", unix.IPPROTO_ICMPV6, icmpType(multicastRouterTermination)...),
		dropped("authentication behind hop-by-hop options", unix.IPPROTO_AH, extension(unix.IPPROTO_HOPOPTS)...),
		dropped("PIM", unix.IPPROTO_PIM))
}

// ownTagged permits frames with VLAN tags. What bridges learn from multicast routers holds for all VLANs.
func (t *table) ownTagged() chain {
	inner := func(kind uint16, exprs ...expr.Any) []expr.Any {
		return append([]expr.Any{&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1}, equal([]byte{byte(kind >> 8), byte(kind)})}, exprs...)
	}
	return newChain(chainOwnTagged, hook{}, append(t.portFragments(inner(unix.ETH_P_IP), inner(unix.ETH_P_IPV6)),
		newRule("IGMP", inner(unix.ETH_P_IP, protocol4, equal([]byte{unix.IPPROTO_IGMP}), goTo(chainOwnIGMP))...),
		newRule("PIM", inner(unix.ETH_P_IP, protocol4, equal([]byte{unix.IPPROTO_PIM}), goTo(chainOwnIGMP))...),
		newRule("IPv6", inner(unix.ETH_P_IPV6, jump(chainRouters6))...),
		newRule("others", goTo(chainPermitted)))...)
}

// ownIP6 permits packets from the port's own addresses. Of a packet whose headers the kernel
// cannot follow, the protocol is not known, so no rule permits it.
func (t *table) ownIP6() chain {
	icmp, ah, pim := []byte{unix.IPPROTO_ICMPV6}, []byte{unix.IPPROTO_AH}, []byte{unix.IPPROTO_PIM}
	own := append(t.fromOwnIP6(), goTo(chainPermitted))
	return newChain(chainOwnIP6, hook{},
		newRule("ICMPv6", protocol(0), equal(icmp), jump(chainOwnICMP6)),
		newRule("from its own address", slices.Concat([]expr.Any{protocol(0), unequal(icmp), unequal(ah), unequal(pim)}, own)...),
		newRule("from a port without known addresses", t.inPortSet(t.unaddressed, nil, goTo(chainPermitted))...),
		newRule("multicast routers", jump(chainRouters6)),
		newRule("with authentication from its own address", slices.Concat([]expr.Any{protocol(0), equal(ah)}, own)...),
		newRule("from an autoconfigured address", t.fromAutoconfigured6()...))
}

// fromAutoconfigured6 matches packets from addresses with the port's own interface identifier.
func (t *table) fromAutoconfigured6() []expr.Any {
	return append(etherType(unix.ETH_P_IPV6), t.inPortSet(t.identifiers, network(source6At+identifierAt, identifierLen, unix.IFNAMSIZ), goTo(chainOwnAuto6))...)
}

// ownAutoconfigured6 permits what ownIP6 and ownICMP6 permit from the port's own addresses. What it does not permit, such as
// packets whose protocol or type is not known, is dropped by the chain from which others go to it.
func (t *table) ownAutoconfigured6() chain {
	advertised := transport(targetAt+identifierAt, identifierLen, unix.IFNAMSIZ)
	another := []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, advertised, notInSet(t.identifiers)}
	icmp := []expr.Any{protocol(0), equal([]byte{unix.IPPROTO_ICMPV6})}
	known := []expr.Any{transport(0, 1, 0), unequal([]byte{0})}
	return newChain(chainOwnAuto6, hook{},
		newRule("advertises another address", slices.Concat(icmp, icmpType(neighbourAdvertisement), another, counted(drop()))...),
		newRule("advertises a router", slices.Concat(icmp, icmpType(routerAdvertisement), counted(drop()))...),
		newRule("redirects", slices.Concat(icmp, icmpType(redirect), counted(drop()))...),
		newRule("multicast routers", jump(chainRouters6)),
		newRule("ICMPv6", slices.Concat(icmp, known, []expr.Any{goTo(chainPermitted)})...),
		newRule("later fragments of ICMPv6", slices.Concat(icmp, laterFragment(), []expr.Any{goTo(chainPermitted)})...),
		newRule("another protocol", protocol(0), unequal([]byte{unix.IPPROTO_ICMPV6}), goTo(chainPermitted)))
}

// fromOwnIP6 matches packets from the port's own addresses. nft needs the type of the frame
// in the rule to show the address as one.
func (t *table) fromOwnIP6() []expr.Any {
	return append(etherType(unix.ETH_P_IPV6), t.inPortSet(t.addresses6, source6)...)
}

// Types of ICMPv6 messages (RFC 4861, RFC 2710, RFC 3810, RFC 4286).
const (
	mldQuery               = 130
	mldReport              = 131
	mldDone                = 132
	routerSolicitation     = 133
	routerAdvertisement    = 134
	neighbourSolicitation  = 135
	neighbourAdvertisement = 136
	redirect               = 137
	mld2Report             = 143

	multicastRouterAdvertisement = 151
	multicastRouterTermination   = 153
)

// targetAt is the offset of the target in messages of neighbour discovery.
const targetAt = 8

// ownICMP6 permits neighbour discovery for the port's own addresses, but not what only
// routers send. Without an address the kernel looks for duplicates of a new one, and reports
// multicast groups.
//
// The type of a packet is in its first fragment, unless other headers fill that one: then it is not
// known what the packet is (nodes do not fragment neighbour discovery, and ignore it if they
// receive it so: RFC 6980). In later fragments there is no type. Where the kernel reads one all the same
// (nft_payload_fast_eval), it is the first byte of the IPv6 header, which is none of these types. No type
// is 0 (RFC 4443).
func (t *table) ownICMP6() chain {
	target := &expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: targetAt, Len: 16, DestRegister: register(unix.IFNAMSIZ)}
	none := append(etherType(unix.ETH_P_IPV6), network(8, 16, 0), equal(make([]byte, 16)))
	permit := []expr.Any{goTo(chainPermitted)}
	rules := []rule{
		newRule("from a port without known addresses", t.inPortSet(t.unaddressed, nil, goTo(chainPermitted))...),
		newRule("advertises its own address", slices.Concat(icmpType(neighbourAdvertisement), t.inPortSet(t.targets, target), t.fromOwnIP6(), permit)...),
		newRule("from an autoconfigured address", t.fromAutoconfigured6()...),
		newRule("advertises another address", slices.Concat(icmpType(neighbourAdvertisement), counted(drop()))...),
		newRule("advertises a router", slices.Concat(icmpType(routerAdvertisement), counted(drop()))...),
		newRule("redirects", slices.Concat(icmpType(redirect), counted(drop()))...),
		newRule("multicast routers", jump(chainRouters6)),
		newRule("detects duplicates of an autoconfigured address", slices.Concat(icmpType(neighbourSolicitation),
			t.inPortSet(t.identifiers, transport(targetAt+identifierAt, identifierLen, unix.IFNAMSIZ)), none, permit)...),
		newRule("detects duplicates", slices.Concat(icmpType(neighbourSolicitation), t.inPortSet(t.targets, target), none, permit)...),
	}
	for _, report := range []byte{mld2Report, mldReport, mldDone} {
		rules = append(rules, newRule("reports multicast groups", slices.Concat(icmpType(report), none, permit)...))
	}
	return newChain(chainOwnICMP6, hook{}, append(rules,
		newRule("from its own address", slices.Concat(t.fromOwnIP6(), []expr.Any{transport(0, 1, 0), unequal([]byte{0})}, permit)...),
		newRule("later fragments from its own address", slices.Concat(t.fromOwnIP6(), laterFragment(), permit)...),
		newRule("a type that cannot be read", append(t.fromOwnIP6(), counted(drop())...)...))...)
}

// The fields of frames that are looked up together with the port.
var (
	sourceMAC = &expr.Payload{Base: expr.PayloadBaseLLHeader, Offset: macLen, Len: macLen, DestRegister: register(unix.IFNAMSIZ)}
	protocol4 = network(9, 1, 0)
	source4   = network(12, 4, unix.IFNAMSIZ)
	source6   = network(8, 16, unix.IFNAMSIZ)
)

// inPortSet matches if a set contains the port, together with a field if there is one.
func (t *table) inPortSet(s *set, field *expr.Payload, then ...expr.Any) []expr.Any {
	match := []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}}
	if field != nil {
		match = append(match, field)
	}
	return append(append(match, inSet(s)), then...)
}

// etherType matches the type of a frame. The kernel returns the tag's for a frame with a
// VLAN tag.
func etherType(number uint16) []expr.Any {
	return []expr.Any{
		&expr.Payload{Base: expr.PayloadBaseLLHeader, Offset: 2 * macLen, Len: 2, DestRegister: 1},
		equal([]byte{byte(number >> 8), byte(number)}),
	}
}

// toGroup matches frames to a group of receivers: the lowest bit of the first byte is set.
func toGroup() []expr.Any {
	return []expr.Any{&expr.Payload{Base: expr.PayloadBaseLLHeader, Offset: 0, Len: 1, DestRegister: 1}, mask([]byte{1}, []byte{0}), equal([]byte{1})}
}

// laterFragment matches fragments of IPv6 other than the first.
func laterFragment() []expr.Any {
	const offsetAt, bits = 2, 0xfff8 // RFC 8200, section 4.5
	return []expr.Any{
		&expr.Exthdr{DestRegister: 1, Type: unix.IPPROTO_FRAGMENT, Offset: offsetAt, Len: 2, Op: expr.ExthdrOpIpv6},
		mask([]byte{bits >> 8, bits & 0xff}, []byte{0, 0}), unequal([]byte{0, 0}),
	}
}

func icmpType(number byte) []expr.Any {
	return []expr.Any{&expr.Payload{Base: expr.PayloadBaseTransportHeader, Len: 1, DestRegister: 1}, equal([]byte{number})}
}

func goTo(chain string) *expr.Verdict { return &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain} }

// counted counts the packets that reach a verdict.
func counted(verdict *expr.Verdict) []expr.Any { return []expr.Any{&expr.Counter{}, verdict} }
