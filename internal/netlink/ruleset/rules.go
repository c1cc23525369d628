package ruleset

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// ForwardMark is the bit in a packet's mark that means, within the forward hook, that
// allocnet accepts the packet. An iptables rule accepts packets with this bit. The bit
// is not visible outside the hook: it is cleared from packets that arrive with it, and
// again after iptables' own chain. Therefore other programs cannot use it for forwarded
// packets. It differs from the bits that known programs use: portmap's 0x2000,
// Kubernetes' 0x4000 and 0x8000, Tailscale's 0xff0000, wg-quick's 0xca6c and Istio's
// 0x539.
const ForwardMark = 0x1000

// The chains to which elements and rules jump.
const (
	chainDNAT      = "host_ports_dnat"
	chainSNATLocal = "snat_local"
	chainGuarded   = "guarded"
	chainContacted = "note_contacted"
	chainPublished = "published_only"
	// chainUntranslated is for forwarded packets that connection tracking cannot classify, and
	// chainUntranslatedInput for those to the host.
	chainUntranslated      = "untranslated"
	chainUntranslatedInput = "untranslated_input"
)

// chain is a chain with its rules. A chain without a hook is called by other chains.
type chain struct {
	name  string
	label string
	hook  hook
	rules []rule
	// comment is the owner of a chain that is not fixed; "" for none.
	comment string
}

// hook is the point at which the kernel calls a base chain.
type hook struct {
	kind     string
	number   uint32
	priority int32
	policy   uint32
}

// rule is a rule in the kernel's encoding. The comment describes its purpose, and ends
// in a digest of the rule.
type rule struct {
	comment string
	exprs   []byte
	calls   string // the chain to which it jumps, or ""
}

// onceChains returns a function that builds the chains of a table at its first call.
func onceChains(t *table, build func() []chain) func() []chain {
	return sync.OnceValue(func() []chain { return t.finish(build()) })
}

// trafficChains returns the chains for host ports, masquerading and the firewall.
func (t *table) trafficChains() []chain {
	return []chain{
		t.withoutFragments(),
		t.dnat(),
		toHostPorts("prerouting", unix.NF_INET_PRE_ROUTING),
		t.note(),
		t.output(),
		t.untranslatedInput(),
		t.input(),
		t.fromHere(),
		t.postrouting(),
		t.guard(),
		t.untranslated(),
		t.onlyPublished(),
		t.forward(),
		t.forwarded(),
	}
}

// finish sets the labels of chains and the digests of their rules.
func (t *table) finish(chains []chain) []chain {
	for i := range chains {
		chains[i].label = t.label + ", chain " + chains[i].name
		chains[i].sign()
	}
	return chains
}

func newChain(name string, h hook, rules ...rule) chain {
	return chain{name: name, hook: h, rules: rules}
}

// sign appends a digest to the comment of every rule.
func (c *chain) sign() {
	for i := range c.rules {
		r := &c.rules[i]
		sum := sha256.Sum256(fmt.Appendf(r.exprs[:len(r.exprs):len(r.exprs)], "%s/%d/%s", c.name, i, r.comment))
		r.comment += digestOpen + hex.EncodeToString(sum[:digestLen]) + digestClose
	}
}

// The digest at the end of a comment is in brackets.
const (
	digestOpen, digestClose = " [", "]"
	digestLen               = 4 // bytes
)

// Purpose returns the comment of a rule without its digest: the purpose of the rule, or, of a rule
// of a policy, its name.
func Purpose(comment string) string {
	purpose, ok := strings.CutSuffix(comment, digestClose)
	at := len(purpose) - len(digestOpen) - hex.EncodedLen(digestLen)
	if !ok || at < 0 || !strings.HasPrefix(purpose[at:], digestOpen) {
		return comment
	}
	if _, err := hex.DecodeString(purpose[at+len(digestOpen):]); err != nil {
		return comment
	}
	return purpose[:at]
}

const accept = 1 // NF_ACCEPT

// base returns the hook of a chain with the policy to accept.
func base(kind string, number uint32, priority int32) hook {
	return hook{kind: kind, number: number, priority: priority, policy: accept}
}

func (t *table) dnat() chain {
	n := t.addrLen
	return newChain(chainDNAT, hook{},
		newRule("host ports of one address", t.dest(0), protocol(n), port(n+4), dataOf(t.hostIPPorts), t.nat()),
		newRule("host ports of every address", t.dest(0), notInSet(t.services), protocol(0), port(4), dataOf(t.hostPorts), t.nat()))
}

// toHostPorts returns a chain that redirects connections to addresses of the host, if a
// host port matches, and then applies the rules in more.
func toHostPorts(name string, number uint32, more ...rule) chain {
	return newChain(name, base("nat", number, -100), append([]rule{newRule("host ports", toHost(chainDNAT)...)}, more...)...)
}

