package ruleset

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Policy is a network policy. Attachments with the same policy share it.
type Policy struct {
	// ID distinguishes the policy from others, in the names of its chains: up to 16
	// characters, letters and digits.
	ID string
	// Instance is that of the owners of the attachments: see names.Owner.
	Instance string
	// Family is PolicyIPv4 or PolicyIPv6 if all attachments have addresses of this family only; "" stands for
	// both. Packets of the other family are dropped on the links of the group. The kernel validates
	// all policies of a family whenever one is added.
	Family string
	// Group is the group of the links to which the policy applies: from
	// names.FirstPolicyGroup to names.LastPolicyGroup.
	Group uint32
	// Egress and Ingress are applied one after the other. A packet has to be allowed by each
	// of them. A direction without stages allows everything.
	Egress, Ingress []Stage
	// Selections are all selections of the rules, with their members.
	Selections []Selection
	// New states that nothing of the policy is known to be in the kernel. Then AddPolicy looks for it only if
	// the kernel refuses the new objects, which takes longer than to look: the kernel waits for all
	// processors before it answers (nf_tables_abort).
	New bool
}

// Stage is a list of rules, of which the first one that matches decides, and the verdict on
// packets that none matches.
type Stage struct {
	Rules []PolicyRule
	Deny  bool
}

// PolicyRule matches packets with one peer and one of the services.
type PolicyRule struct {
	// Name is part of the rule's comment.
	Name     string
	Deny     bool
	Peer     Peer
	Services Services `json:"Service"`
}

// Peer is the other end of a packet. At most one field is set, besides Except and the Original of World;
// without any, every peer matches.
type Peer struct {
	Selection string         // the name of a selection
	Prefixes  []netip.Prefix // of both families; none contains another
	Host      bool           // an address of the host
	World     bool           // neither the host nor an allocation, nor one of Except
	Except    []netip.Prefix // of World, Host, Allocations and Unpublished, as Prefixes
	// Allocations stands for the addresses of all allocations in networks with policies, unless
	// the packet was sent to one of their host ports.
	Allocations bool `json:",omitempty"`
	// Unpublished stands for every address that is not both in Except and that of an allocation in a
	// network with policies, unless the packet was sent to a host port.
	Unpublished bool `json:",omitempty"`
	// Original are destinations of connections before their translation. Alone, it matches translated
	// connections to them, with the Service as it was before. A World of Egress does not match these.
	Original []netip.Prefix `json:",omitempty"`
}

// Service is what a packet is for. The zero value matches every packet.
type Service struct {
	Protocol    uint8  // 0 for every protocol
	First, Last uint16 // ports; 0 and 0 for all
	Type        *uint8 // of ICMP; nil for every type
}

// Selection is a set of addresses of allocations. Its elements have owners.
type Selection struct {
	Name string // up to 16 characters, letters and digits
	// Present states that the selection is in the kernel with its members. If that is not true,
	// AddPolicy returns an error for which errors.Is finds ENOENT, and has changed nothing.
	Present bool
	Members []Member
}

// Member is an attachment in a selection.
type Member struct {
	Owner     names.Owner
	Addresses []netip.Addr
}

func (p *Policy) validate() error {
	if p.ID == "" || len(p.ID) > 16 || p.Group < names.FirstPolicyGroup || p.Group > names.LastPolicyGroup {
		return fmt.Errorf("policy %q: it has no valid ID or group (%#x)", p.ID, p.Group)
	}
	return nil
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
	if err := r.PreparePolicy(ctx, p); err != nil {
		return err
	}
	return r.AddPolicy(ctx, p)
}

// PreparePolicy is AddPolicy without the elements that lead from links to the chains. Packets over links that
// no element leads to the policy are still dropped, and follow its chains where one does.
func (r *Ruleset) PreparePolicy(ctx context.Context, p *Policy) error {
	return r.makePolicy(ctx, p, false)
}

