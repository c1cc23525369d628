package ruleset

import (
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// policySet returns a set that belongs to policies.
func (t *table) policySet(name string, key ...nftables.SetDatatype) *set {
	return &set{table: t, name: name, label: t.label + ", set " + name, key: key, keyLen: length(key)}
}

func selectionSet(t *table, name string) *set {
	_, addr := tableNamed("", t.family)
	return t.policySet(names.SelectionSet(name), addr)
}

// prefixSet returns a set of prefixes of the table's family, with its elements as constant. If all are
// single addresses, it is a hash table; otherwise only a concatenation has elements with a beginning and
// an end, so the protocol is part of the key, and all protocols match. digest adds one of the prefixes to
// the name: another version of allocnet may have others under the same name.
func (t *table) prefixSet(name string, list []netip.Prefix, digest bool) *set {
	_, addr := tableNamed("", t.family)
	key := types{addr, nftables.TypeInetProto}
	if !slices.ContainsFunc(list, func(p netip.Prefix) bool { return !p.IsSingleIP() }) {
		name, key = name+"_addresses", key[:1]
	}
	if digest {
		sum := sha256.Sum256(fmt.Append(nil, list))
		name += fmt.Sprintf("_%x", sum[:4])
	}
	s := t.policySet(name, key...)
	s.interval, s.shared = len(key) > 1, true
	for _, p := range list {
		e := element{set: s}
		copy(e.key[:], p.Addr().AsSlice())
		if s.interval {
			copy(e.end[:], last(p))
			e.end[t.addrLen] = 0xff
		}
		s.constant = append(s.constant, e)
	}
	return s
}

// ofFamily returns the prefixes of the table's family.
func (t *table) ofFamily(list []netip.Prefix) (of []netip.Prefix) {
	for _, p := range list {
		if p = unmap(p).Masked(); p.Addr().Is4() == (t.family == unix.NFPROTO_IPV4) {
			of = append(of, p)
		}
	}
	return of
}

// policyChain returns the name of the chain of a policy for one direction.
func policyChain(id string, direction int) names.PolicyChain {
	return names.PolicyChain{ID: id, Direction: directions[direction], Stage: names.NoStage}
}

// policyObjects are the objects of a policy in one table.
type policyObjects struct {
	table      *table
	id         string
	selections []*set // those that are to be made
	sets       []*set // of prefixes
	elements   []element
	constants  []*set // those that rules use, of the table's
	chains     []chain
	// links lead to the chains.
	links []element
}

// objects builds the objects of a policy in one table.
func (p *Policy) objects(t *table) (*policyObjects, error) {
	n := &policyObjects{table: t, id: p.ID}
	if err := p.validate(); err != nil {
		return nil, err
	}
	for _, s := range p.Selections {
		set := selectionSet(t, s.Name)
		set.comment = policyOwner(p.Instance)
		if !s.Present {
			n.selections = append(n.selections, set)
		}
		for _, m := range s.Members {
			n.elements = append(n.elements, members(set, m)...)
		}
	}
	if !t.has(p.Family) {
		return n, nil // the selections alone: other policies may use them
	}
	for d, stages := range [2][]Stage{p.Egress, p.Ingress} {
		n.direction(p.ID, d, stages)
	}
	n.links = linksTo(t, p.ID, p.Group)
	for i := range n.chains {
		n.chains[i].label, n.chains[i].comment = t.label+", chain "+n.chains[i].name, policyOwner(p.Instance)
		n.chains[i].sign()
	}
	return n, nil
}

// The families of a Policy that is not of both.
const (
	PolicyIPv4 = "ipv4"
	PolicyIPv6 = "ipv6"
)

// has reports whether a table has the policies of a family.
func (t *table) has(family string) bool {
	return family == "" || (family == PolicyIPv4) == (t.family == unix.NFPROTO_IPV4)
}

// policyOwner is the comment of the chains and the selections of an instance's policies.
func policyOwner(instance string) string {
	return names.Owner{Network: "policy", Instance: instance}.String()
}

// members returns the elements of an attachment in a selection.
func members(s *set, m Member) []element {
	var list []element
	for _, a := range m.Addresses {
		if a = a.Unmap(); a.Is4() == (s.table.family == unix.NFPROTO_IPV4) {
			e := element{set: s, owner: m.Owner.String()}
			copy(e.key[:], a.AsSlice())
			list = append(list, e)
		}
	}
	return list
}

// direction adds the chains of one direction. The chain of several stages calls a chain for
// each.
func (n *policyObjects) direction(id string, d int, stages []Stage) {
	name := policyChain(id, d)
	if len(stages) == 1 {
		n.stage(name, d, &stages[0])
		return
	}
	calls := newChain(name.String(), hook{})
	for i := range stages {
		name.Stage = i
		n.stage(name, d, &stages[i])
		calls.rules = append(calls.rules, newRule("stage", jump(name.String())))
	}
	n.chains = append(n.chains, calls)
}

// stage adds the chain of a stage. What the stage allows returns from the chain.
func (n *policyObjects) stage(name names.PolicyChain, d int, s *Stage) {
	c := newChain(name.String(), hook{})
	for i := range s.Rules {
		for _, exprs := range n.rule(name, i, d, &s.Rules[i]) {
			c.rules = append(c.rules, newRule(s.Rules[i].Name, exprs...))
		}
	}
	if s.Deny {
		c.rules = append(c.rules, newRule("default", &expr.Counter{}, goTo(denialsOf(d))))
	}
	n.chains = append(n.chains, c)
}

// rule returns the expressions of a rule; none if it matches no packet of the family. All ports are one lookup,
// and each other service is a rule of its own. A rule about Allocations is two, and so is one about the World; one about Unpublished is four: what has no entry in connection tracking was not sent
// to another destination, and would end a rule that reads the entry (nft_ct_get_eval).
func (n *policyObjects) rule(chain names.PolicyChain, i, d int, r *PolicyRule) [][]expr.Any {
	peers, ok := n.peers(chain.Set(i), d, &r.Peer)
	if !ok {
		return nil
	}
	translated := !r.Peer.World && len(r.Peer.Original) > 0
	verdict := returns()
	if r.Deny {
		verdict = goTo(denialsOf(d))
	}
	conditions := [][]expr.Any{nil}
	switch {
	case r.Peer.Allocations, r.Peer.Unpublished:
		conditions = [][]expr.Any{notRedirected(), withoutEntry()}
	case translated:
		conditions = [][]expr.Any{redirected()}
	case r.Peer.World && d == egress:
		if others := n.prefixes(chain.Set(i), n.table.original(), r.Peer.Original, false); others != nil {
			conditions = [][]expr.Any{others, withoutEntry()}
		}
	}
	var rules [][]expr.Any
	services := n.services(r.Services, translated)
	for _, condition := range conditions {
		for _, peer := range peers {
			for _, service := range services {
				rules = append(rules, slices.Concat(condition, peer, service, []expr.Any{&expr.Counter{}, verdict}))
			}
		}
	}
	return rules
}

// notRedirected matches packets of connections whose destination is not translated.
func notRedirected() []expr.Any {
	return []expr.Any{&expr.Ct{Key: expr.CtKeySTATUS, Register: 1}, mask(native(dstNAT), native(0)), equal(native(0))}
}

// withoutEntry matches packets that have no entry in connection tracking: those that it cannot
// classify, and those of the types that it does not track, such as neighbour discovery.
func withoutEntry() []expr.Any {
	return append([]expr.Any{&expr.Ct{Key: expr.CtKeySTATE, Register: 1}}, anyBit(expr.CtStateBitINVALID|expr.CtStateBitUNTRACKED)...)
}

// peers returns the conditions of which a packet from or to a peer meets one. It returns false if no packet of
// the family does.
func (n *policyObjects) peers(name string, d int, p *Peer) (list [][]expr.Any, ok bool) {
	t := n.table
	var one []expr.Any
	switch {
	case p.Selection != "":
		one = []expr.Any{t.peer(d, 0), inSet(selectionSet(t, p.Selection))}
	case len(p.Prefixes) > 0:
		one = n.prefixes(name, t.peer(d, 0), p.Prefixes, true)
		return [][]expr.Any{one}, one != nil
	case !p.World && len(p.Original) > 0:
		one = n.prefixes(name, n.table.original(), p.Original, true)
		return [][]expr.Any{one}, one != nil
	case p.Host:
		one = n.except(name, d, p, host(d))
	case p.Allocations:
		one = n.except(name, d, p, []expr.Any{t.peer(d, 0), inSet(t.policy.known)})
	case p.Unpublished:
		return [][]expr.Any{{t.peer(d, 0), notInSet(t.policy.known)}, n.except(name, d, p, nil)}, true
	case p.World:
		except := n.except(name, d, p, nil)
		for _, other := range others(d) {
			list = append(list, slices.Concat([]expr.Any{t.peer(d, 0), notInSet(t.policy.known)}, other, except))
		}
		return list, true
	}
	return [][]expr.Any{one}, true
}

// host matches packets to or from the host. A packet to the host leaves over no interface, and one from the
// host has arrived over none and comes from an address of the host. The first does not suffice: IPVS and
// transparent proxies send on what others have sent, from the addresses of these. The address does not
// suffice either: the host also receives packets to broadcast, multicast and anycast addresses, and
// forwards packets of IPv6 from another machine whose source is an address of the host.
func host(d int) []expr.Any {
	if d == egress {
		return overNone(d, true)
	}
	return append(overNone(d, true), ofSource(), equal(native(unix.RTN_LOCAL)))
}

// others are the conditions of which a packet meets one that host does not match.
func others(d int) [][]expr.Any {
	if d == egress {
		return [][]expr.Any{overNone(d, false)}
	}
	return [][]expr.Any{overNone(d, false), append(overNone(d, true), ofSource(), unequal(native(unix.RTN_LOCAL)))}
}

// overNone matches packets that leave over no interface or have arrived over none, or all others.
func overNone(d int, is bool) []expr.Any {
	load := &expr.Meta{Key: [2]expr.MetaKey{expr.MetaKeyOIF, expr.MetaKeyIIF}[d], Register: 1}
	if is {
		return []expr.Any{load, equal(native(0))}
	}
	return []expr.Any{load, unequal(native(0))}
}

// ofSource loads the type of the source address.
func ofSource() expr.Any { return &expr.Fib{Register: 1, FlagSADDR: true, ResultADDRTYPE: true} }

// except appends the condition that the peer is not one of Except.
func (n *policyObjects) except(name string, d int, p *Peer, exprs []expr.Any) []expr.Any {
	return append(exprs, n.prefixes(name, n.table.peer(d, 0), p.Except, false)...)
}

// prefixes returns the expressions that match an address if one of the prefixes contains it, or if none
// does. It returns nil if no prefix is of the family. A single prefix is part of the rule, and single
// addresses are elements of a hash table: to insert them into a set of ranges took nearly half of the
// kernel's time for a new policy (nft_pipapo_insert).
func (n *policyObjects) prefixes(name string, address expr.Any, list []netip.Prefix, contained bool) []expr.Any {
	of := n.table.ofFamily(list)
	exprs := []expr.Any{address}
	switch {
	case len(of) == 0:
		return nil
	case len(of) == 1:
		if !of[0].IsSingleIP() {
			exprs = append(exprs, mask(net.CIDRMask(of[0].Bits(), of[0].Addr().BitLen()), make([]byte, n.table.addrLen)))
		}
		if contained {
			return append(exprs, equal(of[0].Addr().AsSlice()))
		}
		return append(exprs, unequal(of[0].Addr().AsSlice()))
	}
	s := n.setOf(name, of)
	if s.interval {
		exprs = append(exprs, protocol(n.table.addrLen))
	}
	if contained {
		return append(exprs, inSet(s))
	}
	return append(exprs, notInSet(s))
}

// setOf returns the set of the prefixes of a rule: one that the table has for all policies, or a set of
// its own.
func (n *policyObjects) setOf(name string, of []netip.Prefix) *set {
	s := n.table.prefixSet(name, of, false)
	same := func(o *set) bool {
		return slices.EqualFunc(o.constant, s.constant, func(a, b element) bool { return a.key == b.key && a.end == b.end })
	}
	if i := slices.IndexFunc(n.table.policy.constants, same); i >= 0 {
		constant := n.table.policy.constants[i]
		if !slices.Contains(n.constants, constant) {
			n.constants = append(n.constants, constant)
		}
		return constant
	}
	n.sets, n.elements = append(n.sets, s), append(n.elements, s.constant...)
	return s
}

// constant returns the elements of the constant sets that rules use.
func (n *policyObjects) constant() (list []element) {
	for _, s := range n.constants {
		list = append(list, s.constant...)
	}
	return list
}

// ours reports whether an element of a group of links leads to this policy.
func (n *policyObjects) ours(is *element) bool {
	return names.PolicyID(is.value.chain) == n.id
}

// build appends the messages that make sets, elements and chains, given the existing chains; without
// them, the kernel refuses a chain that exists. It makes the elements of the constant sets again on request.
func (n *policyObjects) build(b *sock.Requests, is *state, constants bool) {
	if constants {
		putElementsWith(b, n.constant(), unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE)
	}
	for i, s := range slices.Concat(n.selections, n.sets) {
		s.put(b, uint32(i+1))
	}
	putElementsWith(b, n.elements, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE)
	flags := uint16(unix.NLM_F_EXCL)
	if is != nil {
		flags = 0
		n.table.clear(b, n.chains, is)
	}
	for _, c := range n.chains {
		c.put(b, n.table, flags)
	}
	for _, c := range n.chains {
		c.putRules(b, n.table)
	}
}