// toHost returns a jump to a chain for packets to an address of the host.
func toHost(chain string) []expr.Any {
	return []expr.Any{&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true}, equal(native(unix.RTN_LOCAL)), jump(chain)}
}

// output redirects connections from the host itself. The kernel makes their entries
// when the packets leave, so the ports are noted here, behind the rule that redirects.
func (t *table) output() chain {
	return toHostPorts("output", unix.NF_INET_LOCAL_OUT, newRule("contacted from the host", toHost(chainContacted)...))
}

// behindAll is the priority of the last chain before the kernel makes an entry.
const behindAll = math.MaxInt32 - 1

// input notes the ports of new connections from elsewhere. No later chain can drop
// their packets, so each of them gets an entry.
func (t *table) input() chain {
	fresh := append([]expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}}, anyBit(expr.CtStateBitNEW)...)
	return newChain("input", base("filter", unix.NF_INET_LOCAL_IN, behindAll),
		newRule("packets of no connection", append(invalid(), jump(chainUntranslatedInput))...),
		newRule("contacted from elsewhere", append(fresh, jump(chainContacted))...))
}

// Connection tracking cannot classify some packets, such as TCP segments outside of the window, and the kernel does
// not translate those. One from an allocation would arrive with the allocation's own address, and the receiver, which
// does not know such a connection, would answer with an RST, which can end the connection that the segment is from.
// So the rules drop these packets where the kernel translates others. Packets that another program does not let the
// kernel track have another state.

// untranslated drops such packets that are forwarded.
func (t *table) untranslated() chain {
	keeps := func(s *set) []expr.Any { return []expr.Any{t.src(0), t.dest(t.addrLen), inSet(s), returns()} }
	rules := append(t.exceptICMP6(), newRule("within one network", keeps(t.networks)...))
	rules = append(rules, t.fromPublished()...)
	return newChain(chainUntranslated, hook{}, append(rules,
		newRule("to an exempt network", keeps(t.exempt)...),
		newRule("out of the host", append(t.masqueradedUnicast(), counted(drop())...)...))...)
}

// untranslatedInput drops such packets to the host, which are from connections of the host, or of the allocation's own
// network, to host ports.
func (t *table) untranslatedInput() chain {
	return newChain(chainUntranslatedInput, hook{}, append(t.exceptICMP6(), t.fromPublished()...)...)
}

// exceptICMP6 returns the rule for ICMPv6, which IPv6 needs, in its table.
func (t *table) exceptICMP6() []rule {
	if t.family != unix.NFPROTO_IPV6 {
		return nil
	}
	return []rule{newRule("ICMPv6", append(slices.Clone(icmp6), returns())...)}
}

// fromPublished returns the rules that drop packets from addresses to which host ports lead.
func (t *table) fromPublished() (rules []rule) {
	for _, s := range t.published() {
		rules = append(rules, newRule("from host ports", append([]expr.Any{t.src(0), inSet(s)}, counted(drop())...)...))
	}
	return rules
}

// note adds ports to the sets of contacted ports: see Contacted. If a set is full, the
// rule that adds to it ends before its verdict, and the rules for missed ports follow.
func (t *table) note() chain {
	n := t.addrLen
	noted := func(name string, number byte) rule {
		return newRule("contacted "+name+" ports", protocol(0), equal([]byte{number}), port(4), addTo(t.contactedPorts),
			t.dest(0), protocol(n), port(n+4), addTo(t.contacted), &expr.Verdict{Kind: expr.VerdictReturn})
	}
	missed := func(name string, number byte) rule {
		return newRule(name+" ports without room", protocol(0), equal([]byte{number}), addTo(t.contactedMissed))
	}
	return newChain(chainContacted, hook{}, noted("udp", unix.IPPROTO_UDP), noted("sctp", unix.IPPROTO_SCTP),
		missed("udp", unix.IPPROTO_UDP), missed("sctp", unix.IPPROTO_SCTP))
}

func addTo(s *set) *expr.Dynset {
	const dynsetAdd = 0 // NFT_DYNSET_OP_ADD
	return &expr.Dynset{SrcRegKey: register(0), SetName: s.name, SetID: noSetID, Operation: dynsetAdd}
}

func (t *table) fromHere() chain {
	loopback := newRule("connections to host ports from the host's loopback", firstByte(t.source), equal([]byte{127}), &expr.Masq{})
	if t.family == unix.NFPROTO_IPV6 {
		one := make([]byte, 16)
		one[15] = 1
		loopback = newRule("connections to host ports from the host's loopback", t.src(0), equal(one), &expr.Masq{})
	}
	return newChain(chainSNATLocal, hook{}, loopback,
		newRule("connections to host ports from their own network", t.src(0), t.dest(t.addrLen), inSet(t.networks), &expr.Masq{}))
}

