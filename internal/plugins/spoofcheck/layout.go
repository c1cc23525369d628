package spoofcheck

import (
	"bytes"
	"net"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/netfilter"
)

// The reference plugin's names. Each interface has two chains; a rule in
// BaseChain jumps to the first one.
const (
	TableName     = "nat"
	BaseChainName = "PREROUTING"
	ChainPrefix   = "cni-br-iface-"
	MACSuffix     = "-mac"
	commentPrefix = "macspoofchk-"
)

// priority is lower than that of ebtables' nat table, so the rules see
// unchanged frames.
const priority = -300

// Port is a bridge port and the only MAC from which it may send.
type Port struct {
	Owner names.Owner
	Link  string // the host's end of the veth
	MAC   net.HardwareAddr
}

// layout is the chains and the comment of one attachment's rules.
type layout struct {
	table            *nftables.Table
	base, iface, mac *nftables.Chain
	comment          string
}

func layoutOf(o names.Owner) *layout {
	t := &nftables.Table{Family: nftables.TableFamilyBridge, Name: TableName}
	chain := func(name string) *nftables.Chain { return &nftables.Chain{Table: t, Name: name} }
	id := o.ID + "-" + o.IfName
	l := &layout{
		table: t, base: chain(BaseChainName), iface: chain(ChainPrefix + id), mac: chain(ChainPrefix + id + MACSuffix), comment: commentPrefix + id,
	}
	accept := nftables.ChainPolicyAccept
	l.base.Type, l.base.Hooknum, l.base.Policy = nftables.ChainTypeFilter, nftables.ChainHookPrerouting, &accept
	l.base.Priority = nftables.ChainPriorityRef(priority)
	return l
}

// rules returns the rules of a port, in order.
func (l *layout) rules(p *Port) []*nftables.Rule {
	owner := p.Owner.String()
	return []*nftables.Rule{
		l.rule(l.base, l.comment, append(fromLink(p.Link), jump(l.iface))...),
		l.rule(l.iface, l.comment, jump(l.mac)),
		l.rule(l.mac, owner, append(fromMAC(p.MAC), &expr.Verdict{Kind: expr.VerdictReturn})...),
		l.rule(l.mac, owner, &expr.Verdict{Kind: expr.VerdictDrop}),
	}
}

func (l *layout) rule(chain *nftables.Chain, comment string, exprs ...expr.Any) *nftables.Rule {
	return &nftables.Rule{Table: l.table, Chain: chain, Exprs: exprs, UserData: userdata.AppendString(nil, userdata.TypeComment, comment)}
}

func fromLink(name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: padded},
	}
}

func fromMAC(mac net.HardwareAddr) []expr.Any {
	const source, length = 6, 6 // in an Ethernet header
	return []expr.Any{
		&expr.Payload{Base: expr.PayloadBaseLLHeader, Offset: source, Len: length, DestRegister: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: mac},
	}
}

func jump(to *nftables.Chain) *expr.Verdict {
	return &expr.Verdict{Kind: expr.VerdictJump, Chain: to.Name}
}

// LeadsTo reports whether a rule jumps to a chain.
func LeadsTo(rule *nftables.Rule, chain string) bool {
	return slices.ContainsFunc(rule.Exprs, func(e expr.Any) bool {
		verdict, ok := e.(*expr.Verdict)
		return ok && verdict.Chain == chain
	})
}

// compares reports whether a rule compares a field with a value for equality.
func compares(rule *nftables.Rule, value []byte) bool {
	return slices.ContainsFunc(rule.Exprs, func(e expr.Any) bool {
		cmp, ok := e.(*expr.Cmp)
		return ok && cmp.Op == expr.CmpOpEq && bytes.Equal(bytes.TrimRight(cmp.Data, "\x00"), bytes.TrimRight(value, "\x00"))
	})
}

func decides(rule *nftables.Rule, kind expr.VerdictKind) bool {
	return slices.ContainsFunc(rule.Exprs, func(e expr.Any) bool {
		verdict, ok := e.(*expr.Verdict)
		return ok && verdict.Kind == kind
	})
}

// OwnerOf returns the owner that the rules of an attachment's last chain name.
// Rules of the reference plugin name none.
func OwnerOf(rules []*nftables.Rule) (names.Owner, bool) {
	for _, r := range rules {
		if o, ok := names.ParseOwner(netfilter.Comment(r.UserData)); ok {
			return o, true
		}
	}
	return names.Owner{}, false
}
