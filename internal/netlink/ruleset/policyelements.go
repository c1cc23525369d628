package ruleset

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// policies adds the elements of an attachment in a table of policies.
func (l *lister) policies(t *table, e *Elements) {
	for _, a := range e.Known {
		l.policyAddress(t, t.policy.known, a)
	}
	for _, p := range e.Policed {
		if one := l.policyAddress(t, t.policy.ends, p.Address); one != nil {
			copy(one.key[t.addrLen:], one.key[:t.addrLen])
		}
	}
	for d := range directions {
		for _, p := range e.Policed {
			l.policyAddress(t, t.policy.dropped[d], p.Address)
		}
		for _, p := range e.Policed {
			if stages := [2]bool{p.Egress, p.Ingress}; p.ByAddress && (stages[d] || l.removing) {
				if one := l.policyAddress(t, t.policy.addresses[d], p.Address); one != nil {
					one.verdict, one.value.chain = int32(expr.VerdictGoto), policyChain(p.Policy, d).String()
				}
			}
		}
	}
}

// policyAddress adds an element for an address of the table's family.
func (l *lister) policyAddress(t *table, s *set, a netip.Addr) *element {
	if a = a.Unmap(); !a.IsValid() || a.Is4() != (t.family == unix.NFPROTO_IPV4) {
		return nil
	}
	return l.add(s, a.AsSlice())
}

// PolicyChains are the chains of a policy, with their rules. They are derived once for many
// attachments.
type PolicyChains struct {
	id     string
	tables []*table
	chains [][]chain // of each table, without expressions
}

// Chains returns the chains of a policy. They do not depend on its group and its members.
func (p *Policy) Chains() (*PolicyChains, error) {
	any := *p
	any.Group = names.FirstPolicyGroup
	list := &PolicyChains{id: p.ID}
	for _, t := range policyTables {
		if !t.has(p.Family) {
			continue
		}
		n, err := any.objects(t)
		if err != nil {
			return nil, err
		}
		for i := range n.chains {
			for j := range n.chains[i].rules {
				n.chains[i].rules[j].exprs = nil
			}
		}
		list.tables, list.chains = append(list.tables, t), append(list.chains, n.chains)
	}
	return list, nil
}

// HasPolicy reports whether a policy is complete, except for its sets: the group of links leads to its
// chains, and they have their rules. An element that leads to a chain keeps it.
func (r *Ruleset) HasPolicy(ctx context.Context, p *PolicyChains, group uint32) (bool, error) {
	state, err := sock.Generation(ctx, r.socket)
	if err != nil {
		return false, fmt.Errorf("look for policy %s: %w", p.id, err)
	}
	name := p.name(group)
	if r.intact.has(name, state) {
		return true, nil
	}
	var links []element
	for _, t := range p.tables {
		links = append(links, linksTo(t, p.id, group)...)
	}
	found, err := r.lookUp(ctx, links)
	if err != nil {
		return false, fmt.Errorf("look for policy %s: %w", p.id, err)
	}
	for i := range links {
		if found[i].set == nil || found[i].value != links[i].value {
			return false, nil
		}
	}
	for i, t := range p.tables {
		is, err := r.chainsOf(ctx, t, p.chains[i])
		if err != nil {
			return false, fmt.Errorf("look for policy %s: %w", p.id, err)
		}
		for _, c := range p.chains[i] {
			if !c.has(is.rules[c.name]) {
				return false, nil
			}
		}
	}
	r.intact.add(name, state)
	return true, nil
}

// name is the name of the chains among what is intact, with the group of links that leads to them.
func (p *PolicyChains) name(group uint32) string {
	name := policyName(p.id) + strconv.Itoa(int(group))
	for _, t := range p.tables {
		name += t.label
	}
	return name
}

// linksTo returns the elements of a group of links that lead to the chains of a policy.
func linksTo(t *table, id string, group uint32) []element {
	var links []element
	for d := range directions {
		link := element{set: t.policy.links[d]}
		binary.NativeEndian.PutUint32(link.key[:], group)
		link.verdict, link.value.chain = int32(expr.VerdictGoto), policyChain(id, d).String()
		links = append(links, link)
	}
	return links
}

// policyString describes an element of a table of policies.
func (e *element) policyString() string {
	kind := strings.ReplaceAll(e.set.name, "_", " ")
	if p := e.set.table.policy; e.set == p.links[egress] || e.set == p.links[ingress] {
		return fmt.Sprintf("%s of policy chain %q", kind, e.value.chain)
	}
	return fmt.Sprintf("%s %s", kind, e.address())
}

// JoinSelections adds an attachment to selections. It is idempotent. If a selection does not
// exist, errors.Is finds ENOENT, and nothing has changed.
func (r *Ruleset) JoinSelections(ctx context.Context, m Member, selections []string) error {
	list := inSelections(m, selections)
	if len(list) == 0 {
		return nil
	}
	err := r.transaction(ctx, func(b *sock.Requests) {
		putElementsWith(b, list, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE)
	})
	if err != nil {
		return fmt.Errorf("add %s to selections: %w", m.Owner, err)
	}
	return nil
}

// CheckSelections returns ErrMissing, with the elements that are missing, if an attachment is not in
// all of its selections.
func (r *Ruleset) CheckSelections(ctx context.Context, m Member, selections []string) error {
	list := inSelections(m, selections)
	found, err := r.lookUp(ctx, list)
	if err != nil {
		return fmt.Errorf("check selections of %s: %w", m.Owner, err)
	}
	var missing []string
	for i := range list {
		if is := &found[i]; is.set == nil || is.owner != list[i].owner {
			missing = append(missing, list[i].String())
		}
	}
	return missingError(missing)
}

// LeaveSelections removes an attachment from selections, where they and its elements exist.
func (r *Ruleset) LeaveSelections(ctx context.Context, m Member, selections []string) error {
	if err := r.del(ctx, inSelections(m, selections)); err != nil {
		return fmt.Errorf("remove %s from selections: %w", m.Owner, err)
	}
	return nil
}

func inSelections(m Member, selections []string) []element {
	var list []element
	for _, t := range policyTables {
		for _, name := range selections {
			list = append(list, members(selectionSet(t, name), m)...)
		}
	}
	return list
}

// selectionSets returns the selections that exist in a table of policies.
func (r *Ruleset) selectionSets(ctx context.Context, t *table) ([]*set, error) {
	var list []*set
	err := retry.Do(ctx, func() (err error) {
		list, err = r.setsNamed(ctx, t, func(name, _ string) bool { _, ok := names.ParseSelectionSet(name); return ok })
		return err
	})
	if errors.Is(err, unix.ENOENT) { // the table
		return nil, nil
	}
	for i, s := range list {
		selection, _ := names.ParseSelectionSet(s.name)
		list[i] = selectionSet(t, selection)
	}
	return list, err
}

// readSet reads the name and the comment of a set.
func readSet(payload []byte) (name, comment string) {
	sock.EachNetfilterAttribute(payload, func(kind uint16, value []byte) {
		switch kind {
		case unix.NFTA_SET_NAME:
			name = sock.String(value)
		case unix.NFTA_SET_USERDATA:
			comment = textOf(value, dataSetComment)
		}
	})
	return name, comment
}
