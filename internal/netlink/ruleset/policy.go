package ruleset

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Policy is a network policy in the tables of both families. Attachments with the same policy
// share it.
type Policy struct {
	// ID distinguishes the policy from others, in the names of its chains: up to 16
	// characters, letters and digits.
	ID string
	// Instance is that of the owners of the attachments: see names.Owner.
	Instance string
	// Group is the group of the links to which the policy applies: from
	// names.FirstPolicyGroup to names.LastPolicyGroup.
	Group uint32
	// Egress and Ingress are applied one after the other. A packet has to be allowed by each
	// of them. A direction without stages allows everything.
	Egress, Ingress []Stage
	// Selections are all selections of the rules, with their members.
	Selections []Selection
}

// Stage is a list of rules, of which the first one that matches decides, and the verdict on
// packets that none matches.
type Stage struct {
	Rules []PolicyRule
	Deny  bool
}

// PolicyRule matches packets with one peer and one service.
type PolicyRule struct {
	// Name is part of the rule's comment.
	Name    string
	Deny    bool
	Peer    Peer
	Service Service
}

// Peer is the other end of a packet. At most one field is set, besides Except; without any, every
// peer matches.
type Peer struct {
	Selection string         // the name of a selection
	Prefixes  []netip.Prefix // of both families; none contains another
	Host      bool           // an address of the host
	World     bool           // neither the host nor an allocation, nor one of Except
	Except    []netip.Prefix // of World, Host and Allocations, as Prefixes
	// Allocations stands for the addresses of all allocations in networks with policies, unless
	// the packet was sent to one of their host ports.
	Allocations bool `json:",omitempty"`
}

// Service is what a packet is for. The zero value matches every packet.
type Service struct {
	Protocol    uint8  // 0 for every protocol
	First, Last uint16 // ports; 0 and 0 for all
	Type        *uint8 // of ICMP; nil for every type
}

// Selection is a set of addresses of allocations. Its elements have owners.
type Selection struct {
	Name    string // up to 16 characters, letters and digits
	Members []Member
}

// Member is an attachment in a selection.
type Member struct {
	Owner     names.Owner
	Addresses []netip.Addr
}

// policySet returns a set that belongs to policies.
func (t *table) policySet(name string, key ...nftables.SetDatatype) *set {
	return &set{table: t, name: name, label: t.label + ", set " + name, key: key, keyLen: length(key)}
}

func selectionSet(t *table, name string) *set {
	_, addr := tableNamed("", t.family)
	return t.policySet(names.SelectionSet(name), addr)
}

// prefixSet returns the set of prefixes of a rule. Only a concatenation has elements with a
// beginning and an end, so the protocol is part of the key. All protocols match.
func prefixSet(t *table, name string) *set {
	_, addr := tableNamed("", t.family)
	s := t.policySet(name, addr, nftables.TypeInetProto)
	s.interval, s.shared = true, true
	return s
}

// policyChain returns the name of the chain of a policy for one direction.
func policyChain(id string, direction int) names.PolicyChain {
	return names.PolicyChain{ID: id, Direction: directions[direction], Stage: names.NoStage}
}

// policyParts is what a policy consists of in one table.
type policyParts struct {
	table      *table
	id         string
	selections []*set
	sets       []*set // of prefixes
	elements   []element
	chains     []chain
	// links lead to the chains.
	links []element
}