func (r *Ruleset) makePolicy(ctx context.Context, p *Policy, linked bool) error {
	var all []*policyObjects
	for _, t := range policyTables {
		n, err := p.objects(t)
		if err != nil {
			return err
		}
		all = append(all, n)
	}
	var err error
	isNew := p.New
	for range attempts {
		err = r.addPolicy(ctx, all, linked, isNew)
		if isNew && (errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EBUSY)) {
			isNew = false
			continue
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOENT) && p.needsSelections() {
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

// needsSelections reports whether a selection has to exist already.
func (p *Policy) needsSelections() bool {
	return slices.ContainsFunc(p.Selections, func(s Selection) bool { return s.Present })
}

// KnowsAllocations reports whether the tables of policies have the sets of Known elements. If not, another program
// has removed those of all attachments, or there never were any.
func (r *Ruleset) KnowsAllocations(ctx context.Context) (bool, error) {
	var sets []*set
	for _, t := range policyTables {
		sets = append(sets, t.policy.known)
	}
	found, err := r.existing(ctx, sets)
	if err != nil {
		return false, fmt.Errorf("look for the addresses of allocations: %w", err)
	}
	return len(found) == len(sets), nil
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

// addPolicy is one attempt of makePolicy. The kernel refuses objects of a new policy that exist with EEXIST;
// versions of it answer EBUSY to an element that leads elsewhere.
func (r *Ruleset) addPolicy(ctx context.Context, all []*policyObjects, linked, isNew bool) error {
	present := make([]*state, len(all))
	var links []element // to the policy's chains
	for i, n := range all {
		if len(n.chains) == 0 { // then no other message fails if the table is missing
			if exists, _, err := r.has(ctx, n.table); err != nil || !exists {
				return cmp.Or[error](err, unix.ENOENT)
			}
		}
		if isNew {
			continue
		}
		var err error
		if present[i], err = r.existingChains(ctx, n.table, n.chains); err != nil {
			return err
		}
		found, err := r.ownLinks(ctx, n)
		if err != nil {
			return err
		}
		links = append(links, found...)
	}
	return r.transaction(ctx, func(b *sock.Requests) {
		for i, n := range all {
			n.build(b, present[i], !linked)
		}
		if !linked {
			return
		}
		putElements(b, links, unix.NFT_MSG_DELSETELEM)
		for _, n := range all {
			putElements(b, n.links, unix.NFT_MSG_NEWSETELEM)
		}
	})
}

// ownLinks returns the existing elements that lead to the chains of a policy. One with its key that leads
// to those of another is ErrGroupTaken.
func (r *Ruleset) ownLinks(ctx context.Context, n *policyObjects) ([]element, error) {
	found, err := r.lookUp(ctx, n.links)
	if err != nil {
		return nil, err
	}
	var own []element
	for _, is := range found {
		switch {
		case is.set == nil:
		case !n.ours(&is):
			return nil, ErrGroupTaken
		default:
			own = append(own, is)
		}
	}
	return own, nil
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
	var links []element
	for _, t := range policyTables {
		n, err := p.objects(t)
		if err != nil {
			return err
		}
		to, removal, err := r.removalOf(ctx, n, unused)
		if err != nil {
			return err
		}
		links, removals = append(links, to...), append(removals, removal)
	}
	defer r.intact.removePolicy(p.ID)
	return r.transaction(ctx, func(b *sock.Requests) {
		putElements(b, links, unix.NFT_MSG_DELSETELEM)
		for _, one := range removals {
			one(b)
		}
	})
}

// removalOf returns the existing elements that lead to a policy in one table, and the messages that remove
// what else exists of it.
func (r *Ruleset) removalOf(ctx context.Context, n *policyObjects, unused []string) (links []element, rest func(*sock.Requests), err error) {
	is, err := r.existingChains(ctx, n.table, n.chains)
	if err != nil {
		return nil, nil, err
	}
	links, err = r.lookUp(ctx, n.links)
	if err != nil {
		return nil, nil, err
	}
	links = slices.DeleteFunc(links, func(e element) bool { return e.set == nil || !n.ours(&e) })
	var candidates []*set
	for _, name := range unused {
		candidates = append(candidates, selectionSet(n.table, name))
	}
	sets, err := r.existing(ctx, append(candidates, n.sets...))
	if err != nil {
		return nil, nil, err
	}
	return links, func(b *sock.Requests) {
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
