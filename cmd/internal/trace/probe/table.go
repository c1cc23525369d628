package probe

import (
	"fmt"
	"math"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// chain is a chain of the temporary table. Its first rules mark the packets of the probe
// for tracing; drops are the packets that it drops.
type chain struct {
	name     string
	hook     uint32
	priority int32
	drops    []drop
}

// drop drops the packets of a kind, or only those that go elsewhere than to an address.
type drop struct {
	kind Kind
	to   []byte
}

// Priorities of the first chain and of the last one before the end of connection tracking.
const (
	first = math.MinInt32
	last  = math.MaxInt32 - 1
)

// The hooks, as the temporary table and Pass name them.
const (
	Prerouting  = "prerouting"
	Input       = "input"
	Forward     = "forward"
	Output      = "output"
	Postrouting = "postrouting"
	Egress      = "egress" // of a link
	// end follows the name of the chain that is the last one of a hook.
	end = "_end"
)

func begins() []chain {
	return []chain{
		{Prerouting, unix.NF_INET_PRE_ROUTING, first, nil},
		{Input, unix.NF_INET_LOCAL_IN, first, nil},
		{Forward, unix.NF_INET_FORWARD, first, nil},
		{Output, unix.NF_INET_LOCAL_OUT, first, nil},
		{Postrouting, unix.NF_INET_POST_ROUTING, first, nil},
	}
}

// hostChains returns the chains on the host. They drop what would reach a process of the
// host or another host, and answers to a client that has asked nothing.
func hostChains(o *Options) []chain {
	leaving := []drop{{kind: Request, to: o.To.AsSlice()}}
	if o.Link != "" {
		leaving = append(leaving, drop{kind: Answer})
	}
	return append(begins(),
		chain{Input + end, unix.NF_INET_LOCAL_IN, last, []drop{{kind: Request}}},
		chain{Postrouting + end, unix.NF_INET_POST_ROUTING, last, leaving})
}

// insideChains returns the chains in the network namespace of the allocation. They drop
// the datagram.
func insideChains(o *Options) []chain {
	c := chain{Input + end, unix.NF_INET_LOCAL_IN, last, nil}
	if o.Protocol == unix.IPPROTO_UDP {
		c.drops = []drop{{kind: Request}}
	}
	return append(begins(), c)
}

// ownedTable is NFT_TABLE_F_OWNER: the kernel removes the table with its socket.
const ownedTable = 0x2

// put appends the requests that make a table.
func (o *observer) put(r *sock.Requests, chains []chain) {
	begin := func(label string, kind uint16) {
		r.BeginNetfilter(label, unix.NFNL_SUBSYS_NFTABLES, kind, unix.NLM_F_CREATE, o.family)
	}
	begin("table "+o.table, unix.NFT_MSG_NEWTABLE)
	r.CString(unix.NFTA_TABLE_NAME, o.table)
	r.Uint32BE(unix.NFTA_TABLE_FLAGS, ownedTable)
	for _, c := range chains {
		begin("chain "+c.name, unix.NFT_MSG_NEWCHAIN)
		r.CString(unix.NFTA_CHAIN_TABLE, o.table)
		r.CString(unix.NFTA_CHAIN_NAME, c.name)
		hook := r.Nest(unix.NFTA_CHAIN_HOOK)
		r.Uint32BE(unix.NFTA_HOOK_HOOKNUM, c.hook)
		r.Uint32BE(unix.NFTA_HOOK_PRIORITY, uint32(c.priority))
		r.End(hook)
		r.CString(unix.NFTA_CHAIN_TYPE, "filter")
	}
	for _, c := range chains {
		for _, exprs := range o.rules(c) {
			begin("rule of "+c.name, unix.NFT_MSG_NEWRULE)
			// Without NLM_F_APPEND the kernel would insert it before the others.
			o.putRule(r, c.name, exprs)
		}
	}
}

func (o *observer) putRule(r *sock.Requests, chain string, exprs []expr.Any) {
	r.CString(unix.NFTA_RULE_TABLE, o.table)
	r.CString(unix.NFTA_RULE_CHAIN, chain)
	list := r.Nest(unix.NFTA_RULE_EXPRESSIONS)
	for _, e := range exprs {
		data, err := expr.Marshal(0, e)
		if err != nil {
			panic(fmt.Sprintf("probe: rule of %s: %v", chain, err)) // all are constant
		}
		r.Attribute(unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, data)
	}
	r.End(list)
}

// rules returns the rules of a chain, in reverse order: each new rule is the first.
func (o *observer) rules(c chain) (rules [][]expr.Any) {
	fields := o.id.fields()
	for _, d := range c.drops {
		for _, f := range fields {
			if f.kind == d.kind {
				match := append(o.match(f), o.notTo(d.to)...)
				rules = append(rules, append(match, &expr.Verdict{Kind: expr.VerdictDrop}))
			}
		}
	}
	for _, f := range fields {
		rules = append(rules, append(o.match(f),
			&expr.Immediate{Register: 1, Data: []byte{1}},
			&expr.Meta{Key: expr.MetaKeyNFTRACE, SourceRegister: true, Register: 1}))
	}
	return rules
}

// match matches the packets that have a field.
func (o *observer) match(f field) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{o.id.protocol}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: f.offset, Len: uint32(len(f.value))},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: f.value},
	}
}

// notTo matches the packets that have another destination, if there is one to compare.
func (o *observer) notTo(address []byte) []expr.Any {
	if address == nil {
		return nil
	}
	offset := uint32(16)
	if len(address) == 16 {
		offset = 24
	}
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(len(address))},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: address},
	}
}
