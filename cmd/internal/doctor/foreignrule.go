package doctor

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/netfilter"
)

// foreignRule is a rule of another program, as far as it says for which destinations it is.
type foreignRule struct {
	conditions
	text  string // with which a command removes it
	drops bool
	calls string // chain that it calls
}

// conditions are those of a rule for the destination of a packet. Without any, a rule is not
// one for single destinations.
type conditions struct {
	ports, original []portRange // the destination port of the packet, and before it was redirected
	addrs           []addrRange
	protocol        uint8  // 0 for any
	link            string // over which the packet leaves; "*" at its end stands for any text
}

type (
	portRange struct{ first, last uint16 }
	addrRange struct{ first, last netip.Addr }
)

// with adds the conditions of a calling rule.
func (c conditions) with(caller *conditions) conditions {
	if len(c.ports) == 0 {
		c.ports = caller.ports
	}
	if len(c.original) == 0 {
		c.original = caller.original
	}
	if len(c.addrs) == 0 {
		c.addrs = caller.addrs
	}
	if c.protocol == 0 {
		c.protocol = caller.protocol
	}
	if c.link == "" {
		c.link = caller.link
	}
	return c
}

// takes reports whether the conditions name the destination of a packet.
func (c *conditions) takes(p *packet) bool {
	has := func(list []portRange, port uint16) bool {
		return len(list) == 0 || slices.ContainsFunc(list, func(r portRange) bool { return r.first <= port && port <= r.last })
	}
	named := len(c.ports) + len(c.original)
	inAddrs := len(c.addrs) == 0 || slices.ContainsFunc(c.addrs, func(r addrRange) bool {
		return r.first.Compare(p.addr) <= 0 && p.addr.Compare(r.last) <= 0
	})
	prefix, wildcard := strings.CutSuffix(c.link, "*")
	leaves := c.link == "" || slices.ContainsFunc(p.links, func(l string) bool { return l == c.link || wildcard && strings.HasPrefix(l, prefix) })
	return (named > 0) == (p.port != 0) && named+len(c.addrs) > 0 &&
		has(c.ports, p.port) && has(c.original, p.original) && (inAddrs || !p.addr.IsValid()) && leaves &&
		(c.protocol == 0 || p.protocol == 0 || c.protocol == p.protocol)
}

// nftRules returns a function that reads the rules of a base chain, and of others of its
// table. It leaves out rules with conditions that are not about the destination, such as the
// source.
func nftRules(ctx context.Context, c *nftables.Conn, base baseChain) func(chain string) ([]foreignRule, error) {
	read := map[string][]foreignRule{}
	return func(chain string) (list []foreignRule, err error) {
		if list, known := read[chain]; known {
			return list, nil
		}
		rules := base.rules
		if chain != base.Name {
			if rules, err = netfilter.Rules(ctx, &nftables.Chain{Name: chain, Table: base.Table}); err != nil {
				return nil, err
			}
		}
		for _, r := range rules {
			reader := ruleReader{conn: c, table: base.Table, foreignRule: foreignRule{text: fmt.Sprint("handle ", r.Handle)}}
			if reader.read(r) && (reader.drops || reader.calls != "") {
				list = append(list, reader.foreignRule)
			}
		}
		read[chain] = list
		return list, nil
	}
}

// ruleReader reads a rule of nftables.
type ruleReader struct {
	foreignRule
	conn  *nftables.Conn
	table *nftables.Table

	loaded   expr.Any // what the next comparison is about
	compared bool
	mask     []byte
}

// read reports whether it understands the whole rule. Rules with other verdicts than to drop
// and to call a chain need not be understood.
func (r *ruleReader) read(rule *nftables.Rule) bool {
	if n := len(rule.Exprs); n == 0 || !decides(rule.Exprs[n-1]) {
		return false
	}
	return !slices.ContainsFunc(rule.Exprs, func(e expr.Any) bool { return !r.expression(e) })
}

// decides reports whether the last expression of a rule drops packets or calls a chain.
func decides(last expr.Any) bool {
	switch e := last.(type) {
	case *expr.Reject:
		return true
	case *expr.Target:
		return e.Name == "REJECT"
	case *expr.Verdict:
		return e.Kind == expr.VerdictDrop || e.Kind == expr.VerdictJump || e.Kind == expr.VerdictGoto
	}
	return false
}

func (r *ruleReader) expression(e expr.Any) bool {
	switch e := e.(type) {
	case *expr.Counter, *expr.Log:
	case *expr.Reject, *expr.Target:
		r.drops = true
	case *expr.Verdict:
		r.drops, r.calls = e.Kind == expr.VerdictDrop, e.Chain
	case *expr.Payload, *expr.Meta, *expr.Ct:
		if r.loaded != nil && !r.compared {
			return false // a concatenation
		}
		r.loaded, r.compared, r.mask = e, false, nil
	case *expr.Bitwise:
		r.mask = e.Mask
	case *expr.Cmp:
		return r.compare(e.Op, e.Data, e.Data)
	case *expr.Range:
		return r.compare(e.Op, e.FromData, e.ToData)
	case *expr.Lookup:
		return !e.IsDestRegSet && !e.Invert && r.lookup(e.SetName)
	case *expr.Match:
		return r.match(e)
	default:
		return false
	}
	return true
}