func (t *table) postrouting() chain {
	return newChain("postrouting", base("nat", unix.NF_INET_POST_ROUTING, 100),
		newRule("every connection to host ports", append(redirected(), t.dest(0), inSet(t.snatAll), &expr.Masq{})...),
		newRule("some connections to host ports", append(redirected(), t.dest(0), inSet(t.snatLocal), jump(chainSNATLocal))...),
		newRule("within one network", t.src(0), t.dest(t.addrLen), inSet(t.networks), &expr.Verdict{Kind: expr.VerdictReturn}),
		newRule("to an exempt network", t.src(0), t.dest(t.addrLen), inSet(t.exempt), &expr.Verdict{Kind: expr.VerdictReturn}),
		newRule("out of the host", append(t.masqueradedUnicast(), &expr.Masq{})...))
}

// masqueradedUnicast matches packets from masqueraded addresses, except for those to multicast groups.
func (t *table) masqueradedUnicast() []expr.Any {
	unicast := []expr.Any{t.dest(0), mask([]byte{0xf0, 0, 0, 0}, make([]byte, 4)), unequal([]byte{0xe0, 0, 0, 0})}
	if t.family == unix.NFPROTO_IPV6 {
		unicast = []expr.Any{firstByte(t.destination), unequal([]byte{0xff})}
	}
	return append([]expr.Any{t.src(0), inSet(t.masqueraded)}, unicast...)
}

func (t *table) guard() chain {
	in, out := &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register(0)}, &expr.Meta{Key: expr.MetaKeyOIFNAME, Register: register(16)}
	return newChain(chainGuarded, hook{},
		newRule("within one bridge", in, out, verdictOf(t.guards)),
		newRule("between bridges", drop()))
}

// onlyPublished drops what is neither for a host port nor from an allocation of the own network: one in its subnet,
// which must be behind the link from which the packet comes. It needs no rule for the host, whose packets are not
// forwarded.
func (t *table) onlyPublished() chain {
	tracked := append([]expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}}, anyBit(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)...)
	rules := []rule{
		newRule("tracked connections", append(tracked, returns())...),
		newRule("through host ports", append(redirected(), returns())...),
		newRule("from their own network", t.src(0), inSet(t.publishedOnly), t.src(0), t.dest(t.addrLen), inSet(t.networks),
			&expr.Fib{Register: 1, FlagSADDR: true, FlagIIF: true, ResultOIF: true}, unequal(native(0)), returns()),
	}
	if t.family == unix.NFPROTO_IPV6 {
		rules = append(rules, discovery())
	}
	return newChain(chainPublished, hook{}, append(rules, newRule("to ports that are not published", counted(drop())...))...)
}

func (t *table) forward() chain {
	answer := []expr.Any{t.dest(0), inSet(t.open), &expr.Ct{Key: expr.CtKeySTATE, Register: 1}}
	answer = append(append(answer, anyBit(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)...), setMark(ForwardMark)...)
	toPort := append(append([]expr.Any{t.dest(0), inSet(t.open)}, redirected()...), setMark(ForwardMark)...)
	foreign := append([]expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}}, anyBit(ForwardMark)...)
	return newChain("forward", base("filter", unix.NF_INET_FORWARD, -1),
		newRule("clear the mark of other programs", append(foreign, setMark(0)...)...),
		newRule("packets of no connection", append(invalid(), jump(chainUntranslated))...),
		newRule("between guarded bridges", &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, inSet(t.guarded),
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, inSet(t.guarded), jump(chainGuarded)),
		newRule("to allocations that only host ports reach", t.dest(0), inSet(t.publishedOnly), jump(chainPublished)),
		newRule("from allocations", append([]expr.Any{t.src(0), inSet(t.open)}, setMark(ForwardMark)...)...),
		newRule("answers to allocations", answer...),
		newRule("through host ports", toPort...))
}

// forwarded clears the mark after iptables' own chain.
func (t *table) forwarded() chain {
	unmark := func(address *expr.Payload) []expr.Any {
		marked := append([]expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}}, anyBit(ForwardMark)...)
		return append(append(marked, address, inSet(t.open)), setMark(0)...)
	}
	return newChain("forwarded", base("filter", unix.NF_INET_FORWARD, 1),
		newRule("from allocations", unmark(t.src(0))...),
		newRule("to allocations", unmark(t.dest(0))...))
}

func newRule(comment string, exprs ...expr.Any) rule {
	var b sock.Requests
	var calls string
	for _, e := range exprs {
		if v, ok := e.(*expr.Verdict); ok {
			calls = v.Chain
		}
		var data []byte
		if r, ok := e.(raw); ok {
			data = r.data
		} else {
			var err error
			if data, err = expr.Marshal(0, e); err != nil {
				panic(fmt.Sprintf("ruleset: rule %q: %v", comment, err))
			}
		}
		b.Attribute(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, data)
	}
	return rule{comment, b.Data(), calls}
}

