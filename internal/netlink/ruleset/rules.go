package ruleset

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"sync"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// ForwardMark is the bit of a packet's mark that says, within the forward hook,
// that the packet may pass, to the one iptables rule that accepts it. Nobody sees
// it elsewhere: of packets that come to the hook with it, it is cleared, so it is
// none for others to use on what is forwarded. It is none of those that others use: portmap's 0x2000,
// Kubernetes' 0x4000 and 0x8000, Tailscale's 0xff0000, wg-quick's 0xca6c and
// Istio's 0x539.
const ForwardMark = 0x1000

// The chains that elements and rules lead to.
const (
	chainDNAT      = "host_ports_dnat"
	chainSNATLocal = "snat_local"
	chainGuarded   = "guarded"
	chainContacted = "note_contacted"
)

// chain is a chain with its rules. One without a hook is called by others.
type chain struct {
	name  string
	label string
	hook  hook
	rules []rule
}

// hook is where a base chain is called from.
type hook struct {
	kind     string
	number   uint32
	priority int32
	policy   uint32
}

// rule is a rule as the kernel takes it. The comment says what it is for, and
// ends in a digest of what it does.
type rule struct {
	comment string
	exprs   []byte
}

// onceChains builds the chains of a table at their first use.
func onceChains(t *table) func() []chain {
	return sync.OnceValue(func() []chain {
		chains := []chain{
			t.dnat(),
			toHostPorts("prerouting", unix.NF_INET_PRE_ROUTING),
			t.note(),
			t.output(),
			t.input(),
			t.fromHere(),
			t.postrouting(),
			t.guard(),
			t.forward(),
			t.forwarded(),
		}
		return t.finish(chains)
	})
}

// finish labels and signs chains.
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

// sign adds the digests.
func (c *chain) sign() {
	for i := range c.rules {
		r := &c.rules[i]
		sum := sha256.Sum256(fmt.Appendf(r.exprs[:len(r.exprs):len(r.exprs)], "%s/%d/%s", c.name, i, r.comment))
		r.comment += " [" + hex.EncodeToString(sum[:4]) + "]"
	}
}

const accept = 1 // NF_ACCEPT

// base is the hook of a chain that accepts what it does not decide.
func base(kind string, number uint32, priority int32) hook {
	return hook{kind: kind, number: number, priority: priority, policy: accept}
}

func (t *table) dnat() chain {
	n := t.addrLen
	return newChain(chainDNAT, hook{},
		newRule("host ports of one address", t.dest(0), protocol(n), port(n+4), dataOf(t.hostIPPorts), t.nat()),
		newRule("host ports of every address", protocol(0), port(4), dataOf(t.hostPorts), t.nat()))
}

// toHostPorts redirects what is sent to the host itself.
func toHostPorts(name string, number uint32, more ...rule) chain {
	return newChain(name, base("nat", number, -100), append([]rule{newRule("host ports", toHost(chainDNAT)...)}, more...)...)
}

// toHost jumps to a chain with what is sent to an address of the host.
func toHost(chain string) []expr.Any {
	return []expr.Any{&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true}, equal(native(unix.RTN_LOCAL)), jump(chain)}
}

// output redirects as well. What comes from the host gets its entry on the way
// out, so it is noted here, once it is clear that it is not redirected.
func (t *table) output() chain {
	return toHostPorts("output", unix.NF_INET_LOCAL_OUT, newRule("contacted from the host", toHost(chainContacted)...))
}

// behindAll is the priority of the last chain before an entry is made.
const behindAll = math.MaxInt32 - 1

// input notes what came through all that may drop it, and so gets an entry.
func (t *table) input() chain {
	fresh := append([]expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}}, anyBit(expr.CtStateBitNEW)...)
	return newChain("input", base("filter", unix.NF_INET_LOCAL_IN, behindAll),
		newRule("contacted from elsewhere", append(fresh, jump(chainContacted))...))
}