// compare reads a comparison of what was loaded.
func (r *ruleReader) compare(op expr.CmpOp, first, last []byte) bool {
	r.compared = true
	equal := op == expr.CmpOpEq
	switch l := r.loaded.(type) {
	case *expr.Payload:
		switch isPort := l.Base == expr.PayloadBaseTransportHeader && l.Offset == 2 && l.Len == 2; {
		case isPort:
			return addPorts(&r.ports, op, first, last)
		case l.Base != expr.PayloadBaseNetworkHeader || !equal:
			return false
		case l.Len == 1 && (l.Offset == 9 || l.Offset == 6): // protocol of IPv4, next header of IPv6
			r.protocol = first[0]
			return true
		}
		return r.addAddrs(l, first, last)
	case *expr.Ct:
		const original = 0
		switch l.Key {
		case expr.CtKeyPROTODST:
			return l.Direction == original && addPorts(&r.original, op, first, last)
		case expr.CtKeySTATE: // connections are dropped when they are new
			return op == expr.CmpOpNeq && len(r.mask) == 4 && binary.NativeEndian.Uint32(r.mask)&expr.CtStateBitNEW != 0
		}
		return false
	case *expr.Meta:
		return r.meta(l.Key, equal, first)
	}
	return false
}

// meta reads a comparison of what is known about a packet. A link over which packets come in
// leaves it open which packets are dropped.
func (r *ruleReader) meta(key expr.MetaKey, equal bool, value []byte) bool {
	switch key {
	case expr.MetaKeyL4PROTO:
		r.protocol = value[0]
		return equal
	case expr.MetaKeyOIFNAME:
		name, _, whole := bytes.Cut(value, []byte{0})
		if r.link = string(name); !whole {
			r.link += "*"
		}
		return equal
	case expr.MetaKeyIIF, expr.MetaKeyIIFNAME, expr.MetaKeyNFPROTO, expr.MetaKeyPROTOCOL:
		return true
	}
	return false
}

// addPorts adds a range of ports. A range can be two comparisons, of which the first one has
// the lower end.
func addPorts(list *[]portRange, op expr.CmpOp, first, last []byte) bool {
	if len(first) != 2 || len(last) != 2 {
		return false
	}
	switch from, to := binary.BigEndian.Uint16(first), binary.BigEndian.Uint16(last); {
	case op == expr.CmpOpEq:
		*list = append(*list, portRange{from, to})
	case op == expr.CmpOpGte:
		*list = append(*list, portRange{from, 65535})
	case op == expr.CmpOpLte && len(*list) > 0:
		(*list)[len(*list)-1].last = to
	default:
		return false
	}
	return true
}

// addAddrs adds a range of destination addresses: a prefix, of which the leading bytes may
// have been loaded only.
func (r *ruleReader) addAddrs(l *expr.Payload, first, last []byte) bool {
	size := map[uint32]int{16: 4, 24: 16}[l.Offset] // offsets of the destination in IPv4 and IPv6
	if size == 0 || len(first) > size || len(last) > size {
		return false
	}
	from, to := make([]byte, size), bytes.Repeat([]byte{0xff}, size)
	copy(from, first)
	copy(to, last)
	for i, m := range r.mask {
		if i < size {
			to[i] |= ^m
		}
	}
	a, _ := netip.AddrFromSlice(from)
	b, _ := netip.AddrFromSlice(to)
	r.addrs = append(r.addrs, addrRange{a, b})
	return true
}

// maxElements bounds the number of elements of a set that are read.
const maxElements = 4096

// lookup reads a set with which what was loaded is compared.
func (r *ruleReader) lookup(name string) bool {
	r.compared = true
	if m, ok := r.loaded.(*expr.Meta); ok { // such as protocols: they leave it open which packets are dropped
		return m.Key == expr.MetaKeyL4PROTO || m.Key == expr.MetaKeyIIFNAME || m.Key == expr.MetaKeyIIF
	}
	set, err := r.conn.GetSetByName(r.table, name)
	if err != nil {
		return false // Look notices that the ruleset has changed
	}
	elements, err := r.conn.GetSetElements(set)
	if err != nil || len(elements) > maxElements {
		return false
	}
	slices.SortFunc(elements, func(a, b nftables.SetElement) int {
		if order := bytes.Compare(a.Key, b.Key); order != 0 || a.IntervalEnd == b.IntervalEnd {
			return order
		}
		if a.IntervalEnd {
			return -1
		}
		return 1
	})
	for i, e := range elements {
		last := e.Key
		if i+1 < len(elements) && elements[i+1].IntervalEnd {
			last = before(elements[i+1].Key)
		}
		if !e.IntervalEnd && !r.compare(expr.CmpOpEq, e.Key, last) {
			return false
		}
	}
	return len(elements) > 0
}

