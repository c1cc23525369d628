package ruleset

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Policies on a bridge apply to the addresses of an allocation, so they do not
// apply to packets from and to its link-local address, which the kernel gives
// every link, and to multicast and broadcast. Ports of attachments with a
// policy drop these packets, except for those of neighbour discovery. They
// receive only what is for their addresses: in a frame for its MAC, a workload
// would also accept a packet to the broadcast address of its subnet, or to an
// address that it has added itself. For the same reason, what they send reaches
// another guarded port only if it is for an address of that port: policies
// decide about the address of the packet, and not about the MAC of the frame.
// Policies do not apply to packets in frames with VLAN tags, so these ports
// neither send nor receive such frames. A bridge that filters VLANs adds and removes
// tags itself, next to these hooks: the rules of IP are only called for a packet that
// has no tag in prerouting nor in forward (br_nf_pre_routing and br_nf_forward_ip of
// the kernel). So what arrived with a tag has a mark until the hook forward or input.

// chainPoliced is the chain for packets from such a port, chainToPoliced
// that for packets to one, and chainToOther that for packets from such a port to
// another guarded one. chainFromPoliced is that for packets that the bridge forwards from such a port.
const (
	chainPoliced     = "policed"
	chainToPoliced   = "to_policed"
	chainToOther     = "policed_to_port"
	chainFromPoliced = "from_policed"
	// chainTagged is the chain for frames that arrived with a VLAN tag.
	chainTagged = "arrived_tagged"
)

const (
	hookBridgeInput   = 1 // NF_BR_LOCAL_IN
	hookBridgeForward = 2 // NF_BR_FORWARD
	hookBridgeOutput  = 3 // NF_BR_LOCAL_OUT
)

// beforeIP is a priority before the hooks of br_netfilter, which have 0 and -1 (NF_BR_PRI_BRNF). They
// take the packets of a bridge that calls the rules of IP out of the hook, and let them continue behind
// all chains of priority 0 (br_nf_hook_thresh). So a chain of that priority would only see them if it
// was added after br_netfilter's own hooks, and on kernels with one of priority -1, such as 6.1, never.
const beforeIP = -2

// afterIP is a priority behind the rules of IP.
const afterIP = 10

// policedChains returns the chains for the ports of attachments with a policy.
func (t *table) policedChains() []chain {
	port := func(link expr.MetaKey, to string) rule {
		return newRule("ports with a policy", &expr.Meta{Key: link, Register: 1}, inSet(t.policed), jump(to))
	}
	tagged := append([]expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}}, anyBit(ForwardMark)...)
	input := newChain("policed_input", base("filter", hookBridgeInput, beforeIP),
		newRule("arrived with a VLAN tag: clear the mark", slices.Concat(tagged, setMark(0))...),
		port(expr.MetaKeyIIFNAME, chainPoliced))
	forward := newChain("policed_forward", base("filter", hookBridgeForward, beforeIP),
		newRule("ICMPv6 to a group", slices.Concat(toGroup(), icmp6, toGuarded(), []expr.Any{jump(chainToRouters)})...),
		newRule("arrived with a VLAN tag", slices.Concat(tagged, []expr.Any{jump(chainTagged)})...),
		port(expr.MetaKeyIIFNAME, chainFromPoliced), port(expr.MetaKeyOIFNAME, chainToPoliced))
	output := newChain("policed_output", base("filter", hookBridgeOutput, beforeIP), port(expr.MetaKeyOIFNAME, chainToPoliced))
	return append(t.taggedChains(tagged), t.policedChain(), t.toPolicedChain(), t.toOtherChain(), t.fromPolicedChain(), input, forward, output)
}

// fromPolicedChain returns the chain for packets that the bridge forwards from a port.
func (t *table) fromPolicedChain() chain {
	return newChain(chainFromPoliced, hook{},
		newRule("packets from the port", jump(chainPoliced)),
		newRule("VLAN tag of the bridge", append(etherType(unix.ETH_P_8021Q), counted(drop())...)...),
		newRule("VLAN service tag of the bridge", append(etherType(unix.ETH_P_8021AD), counted(drop())...)...),
		newRule("to another guarded port", slices.Concat(toReady(),
			[]expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, notInSet(t.unaddressed), jump(chainToOther)})...))
}