// parts builds the parts of a policy in one table.
func (p *Policy) parts(t *table) (*policyParts, error) {
	n := &policyParts{table: t, id: p.ID}
	if err := p.validate(); err != nil {
		return nil, err
	}
	for _, s := range p.Selections {
		set := selectionSet(t, s.Name)
		n.selections = append(n.selections, set)
		for _, m := range s.Members {
			n.elements = append(n.elements, members(set, m)...)
		}
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

// policyOwner is the comment of the chains of an instance's policies.
func policyOwner(instance string) string {
	return names.Owner{Network: "policy", Instance: instance}.String()
}

func (p *Policy) validate() error {
	if p.ID == "" || len(p.ID) > 16 || p.Group < names.FirstPolicyGroup || p.Group > names.LastPolicyGroup {
		return fmt.Errorf("policy %q: it has no valid ID or group (%#x)", p.ID, p.Group)
	}
	return nil
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
func (n *policyParts) direction(id string, d int, stages []Stage) {
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
func (n *policyParts) stage(name names.PolicyChain, d int, s *Stage) {
	c := newChain(name.String(), hook{})
	for i := range s.Rules {
		if exprs := n.rule(name, i, d, &s.Rules[i]); exprs != nil {
			c.rules = append(c.rules, newRule(s.Rules[i].Name, exprs...))
		}
	}
	if s.Deny {
		c.rules = append(c.rules, newRule("default", &expr.Counter{}, goTo(denialsOf(d))))
	}
	n.chains = append(n.chains, c)
}

// rule returns the expressions of a rule, or nil if it matches no packet of the family.
func (n *policyParts) rule(chain names.PolicyChain, i, d int, r *PolicyRule) []expr.Any {
	peer, ok := n.peer(chain.Set(i), d, &r.Peer)
	if !ok {
		return nil
	}
	service, ok := n.service(&r.Service)
	if !ok {
		return nil
	}
	exprs := slices.Concat(peer, service, []expr.Any{&expr.Counter{}})
	if r.Deny {
		return append(exprs, goTo(denialsOf(d)))
	}
	return append(exprs, returns())
}

func (n *policyParts) peer(name string, d int, p *Peer) ([]expr.Any, bool) {
	t := n.table
	local := []expr.Any{&expr.Fib{Register: 1, FlagDADDR: d == egress, FlagSADDR: d == ingress, ResultADDRTYPE: true}}
	switch {
	case p.Selection != "":
		return []expr.Any{t.peer(d, 0), inSet(selectionSet(t, p.Selection))}, true
	case len(p.Prefixes) > 0:
		s := n.prefixes(name, p.Prefixes)
		if s == nil {
			return nil, false
		}
		return []expr.Any{t.peer(d, 0), protocol(t.addrLen), inSet(s)}, true
	case p.Host:
		return n.except(name, d, p, append(local, equal(native(unix.RTN_LOCAL)))), true
	case p.Allocations:
		exprs := append([]expr.Any{&expr.Ct{Key: expr.CtKeySTATUS, Register: 1}}, []expr.Any{mask(native(uint32(dstNAT)), native(0)), equal(native(0))}...)
		return n.except(name, d, p, append(exprs, t.peer(d, 0), inSet(t.policy.known))), true
	case p.World:
		exprs := []expr.Any{t.peer(d, 0), notInSet(t.policy.known)}
		exprs = append(append(exprs, local...), unequal(native(unix.RTN_LOCAL)))
		return n.except(name, d, p, exprs), true
	}
	return nil, true
}

// except appends the condition that the peer is not one of Except.
func (n *policyParts) except(name string, d int, p *Peer, exprs []expr.Any) []expr.Any {
	if s := n.prefixes(name, p.Except); s != nil {
		exprs = append(exprs, n.table.peer(d, 0), protocol(n.table.addrLen), notInSet(s))
	}
	return exprs
}

// prefixes adds a set of prefixes, or returns nil if none is of the family.
func (n *policyParts) prefixes(name string, list []netip.Prefix) *set {
	s := prefixSet(n.table, name)
	before := len(n.elements)
	for _, p := range list {
		if p = unmap(p).Masked(); p.Addr().Is4() == (n.table.family == unix.NFPROTO_IPV4) {
			e := element{set: s}
			copy(e.key[:], p.Addr().AsSlice())
			copy(e.end[:], last(p))
			e.end[n.table.addrLen] = 0xff
			n.elements = append(n.elements, e)
		}
	}
	if len(n.elements) == before {
		return nil
	}
	n.sets = append(n.sets, s)
	return s
}

func (n *policyParts) service(s *Service) ([]expr.Any, bool) {
	if s.Protocol == 0 {
		return nil, true
	}
	if s.Protocol == unix.IPPROTO_ICMP && n.table.family != unix.NFPROTO_IPV4 || s.Protocol == unix.IPPROTO_ICMPV6 && n.table.family != unix.NFPROTO_IPV6 {
		return nil, false
	}
	exprs := []expr.Any{protocol(0), equal([]byte{s.Protocol})}
	number := func(port uint16) []byte { return binary.BigEndian.AppendUint16(nil, port) }
	switch {
	case s.Type != nil:
		exprs = append(exprs, transport(0, 1, 0), equal([]byte{*s.Type}))
	case s.First == 0 && s.Last == 0:
	case s.First == s.Last:
		exprs = append(exprs, port(0), equal(number(s.First)))
	default:
		exprs = append(exprs, port(0), &expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: number(s.First), ToData: number(s.Last)})
	}
	return exprs, true
}

// AddPolicy makes the chains and sets of a policy in one transaction, and missing tables before.
// It is idempotent, and replaces chains of the policy that differ. Packets over links of the
// policy's group are dropped until then.
func (r *Ruleset) AddPolicy(ctx context.Context, p *Policy) error { return r.makePolicy(ctx, p, true) }

// RestorePolicy is AddPolicy for a policy to which links lead already, by their group. The kernel
// evaluates the rules of one generation for a packet, but looks up elements in the current one: a
// packet that is evaluated meanwhile would find an element that leads to a chain, and the chain without
// rules. So the elements are added after the chain.
func (r *Ruleset) RestorePolicy(ctx context.Context, p *Policy) error {
	if err := r.makePolicy(ctx, p, false); err != nil {
		return err
	}
	return r.makePolicy(ctx, p, true)
}

func (r *Ruleset) makePolicy(ctx context.Context, p *Policy, linked bool) error {
	var all []*policyParts
	for _, t := range policyTables {
		n, err := p.parts(t)
		if err != nil {
			return err
		}
		all = append(all, n)
	}
	var err error
	for range attempts {
		if err = r.addPolicy(ctx, all, linked); !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) {
			break
		}
		if ensureErr := r.EnsurePolicies(ctx); ensureErr != nil {
			return ensureErr
		}
	}
	if err != nil {
		return fmt.Errorf("add policy %s: %w", p.ID, err)
	}
	return nil
}

// EnsurePolicies makes the tables of policies where they are missing or incomplete.
func (r *Ruleset) EnsurePolicies(ctx context.Context) error {
	for _, t := range policyTables {
		if err := r.ensureTable(ctx, t); err != nil {
			return fmt.Errorf("make %s: %w", t.label, err)
		}
	}
	return nil
}

func (r *Ruleset) addPolicy(ctx context.Context, all []*policyParts, linked bool) error {
	var existing []element
	var present []*state
	for _, n := range all {
		is, err := r.chainsOf(ctx, n.table, n.chains)
		if err != nil {
			return err
		}
		present = append(present, is)
		found, err := r.lookUp(ctx, n.links)
		if err != nil {
			return err
		}
		for d := range found {
			if is := &found[d]; is.set != nil {
				if !n.ours(is) {
					return ErrGroupTaken
				}
				existing = append(existing, *is)
			}
		}
	}
	return r.socket.Transaction(ctx, func(b *sock.Requests) {
		for i, n := range all {
			n.build(b, present[i])
		}
		if !linked {
			return
		}
		putElements(b, existing, unix.NFT_MSG_DELSETELEM)
		for _, n := range all {
			putElements(b, n.links, unix.NFT_MSG_NEWSETELEM)
		}
	})
}

// ours reports whether an element of a group of links leads to this policy.
func (n *policyParts) ours(is *element) bool {
	return names.PolicyID(is.value.chain) == n.id
}

// build appends the messages that make sets, elements and chains, given the existing chains.
func (n *policyParts) build(b *sock.Requests, is *state) {
	for i, s := range slices.Concat(n.selections, n.sets) {
		s.put(b, uint32(i+1))
	}
	putElementsWith(b, n.elements, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE)
	n.table.clear(b, n.chains, is)
	for _, c := range n.chains {
		c.put(b, n.table)
	}
	for _, c := range n.chains {
		c.putRules(b, n.table)
	}
}

// DelPolicy removes the chains and sets of a policy, and those of its selections that are named
// in unused. It is idempotent.
func (r *Ruleset) DelPolicy(ctx context.Context, p *Policy, unused []string) error {
	var err error
	for range attempts {
		if err = r.delPolicy(ctx, p, unused); !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("delete policy %s: %w", p.ID, err)
	}
	return nil
}

func (r *Ruleset) delPolicy(ctx context.Context, p *Policy, unused []string) error {
	var removals []func(*sock.Requests)
	for _, t := range policyTables {
		n, err := p.parts(t)
		if err != nil {
			return err
		}
		removal, err := r.removalOf(ctx, n, unused)
		if err != nil {
			return err
		}
		removals = append(removals, removal)
	}
	return r.socket.Transaction(ctx, func(b *sock.Requests) {
		for _, one := range removals {
			one(b)
		}
	})
}

// removalOf returns the messages that remove what exists of a policy in one table.
func (r *Ruleset) removalOf(ctx context.Context, n *policyParts, unused []string) (func(*sock.Requests), error) {
	is, err := r.chainsOf(ctx, n.table, n.chains)
	if err != nil {
		return nil, err
	}
	links, err := r.lookUp(ctx, n.links)
	if err != nil {
		return nil, err
	}
	links = slices.DeleteFunc(links, func(e element) bool { return e.set == nil || !n.ours(&e) })
	var candidates []*set
	for _, name := range unused {
		candidates = append(candidates, selectionSet(n.table, name))
	}
	sets, err := r.existing(ctx, append(candidates, n.sets...))
	if err != nil {
		return nil, err
	}
	return func(b *sock.Requests) {
		putElements(b, links, unix.NFT_MSG_DELSETELEM)
		n.table.clear(b, n.chains, is)
		for _, c := range slices.Backward(n.chains) { // callers first
			if _, ok := is.chains[c.name]; ok {
				c.remove(b, n.table)
			}
		}
		for _, s := range sets {
			s.remove(b)
		}
	}, nil
}

// existing returns the sets that exist.
func (r *Ruleset) existing(ctx context.Context, list []*set) ([]*set, error) {
	var found []*set
	var failed error
	err := r.get(ctx, len(list), func(b *sock.Requests, i int) {
		s := list[i]
		s.table.begin(b, s.label, unix.NFT_MSG_GETSET, 0)
		b.CString(unix.NFTA_SET_TABLE, s.table.name)
		b.CString(unix.NFTA_SET_NAME, s.name)
	}, func(i int, _ []byte, err error) {
		switch {
		case err == nil:
			found = append(found, list[i])
		case !errors.Is(err, unix.ENOENT):
			failed = errors.Join(failed, err)
		}
	})
	return found, errors.Join(err, failed)
}

// CheckPolicy returns ErrMissing, with the names of what is missing or differs, if a policy is
// not complete.
func (r *Ruleset) CheckPolicy(ctx context.Context, p *Policy) error {
	var missing []string
	for _, t := range policyTables {
		n, err := p.parts(t)
		if err == nil {
			var some []string
			some, err = r.missingOf(ctx, n)
			missing = append(missing, some...)
		}
		if err != nil {
			return fmt.Errorf("check policy %s: %w", p.ID, err)
		}
	}
	return missingError(missing)
}

func (r *Ruleset) missingOf(ctx context.Context, n *policyParts) ([]string, error) {
	missing, err := r.problemsOf(ctx, n.table)
	if err != nil {
		return nil, err
	}
	is, err := r.chainsOf(ctx, n.table, n.chains)
	if err != nil {
		return nil, err
	}
	for _, c := range n.chains {
		if !slices.EqualFunc(is.rules[c.name], c.rules, func(comment string, one rule) bool { return comment == one.comment }) {
			missing = append(missing, c.label)
		}
	}
	wanted := slices.Concat(n.links, n.elements)
	found, err := r.lookUp(ctx, wanted)
	if err != nil {
		return nil, err
	}
	for i := range wanted {
		if is := &found[i]; is.set == nil || is.value != wanted[i].value || is.owner != wanted[i].owner {
			missing = append(missing, wanted[i].String())
		}
	}
	return missing, nil
}

// chainsOf reads which of the chains exist, and the comments of their rules.
func (r *Ruleset) chainsOf(ctx context.Context, t *table, chains []chain) (*state, error) {
	is := &state{chains: map[string]hook{}, rules: map[string][]string{}}
	var failed error
	err := r.get(ctx, len(chains), func(b *sock.Requests, i int) {
		t.begin(b, chains[i].label, unix.NFT_MSG_GETCHAIN, 0)
		b.CString(unix.NFTA_CHAIN_TABLE, t.name)
		b.CString(unix.NFTA_CHAIN_NAME, chains[i].name)
	}, func(i int, _ []byte, err error) {
		switch {
		case err == nil:
			is.chains[chains[i].name] = hook{}
		case !errors.Is(err, unix.ENOENT):
			failed = errors.Join(failed, err)
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	for name := range is.chains {
		if err := r.readRules(ctx, t, name, is); err != nil {
			return nil, err
		}
	}
	return is, nil
}