// before returns the number before a number in big-endian order.
func before(number []byte) []byte {
	out := slices.Clone(number)
	for i := len(out) - 1; i >= 0; i-- {
		if out[i]--; out[i] != 0xff {
			break
		}
	}
	return out
}

// match reads a match of iptables that nftables does not have itself, or did not have.
func (r *ruleReader) match(m *expr.Match) bool {
	switch info := m.Info.(type) {
	case *xt.Tcp:
		r.protocol = unix.IPPROTO_TCP
		return info.InvFlags == 0 && r.matchPorts(info.SrcPorts, info.DstPorts)
	case *xt.Udp:
		r.protocol = unix.IPPROTO_UDP
		return info.InvFlags == 0 && r.matchPorts(info.SrcPorts, info.DstPorts)
	case *xt.ConntrackMtinfo3:
		const newState = 1 << 3
		known := uint16(xt.ConntrackOrigDstPort | xt.ConntrackState | xt.ConntrackStateAlias | xt.ConntrackProto)
		if info.MatchFlags&uint16(xt.ConntrackOrigDstPort) != 0 {
			r.original = append(r.original, portRange{info.OrigDstPort, max(info.OrigDstPort, info.OrigDstPortHigh)})
		}
		return info.MatchFlags&^known == 0 && info.InvertFlags == 0 &&
			(info.MatchFlags&uint16(xt.ConntrackState) == 0 || info.StateMask&newState != 0)
	}
	if raw, ok := m.Info.(*xt.Unknown); ok && m.Name == "multiport" {
		return r.multiport(*raw)
	}
	return m.Name == "comment"
}

// multiport reads the ports of a struct xt_multiport_v1.
func (r *ruleReader) multiport(info []byte) bool {
	const destination, most, ports, ranges, invert = 1, 15, 2, 32, 47
	if len(info) <= invert || info[0] != destination || info[1] > most || info[invert] != 0 {
		return false
	}
	for i := range int(info[1]) {
		port := binary.NativeEndian.Uint16(info[ports+2*i:])
		if i > 0 && info[ranges+i-1] != 0 { // the port before begins a range
			r.ports[len(r.ports)-1].last = port
			continue
		}
		r.ports = append(r.ports, portRange{port, port})
	}
	return true
}

func (r *ruleReader) matchPorts(source, destination [2]uint16) bool {
	if destination != [2]uint16{0, 65535} {
		r.ports = append(r.ports, portRange{destination[0], destination[1]})
	}
	return source == [2]uint16{0, 65535}
}

// ruleComment is a comment in a listing of iptables.
var ruleComment = regexp.MustCompile(`-m comment --comment ("(\\.|[^"\\])*"|\S+)`)

// rulesOf returns a function that reads rules from a listing of iptables.
func rulesOf(lines []string) func(chain string) ([]foreignRule, error) {
	return func(chain string) (list []foreignRule, err error) {
		for _, line := range lines {
			if rest, ok := strings.CutPrefix(line, "-A "+chain+" "); ok {
				r := foreignRule{text: line}
				if r.words(strings.Fields(ruleComment.ReplaceAllString(rest, ""))) {
					list = append(list, r)
				}
			}
		}
		return list, nil
	}
}

// words reads a rule as iptables lists it, and reports whether it understands all of it.
func (r *foreignRule) words(words []string) bool {
	for len(words) > 1 {
		option, value := words[0], words[1]
		words = words[2:]
		switch option {
		case "-m", "-i", "--reject-with":
		case "--ctstate", "--state":
			if !strings.Contains(value, "NEW") {
				return false
			}
		case "-p":
			r.protocol = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}[value]
			if r.protocol == 0 {
				return false
			}
		case "-o":
			r.link = strings.Replace(value, "+", "*", 1)
		case "-d":
			prefix, err := netip.ParsePrefix(value)
			if err != nil {
				return false
			}
			r.addrs = append(r.addrs, rangeOf(prefix))
		case "--dport", "--dports", "--ctorigdstport":
			list := &r.ports
			if option == "--ctorigdstport" {
				list = &r.original
			}
			for _, one := range strings.Split(value, ",") {
				from, to, isRange := strings.Cut(one, ":")
				if !isRange {
					to = from
				}
				low, lowErr := strconv.ParseUint(from, 10, 16)
				high, highErr := strconv.ParseUint(to, 10, 16)
				if lowErr != nil || highErr != nil {
					return false
				}
				*list = append(*list, portRange{uint16(low), uint16(high)})
			}
		case "-j", "-g":
			r.drops = value == "DROP" || value == "REJECT"
			if !r.drops {
				r.calls = value
			}
		default:
			return false
		}
	}
	return len(words) == 0
}

func rangeOf(p netip.Prefix) addrRange {
	last := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < 8*len(last); i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	to, _ := netip.AddrFromSlice(last)
	return addrRange{p.Masked().Addr(), to}
}
