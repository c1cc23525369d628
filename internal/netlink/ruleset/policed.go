package ruleset

import (
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
)

// The policies of allocations on bridges apply to their addresses, and nothing but the elements in the tables of
// policies says which these are. If another program deletes such a table, a table of its own has the addresses, of both
// families: before the policies, it marks packets from them, the table of policies clears the mark of those
// to which a policy applies, and what still has it is dropped; then the same for packets to them. The mark is
// ForwardMark. Neither depends on the family that a program has flushed, nor on a process that runs.

// The priorities of these steps. That of the links with a policy, in the held table of the guard, follow.
const (
	markSenders    = policyPriority - 6
	clearSenders   = policyPriority - 5
	markReceivers  = policyPriority - 4 // drops what comes from senders, too
	clearReceivers = policyPriority - 3
	dropReceivers  = policyPriority - 2
)

// newPolicedTable returns the table of the addresses that need a policy.
func newPolicedTable() *table {
	t := &table{family: unix.NFPROTO_INET, name: names.PolicedTable, label: "table inet " + names.PolicedTable}
	t.needing = [2]*set{t.newSet("addresses", types{nftables.TypeIPAddr}, nil), t.newSet("addresses6", types{nftables.TypeIP6Addr}, nil)}
	t.chains = onceChains(t, t.policedAddresses)
	return t
}

// policedAddresses returns the chains of the table.
func (t *table) policedAddresses() []chain {
	var list []chain
	for _, h := range policyHooks {
		begins, ends := slices.Contains(h.directions, egress), slices.Contains(h.directions, ingress)
		add := func(step string, priority int32, rules ...rule) {
			list = append(list, newChain(h.name+step, base("filter", h.number, priority), rules...))
		}
		var between []rule
		if begins {
			add("_senders", markSenders, t.marks(egress)...)
			between = t.drops(egress)
		}
		if ends {
			between = append(between, t.marks(ingress)...)
		}
		add("_receivers", markReceivers, between...)
		if ends {
			add("_end", dropReceivers, t.drops(ingress)...)
		}
	}
	return list
}

// marks returns the rules that mark packets whose sender or receiver needs a policy.
func (t *table) marks(direction int) (rules []rule) {
	for i := range tables {
		rules = append(rules, newRule(peers[direction]+" that need a policy", append(t.needs(direction, i), setMark(ForwardMark)...)...))
	}
	return rules
}

// drops returns the rules that drop those that are still marked.
func (t *table) drops(direction int) (rules []rule) {
	for i := range tables {
		rules = append(rules, newRule("no policy was applied", slices.Concat(marked(), t.needs(direction, i), counted(drop()))...))
	}
	return rules
}

// needs matches packets of one of the families of tables whose sender or receiver needs a policy.
func (t *table) needs(direction, family int) []expr.Any {
	of := tables[family]
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal([]byte{of.family}), of.subject(direction, 0), inSet(t.needing[family])}
}

// clearing returns the chains in a table of policies that clear the mark of packets to whose sender or receiver a
// policy applies. A lookup that is inverted does not count.
func (t *table) clearing() (list []chain) {
	for _, h := range policyHooks {
		for _, d := range h.directions {
			list = append(list, newChain(h.name+"_of_"+peers[d], base("filter", h.number, [2]int32{clearSenders, clearReceivers}[d]),
				newRule("packets without the mark", &expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, mask(native(ForwardMark), native(0)), equal(native(0)), returns()),
				newRule("no policy applies", t.subject(d, 0), notInSet(t.policy.dropped[d]), returns()),
				newRule("a policy applies: clear the mark", setMark(0)...)))
		}
	}
	return list
}

// marked matches packets with the bit ForwardMark.
func marked() []expr.Any {
	return append([]expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}}, anyBit(ForwardMark)...)
}

// needing adds the addresses that need a policy, although no link leads to it.
func (l *lister) needing(t *table, list []Policed) {
	for i := range tables {
		for _, p := range list {
			if a := p.Address.Unmap(); p.ByAddress && a.IsValid() && tableOf(a) == tables[i] {
				l.add(t.needing[i], a.AsSlice())
			}
		}
	}
}