// taggedChains returns the chain that marks frames with VLAN tags, and that for such frames that are forwarded.
// The mark is ForwardMark, which is cleared where the bridge is left.
func (t *table) taggedChains(marked []expr.Any) []chain {
	return []chain{
		newChain("tagged_frames", base("filter", hookBridgePrerouting, afterIP),
			newRule("clear the mark of other programs", slices.Concat(marked, setMark(0))...),
			newRule("VLAN tags", append(etherType(unix.ETH_P_8021Q), setMark(ForwardMark)...)...),
			newRule("VLAN service tags", append(etherType(unix.ETH_P_8021AD), setMark(ForwardMark)...)...)),
		newChain(chainTagged, hook{},
			newRule("to a port with a policy", slices.Concat([]expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, inSet(t.policed)}, counted(drop()))...),
			newRule("clear the mark", setMark(0)...)),
	}
}

// policedChain returns the chain for packets from a port, and to one. What
// comes from a port in a VLAN of the bridge has the tag of that VLAN in the
// bridge's hook input, although the port did not send it. So the type of the
// packet counts, and not that of the frame.
func (t *table) policedChain() chain {
	ipv4, ipv6 := packetType(unix.ETH_P_IP), packetType(unix.ETH_P_IPV6)
	bits := func(at, length uint32, masked, value []byte) []expr.Any {
		return []expr.Any{network(at, length, 0), mask(masked, make([]byte, length)), equal(value)}
	}
	group := toGroup()
	const target4At = 16
	rules := append(neighbours(ipv6...),
		newRule("IPv6 from a link-local address", slices.Concat(ipv6, bits(source6At, 2, []byte{0xff, 0xc0}, []byte{0xfe, 0x80}), counted(drop()))...),
		newRule("IPv6 to a link-local address", slices.Concat(ipv6, bits(target6At, 2, []byte{0xff, 0xc0}, []byte{0xfe, 0x80}), counted(drop()))...),
		newRule("IPv6 to a multicast group", slices.Concat(ipv6, []expr.Any{network(target6At, 1, 0), equal([]byte{0xff})}, counted(drop()))...),
		newRule("IPv4 to a multicast group or broadcast", slices.Concat(ipv4, bits(target4At, 1, []byte{0xe0}, []byte{0xe0}), counted(drop()))...),
		newRule("IPv4 in a frame to a group", slices.Concat(ipv4, group, counted(drop()))...),
		newRule("IPv6 in a frame to a group", slices.Concat(ipv6, group, counted(drop()))...))
	return newChain(chainPoliced, hook{}, rules...)
}

// packetType matches packets in frames, also in those with a tag of the bridge.
func packetType(number uint16) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1}, equal(binary.BigEndian.AppendUint16(nil, number))}
}

// toPolicedChain returns the chain for packets to a port. Those of neighbour
// discovery return before the others are checked.
func (t *table) toPolicedChain() chain {
	return newChain(chainToPoliced, hook{}, append(t.toOwnAddresses(),
		newRule("VLAN tags", append(etherType(unix.ETH_P_8021Q), counted(drop())...)...),
		newRule("VLAN service tags", append(etherType(unix.ETH_P_8021AD), counted(drop())...)...),
		newRule("packets from and to the port", jump(chainPoliced)))...)
}

// toOtherChain returns the chain for packets from a port to another guarded one.
func (t *table) toOtherChain() chain { return newChain(chainToOther, hook{}, t.toOwnAddresses()...) }

// toOwnAddresses returns rules that drop packets to a port that are not for its addresses, except for those of
// neighbour discovery.
func (t *table) toOwnAddresses() []rule {
	other := func(kind uint16, own *set, at, length uint32) []expr.Any {
		return slices.Concat(etherType(kind), []expr.Any{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, network(at, length, unix.IFNAMSIZ), notInSet(own)}, counted(drop()))
	}
	const target4At = 16
	return append(neighbours(packetType(unix.ETH_P_IPV6)...),
		newRule("IPv4 to another address", other(unix.ETH_P_IP, t.addresses4, target4At, 4)...),
		newRule("IPv6 to another address", other(unix.ETH_P_IPV6, t.addresses6, target6At, 16)...))
}

// policedPorts adds the ports of attachments with a policy.
func (l *lister) policedPorts(list []Policed) {
	seen := map[string]bool{}
	for _, p := range list {
		if p.Port != "" && !seen[p.Port] {
			seen[p.Port] = true
			l.add(ports.policed, linkName(p.Port))
		}
	}
}