// note adds to the sets of contacted ports: see Contacted. A set that is full ends
// a rule before its verdict.
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
	return &expr.Dynset{SrcRegKey: register(0), SetName: s.name, Operation: dynsetAdd}
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
	unicast := []expr.Any{t.dest(0), mask([]byte{0xf0, 0, 0, 0}, make([]byte, 4)), unequal([]byte{0xe0, 0, 0, 0})}
	if t.family == unix.NFPROTO_IPV6 {
		unicast = []expr.Any{firstByte(t.destination), unequal([]byte{0xff})}
	}
	masquerade := append([]expr.Any{t.src(0), inSet(t.masqueraded)}, unicast...)
	return newChain("postrouting", base("nat", unix.NF_INET_POST_ROUTING, 100),
		newRule("every connection to host ports", append(redirected(), t.dest(0), inSet(t.snatAll), &expr.Masq{})...),
		newRule("some connections to host ports", append(redirected(), t.dest(0), inSet(t.snatLocal), jump(chainSNATLocal))...),
		newRule("within one network", t.src(0), t.dest(t.addrLen), inSet(t.networks), &expr.Verdict{Kind: expr.VerdictReturn}),
		newRule("out of the host", append(masquerade, &expr.Masq{})...))
}

func (t *table) guard() chain {
	in, out := &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register(0)}, &expr.Meta{Key: expr.MetaKeyOIFNAME, Register: register(16)}
	return newChain(chainGuarded, hook{},
		newRule("within one bridge", in, out, verdictOf(t.guards)),
		newRule("between bridges", drop()))
}

func (t *table) forward() chain {
	answer := []expr.Any{t.dest(0), inSet(t.open), &expr.Ct{Key: expr.CtKeySTATE, Register: 1}}
	answer = append(append(answer, anyBit(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED)...), setMark(ForwardMark)...)
	toPort := append(append([]expr.Any{t.dest(0), inSet(t.open)}, redirected()...), setMark(ForwardMark)...)
	foreign := append([]expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}}, anyBit(ForwardMark)...)
	return newChain("forward", base("filter", unix.NF_INET_FORWARD, -1),
		newRule("a mark that is not ours", append(foreign, setMark(0)...)...),
		newRule("between guarded bridges", &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, inSet(t.guarded),
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1}, inSet(t.guarded), jump(chainGuarded)),
		newRule("from allocations", append([]expr.Any{t.src(0), inSet(t.open)}, setMark(ForwardMark)...)...),
		newRule("answers to allocations", answer...),
		newRule("through host ports", toPort...))
}

// forwarded takes the mark away behind iptables' own chain.
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
	for _, e := range exprs {
		data, err := expr.Marshal(0, e)
		if err != nil {
			panic(fmt.Sprintf("ruleset: rule %q: %v", comment, err))
		}
		b.Attribute(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, data)
	}
	return rule{comment, b.Data()}
}

// register is the one at an offset into a concatenation. Those of 16 bytes have
// other numbers than those of four.
func register(offset uint32) uint32 {
	if offset%16 == 0 {
		return unix.NFT_REG_1 + offset/16
	}
	return unix.NFT_REG32_00 + offset/4
}

func (t *table) src(at uint32) *expr.Payload  { return network(t.source, t.addrLen, at) }
func (t *table) dest(at uint32) *expr.Payload { return network(t.destination, t.addrLen, at) }

// firstByte is that of an address.
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

// inSet is a lookup in a set, dataOf one in a map, verdictOf one in a map of
// verdicts.
func inSet(s *set) *expr.Lookup { return &expr.Lookup{SetName: s.name, SourceRegister: 1} }

func dataOf(s *set) *expr.Lookup {
	return &expr.Lookup{SetName: s.name, SourceRegister: 1, IsDestRegSet: true, DestRegister: 1}
}

func verdictOf(s *set) *expr.Lookup {
	return &expr.Lookup{SetName: s.name, SourceRegister: 1, IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT}
}

// nat redirects to what a map of addresses and ports gave.
func (t *table) nat() *expr.NAT {
	return &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(t.family), RegAddrMin: 1, RegProtoMin: register(t.addrLen)}
}

func equal(value []byte) *expr.Cmp   { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value} }
func unequal(value []byte) *expr.Cmp { return &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: value} }

func mask(keep, flip []byte) *expr.Bitwise {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(keep)), Mask: keep, Xor: flip}
}

// anyBit is whether one of the bits is set.
func anyBit(bits uint32) []expr.Any {
	return []expr.Any{mask(native(bits), native(0)), unequal(native(0))}
}

// redirected is whether a host port led here.
func redirected() []expr.Any {
	const dstNAT = 1 << 5 // IPS_DST_NAT
	return append([]expr.Any{&expr.Ct{Key: expr.CtKeySTATUS, Register: 1}}, anyBit(dstNAT)...)
}

// setMark gives the bit of ForwardMark a value.
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
