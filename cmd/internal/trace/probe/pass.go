package probe

import (
	"encoding/binary"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Kind is the kind of a packet of the probe.
type Kind int

// The kinds.
const (
	Request Kind = iota // to the host port
	Answer
	Reset // ends the half-open connection
)

// Pass is the passage of a packet through a base chain.
type Pass struct {
	Kind          Kind
	Hook          string
	Family, Table string
	Chain         string // the base chain
	// Own: the chain is of the temporary table.
	Own bool
	// Packet is the packet when it entered the chain.
	Packet Packet
	// Rules are the rules that matched, in order. If none of them decided, the policy of
	// the chain did.
	Rules   []Rule
	Verdict string // of the chain: accept, drop, queue, stolen
	Policy  bool   // the verdict is that of the chain's policy
}

// Rule is a rule that matched.
type Rule struct {
	Chain   string
	Handle  uint64
	Verdict string // accept, drop, continue, jump NAME, goto NAME, return
}

// Drops reports whether the packet ended in the chain.
func (p *Pass) Drops() bool { return p.Verdict == "drop" }

// message is one message of a trace.
type message struct {
	family             byte
	id, kind, policy   uint32
	rule               Rule
	table              string
	network, transport []byte
}

// The kinds of messages (enum nft_trace_types).
const (
	tracePolicy = 1
	traceRule   = 3
)

// Attributes of linux/netfilter/nf_tables.h.
const (
	traceTable      = 1
	traceChain      = 2
	traceHandle     = 3
	traceType       = 4
	traceVerdict    = 5
	traceID         = 6
	traceNetwork    = 8
	traceTransport  = 9
	tracePolicyAttr = 16

	verdictCode  = 1
	verdictChain = 2
)

func decode(payload []byte) (m message) {
	if len(payload) > 0 {
		m.family = payload[0]
	}
	sock.EachNetfilterAttribute(payload, func(kind uint16, value []byte) {
		switch kind {
		case traceTable:
			m.table = sock.String(value)
		case traceChain:
			m.rule.Chain = sock.String(value)
		case traceHandle:
			m.rule.Handle = sock.Uint64BE(value)
		case traceType:
			m.kind = sock.Uint32BE(value)
		case traceVerdict:
			m.rule.Verdict = verdictOf(value)
		case traceID:
			m.id = sock.Uint32BE(value)
		case traceNetwork:
			m.network = value
		case traceTransport:
			m.transport = value
		case tracePolicyAttr:
			m.policy = sock.Uint32BE(value)
		}
	})
	return m
}

func verdictOf(data []byte) string {
	var code int32
	var chain string
	sock.EachAttribute(data, func(kind uint16, value []byte) {
		switch kind {
		case verdictCode:
			if len(value) == 4 {
				code = int32(binary.BigEndian.Uint32(value))
			}
		case verdictChain:
			chain = sock.String(value)
		}
	})
	return strings.TrimSpace(verdictName(code) + " " + chain)
}

func verdictName(code int32) string {
	names := map[int32]string{
		unix.NFT_CONTINUE: "continue", unix.NFT_BREAK: "continue", unix.NFT_JUMP: "jump", unix.NFT_GOTO: "goto", unix.NFT_RETURN: "return",
	}
	if code >= 0 { // the upper bits are an error or the number of a queue
		return []string{"drop", "accept", "stolen", "queue"}[code&3]
	}
	return names[code]
}

// trace adds a message to the pass of its packet.
func (o *observer) trace(payload []byte) {
	m := decode(payload)
	p := o.open[m.id]
	if m.transport != nil { // the first message of a base chain
		if len(o.passes)+len(o.open) >= maxPasses {
			o.lost = true
			return
		}
		if p = o.newPass(&m); p != nil {
			o.open[m.id] = p
		}
	}
	if p == nil {
		return // of another program's trace
	}
	switch m.kind {
	case traceRule:
		if m.rule.Handle != 0 { // not at the end of a chain
			p.Rules = append(p.Rules, m.rule)
		}
		verb, _, _ := strings.Cut(m.rule.Verdict, " ")
		if slices.Contains([]string{"drop", "accept", "stolen", "queue"}, verb) {
			p.Verdict = verb
		}
	case tracePolicy:
		p.Verdict, p.Policy = verdictName(int32(m.policy)), true
	}
	if p.Verdict != "" {
		o.passes = append(o.passes, *p)
		delete(o.open, m.id)
		o.seen.note(o.inside, p)
	}
}

// newPass begins the pass of a packet through a base chain; nil if the packet is not one
// of the probe.
func (o *observer) newPass(m *message) *Pass {
	kind, is := o.id.kindOf(m.transport)
	if !is {
		return nil
	}
	p := &Pass{Kind: kind, Family: familyName(m.family), Table: m.table, Chain: m.rule.Chain, Own: m.table == o.table, Packet: parse(m.network, m.transport)}
	if p.Own {
		o.hooks[kind] = strings.TrimSuffix(p.Chain, end)
	}
	if p.Hook = o.hooks[kind]; m.family == unix.NFPROTO_NETDEV {
		p.Hook = Egress // what comes in is marked later
	}
	return p
}

func familyName(family byte) string {
	names := map[byte]string{
		unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet", unix.NFPROTO_BRIDGE: "bridge", unix.NFPROTO_NETDEV: "netdev",
	}
	return names[family]
}
