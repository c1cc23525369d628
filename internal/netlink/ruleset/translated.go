package ruleset

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
)

// Translations says which connections get a source address of the host, according to the elements that were in the
// tables when it was read.
type Translations struct {
	masqueraded, snatAll, snatLocal map[netip.Addr]bool
	networks, exempt                []element
}

// Translations reads the elements that decide on the sources of connections.
func (r *Ruleset) Translations(ctx context.Context) (*Translations, error) {
	n := &Translations{masqueraded: map[netip.Addr]bool{}, snatAll: map[netip.Addr]bool{}, snatLocal: map[netip.Addr]bool{}}
	for _, t := range tables {
		err := r.readTranslations(ctx, t, n)
		if err != nil {
			return nil, fmt.Errorf("read what the rules of %s translate: %w", t.label, err)
		}
	}
	return n, nil
}

func (r *Ruleset) readTranslations(ctx context.Context, t *table, n *Translations) error {
	all := func(*element) bool { return true }
	for s, addresses := range map[*set]map[netip.Addr]bool{t.masqueraded: n.masqueraded, t.snatAll: n.snatAll, t.snatLocal: n.snatLocal} {
		list, err := r.dumpElements(ctx, s, all)
		if err != nil {
			return err
		}
		for i := range list {
			addresses[list[i].address()] = true
		}
	}
	for s, pairs := range map[*set]*[]element{t.networks: &n.networks, t.exempt: &n.exempt} {
		list, err := r.dumpElements(ctx, s, all)
		if err != nil {
			return err
		}
		*pairs = append(*pairs, list...)
	}
	return nil
}

// Stale reports whether the rules would now decide otherwise on the source of a forwarded connection: from and to are
// its addresses as the rules of the hook postrouting see them, redirected whether its destination was translated, and
// translated whether its source was.
func (n *Translations) Stale(from, to netip.Addr, redirected, translated bool) bool {
	if n.translates(from, to, redirected) {
		return !translated
	}
	return translated && !redirected && n.masqueraded[from] // otherwise another program has translated it
}

// translates decides as the rules of the chain postrouting do.
func (n *Translations) translates(from, to netip.Addr, redirected bool) bool {
	switch {
	case redirected && n.snatAll[to]:
		return true
	case redirected && n.snatLocal[to] && (from.IsLoopback() || haveBoth(n.networks, from, to)):
		return true
	case haveBoth(n.networks, from, to), haveBoth(n.exempt, from, to):
		return false
	}
	return n.masqueraded[from] && !to.IsMulticast()
}

// haveBoth reports whether one of the pairs of networks contains the pair of addresses.
func haveBoth(pairs []element, from, to netip.Addr) bool {
	t, both := tableOf(from), element{}
	copy(both.key[copy(both.key[:], from.AsSlice()):], to.AsSlice())
	both.end = both.key
	return slices.ContainsFunc(pairs, func(e element) bool { return e.set.table == t && e.covers(&both) })
}

// Translated returns the addresses of the elements that decide on the sources of connections.
func (e *Elements) Translated() (list []netip.Addr) {
	for _, p := range e.Masquerade {
		list = append(list, p.Addr().Unmap())
	}
	for _, p := range e.Published {
		list = append(list, p.Address.Addr().Unmap())
	}
	return list
}

// RulesRestored sets the function that is called after rules were made again that another program had removed from a
// table of elements or, if policies is true, from one of network policies. It must be called before the Ruleset is
// used. What the elements of a missing table have decided is not known to it: see Restored.
func (r *Ruleset) RulesRestored(do func(ctx context.Context, policies bool)) { r.rulesRestored = do }

// madeAgain notes that the rules of a table were made again.
func (r *Ruleset) madeAgain(ctx context.Context, t *table) {
	if r.rulesRestored != nil && (t.policy != nil || slices.Contains(tables, t)) {
		r.rulesRestored(ctx, t.policy != nil)
	}
}