// raw is an expression that package expr cannot make.
type raw struct {
	expr.Any // nil
	data     []byte
}

// original loads the destination of a connection before its translation.
func (t *table) original() expr.Any { return t.connection(ctDestination, ctOriginal, 0) }

// The addresses of a connection, as the numbers of NFT_CT_SRC_IP and NFT_CT_DST_IP, and its directions.
const (
	ctSource, ctDestination = 19, 20
	ctOriginal, ctReply     = 0, 1
)

// connection loads an address of a direction of a connection. Package expr has the keys of older programs,
// whose type nft does not know.
func (t *table) connection(address uint32, direction byte, at uint32) expr.Any {
	if t.family == unix.NFPROTO_IPV6 {
		address += 2 // NFT_CT_SRC_IP6, NFT_CT_DST_IP6
	}
	var b sock.Requests
	b.CString(unix.NFTA_EXPR_NAME, "ct")
	ct := b.Nest(unix.NFTA_EXPR_DATA)
	b.Uint32BE(unix.NFTA_CT_DREG, register(at))
	b.Uint32BE(unix.NFTA_CT_KEY, address)
	b.Uint8(unix.NFTA_CT_DIRECTION, direction)
	b.End(ct)
	return raw{data: b.Data()}
}

// register returns the register at an offset into a concatenation. The registers of 16
// bytes have other numbers than those of four bytes.
func register(offset uint32) uint32 {
	if offset%16 == 0 {
		return unix.NFT_REG_1 + offset/16
	}
	return unix.NFT_REG32_00 + offset/4
}

func (t *table) src(at uint32) *expr.Payload  { return network(t.source, t.addrLen, at) }
func (t *table) dest(at uint32) *expr.Payload { return network(t.destination, t.addrLen, at) }

// firstByte loads the first byte of the address at an offset into the header.
func firstByte(offset uint32) *expr.Payload { return network(offset, 1, 0) }

func network(offset, length, at uint32) *expr.Payload {
	return &expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length, DestRegister: register(at)}
}

func protocol(at uint32) *expr.Meta {
	return &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register(at)}
}

func port(at uint32) *expr.Payload {
	return &expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2, DestRegister: register(at)}
}

// noSetID is the number of no set. Without a set of the name, the kernel looks for a set of the same
// transaction by its number, and a message about a set that exists already has the number 0 there,
// whatever it says (__nft_trans_set_add): a rule about a missing set would refer to that one.
const noSetID = math.MaxUint32

// inSet looks up the register in a set, dataOf in a map, and verdictOf in a map of
// verdicts.
func inSet(s *set) *expr.Lookup {
	return &expr.Lookup{SetName: s.name, SetID: noSetID, SourceRegister: 1}
}

func dataOf(s *set) *expr.Lookup {
	return &expr.Lookup{SetName: s.name, SetID: noSetID, SourceRegister: 1, IsDestRegSet: true, DestRegister: 1}
}

func verdictOf(s *set) *expr.Lookup {
	return &expr.Lookup{SetName: s.name, SetID: noSetID, SourceRegister: 1, IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT}
}

// nat redirects to the address and port that a lookup in a map returned.
func (t *table) nat() *expr.NAT {
	return &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(t.family), RegAddrMin: 1, RegProtoMin: register(t.addrLen)}
}

func equal(value []byte) *expr.Cmp   { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value} }
func unequal(value []byte) *expr.Cmp { return &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: value} }

func mask(keep, flip []byte) *expr.Bitwise {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(keep)), Mask: keep, Xor: flip}
}

// anyBit matches if at least one of the bits is set.
func anyBit(bits uint32) []expr.Any {
	return []expr.Any{mask(native(bits), native(0)), unequal(native(0))}
}

// dstNAT is IPS_DST_NAT.
const dstNAT = 1 << 5

// redirected matches connections with a translated destination, as host ports translate
// it.
func redirected() []expr.Any {
	return append([]expr.Any{&expr.Ct{Key: expr.CtKeySTATUS, Register: 1}}, anyBit(dstNAT)...)
}

// setMark sets the bit ForwardMark of the packet's mark to that of its argument.
func setMark(bit uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		mask(native(^uint32(ForwardMark)), native(bit)),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: 1, SourceRegister: true},
	}
}

func jump(to string) *expr.Verdict { return &expr.Verdict{Kind: expr.VerdictJump, Chain: to} }
func drop() *expr.Verdict          { return &expr.Verdict{Kind: expr.VerdictDrop} }

func native(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
