package ruleset

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
)

// Attachments may request a host port that another one has: those of one container, and those with
// MayWait. The element of the older one redirects; the others are in the map standby_ports. The
// transaction that removes the element of the older one activates the next one. No rule uses that map.

// maxStandby is the maximum number of attachments that wait for one host port.
const maxStandby = 16

// terms are the conditions under which the elements of one attachment are added: see Elements.MayWait,
// Elements.Order and Ruleset.MayNarrow.
type terms struct{ mayWait, ordered, mayNarrow bool }

func (r *Ruleset) termsOf(e *Elements) terms {
	return terms{mayWait: e.MayWait, ordered: e.Order > 0, mayNarrow: r.MayNarrow}
}

// permit reports whether the mapping of one owner may wait for that of another one.
func (t terms) permit(want, is *element) bool {
	return is.owner != "" && (t.mayWait || sameContainer(want.owner, is.owner))
}

// sameContainer reports whether two owners are attachments of one container.
func sameContainer(a, b string) bool {
	x, ok := names.ParseOwner(a)
	y, also := names.ParseOwner(b)
	return ok && also && x.ID != "" && x.Instance == y.Instance && (x.OfID(y.ID) || y.OfID(x.ID))
}

// standby returns the element of the standby map for a mapping that waits. place is its
// position in the queue, from 1.
func (e *element) standby(place uint32) element {
	t := e.set.table
	n := int(t.addrLen)
	w := *e
	w.set, w.key = t.standby, key{}
	if e.set == t.hostIPPorts {
		copy(w.key[:], e.key[:n+8])
	} else {
		copy(w.key[n:], e.key[:8])
	}
	binary.NativeEndian.PutUint32(w.key[n+8:], place)
	return w
}

// active returns the mapping that an element of the standby map contains. It returns
// any other element unchanged.
func (e *element) active() element {
	t := e.set.table
	if e.set != t.standby {
		return *e
	}
	n := int(t.addrLen)
	a := *e
	a.set, a.key = t.hostIPPorts, key{}
	if e.address().IsUnspecified() {
		a.set = t.hostPorts
		copy(a.key[:], e.key[n:n+8])
	} else {
		copy(a.key[:], e.key[:n+8])
	}
	return a
}

// sharing is the element that marks a table in which attachments have shared host ports.
// Without it a removal does not look for attachments that wait. It is never removed.
func (t *table) sharing() element {
	e := element{set: t.standby}
	e.key[t.addrLen] = complete.Protocol
	return e
}

// sharingOf returns the sharing elements of the tables of the mappings in list.
func sharingOf(list []element) []element {
	var marks []element
	for _, t := range tables {
		if slices.ContainsFunc(list, func(e element) bool { return e.set.table == t && e.isMapping() }) {
			marks = append(marks, t.sharing())
		}
	}
	return marks
}

// shared returns the tables of the mappings in list in which attachments share host
// ports.
func (r *Ruleset) shared(ctx context.Context, list []element) (map[*table]bool, error) {
	found, err := r.lookUp(ctx, sharingOf(list))
	return tablesOf(found), err
}

func tablesOf(found []element) map[*table]bool {
	in := map[*table]bool{}
	for i := range found {
		if found[i].set != nil {
			in[found[i].set.table] = true
		}
	}
	return in
}

// hostPort is a port of the host, of one protocol and family, whatever its addresses.
type hostPort struct {
	table *table
	key   [8]byte
}

// hostPort returns the host port of a mapping.
func (e *element) hostPort() (p hostPort) {
	p.table = e.set.table
	at := 0
	if e.set == p.table.hostIPPorts {
		at = int(p.table.addrLen)
	}
	copy(p.key[:], e.key[at:])
	return p
}

// claim is a mapping that redirects, or waits.
type claim struct {
	element
	place uint32 // in the queue, from 1; 0 if it redirects
}

// behind is the place of a claim behind all others.
const behind = math.MaxUint32

// shadows reports whether another claim of the same host port waits for c, which is older: both are for the
// same addresses, or c is for every one. Of claims with the same order, the one of a single address does not
// wait for the one of every address.
func (c *claim) shadows(other *claim) bool {
	everywhere := c.set == c.set.table.hostPorts && c.order < other.order
	return c.owner != other.owner && (everywhere || c.element.place() == other.element.place())
}

// compare compares claims of one host port by their age.
func (c claim) compare(other claim) int {
	return cmp.Or(cmp.Compare(c.order, other.order), cmp.Compare(c.place, other.place))
}

// arrange divides the claims of one host port into those that redirect, and those that wait because an
// older one has their packets, from the oldest to the newest.
func arrange(claims []claim) (redirect, wait []claim) {
	claims = slices.SortedStableFunc(slices.Values(claims), claim.compare)
	for i := range claims {
		c := &claims[i]
		again := func(o claim) bool { return o.owner == c.owner && o.element.place() == c.element.place() }
		switch {
		case slices.ContainsFunc(claims[:i], again):
		case slices.ContainsFunc(claims[:i], func(o claim) bool { return o.shadows(c) }):
			wait = append(wait, *c)
		default:
			redirect = append(redirect, *c)
		}
	}
	return redirect, wait
}

// rearrange adds to the change what turns the claims of one host port into others. It returns those that
// wait.
func (c *change) rearrange(before, after []claim) (wait []claim) {
	redirect, wait := arrange(after)
	end := uint32(0)
	for _, b := range before {
		end = max(end, b.place)
		if b.place == 0 && !slices.ContainsFunc(redirect, func(r claim) bool { return r.element == b.element }) {
			c.remove = append(c.remove, b.element)
		}
	}
	for _, r := range redirect {
		if !slices.Contains(before, claim{element: r.element}) {
			c.add = append(c.add, r.element)
		}
	}
	for i := range wait {
		w := &wait[i]
		if w.place == 0 || w.place == behind {
			end++
			w.place = end
		}
		if !slices.Contains(before, *w) {
			c.add = append(c.add, w.standby(w.place))
		}
	}
	for _, b := range before {
		if b.place != 0 && !slices.Contains(wait, b) {
			c.remove = append(c.remove, b.standby(b.place))
		}
	}
	return wait
}

// claims returns the claims of the host ports of the mappings in list. Of those that redirect packets to
// one address, it has the ones for the addresses in list, and for those of mappings that wait.
func (r *Ruleset) claims(ctx context.Context, list []element) (map[hostPort][]claim, error) {
	claims, waiting := map[hostPort][]claim{}, map[hostPort][]claim{}
	var keys []element
	seen := map[place]bool{}
	look := func(e element) {
		if !seen[e.place()] {
			seen[e.place()] = true
			keys = append(keys, e)
		}
	}
	for i := range list {
		claims[list[i].hostPort()] = nil
		look(list[i])
		look(list[i].everywhere())
	}
	for _, t := range tables {
		if !t.used(list) {
			continue
		}
		queued, err := r.dumpElements(ctx, t.standby, func(e *element) bool { return e.owner != "" })
		if err != nil {
			return nil, err
		}
		for _, q := range queued {
			e := q.active()
			if _, of := claims[e.hostPort()]; of {
				waiting[e.hostPort()] = append(waiting[e.hostPort()], claim{e, binary.NativeEndian.Uint32(q.key[t.addrLen+8:])})
				look(e)
			}
		}
	}
	found, err := r.lookUp(ctx, keys)
	for _, e := range found {
		if e.set != nil {
			claims[e.hostPort()] = append(claims[e.hostPort()], claim{element: e})
		}
	}
	for p, queue := range waiting {
		claims[p] = append(claims[p], queue...)
	}
	return claims, err
}

// portChange is a change of host ports that other attachments have or may have requested: the mappings that an
// attachment gets, and those that attachments lose.
type portChange struct {
	join, leave []element
	on          terms
	in          map[*table]bool // the tables in which attachments share host ports
	contested   map[hostPort]bool
}

// contest finds the host ports that others have, or may wait for. found[i] is the existing element with the key
// of list[i], everywhere are those for its mappings on every address.
func (n *portChange) contest(list, found, everywhere []element) {
	for i := range list {
		want := &list[i]
		if !want.isMapping() {
			continue
		}
		if ofOther(want, &found[i]) || ofOther(want, &everywhere[0]) {
			n.contested[want.hostPort()] = true
		}
		everywhere = everywhere[1:]
	}
}

// has reports whether an element is a mapping of a host port that others have, or may wait for.
func (n *portChange) has(e *element) bool {
	return e.isMapping() && (n.in[e.set.table] || n.contested[e.hostPort()])
}

// uncontested adds the mappings in gone to those that attachments lose, and returns the existing ones of the
// other elements that belong to their owners.
func (n *portChange) uncontested(gone, existing []element) []element {
	var others, found []element
	for i := range gone {
		if n.has(&gone[i]) {
			n.leave = append(n.leave, gone[i])
		} else {
			others, found = append(others, gone[i]), append(found, existing[i])
		}
	}
	return owned(others, found)
}

// settlePorts adds to the change what the host ports of n need, considering the claims of all attachments.
func (r *Ruleset) settlePorts(ctx context.Context, c *change, n *portChange) error {
	if len(n.join)+len(n.leave) == 0 {
		return nil
	}
	claims, err := r.claims(ctx, slices.Concat(n.join, n.leave))
	if err != nil {
		return err
	}
	for _, m := range slices.Concat(n.join, n.leave) {
		p := m.hostPort()
		before, open := claims[p]
		if !open {
			continue
		}
		delete(claims, p)
		waits, err := c.settlePort(before, p, n)
		if err != nil {
			return err
		}
		if waits && !n.in[p.table] {
			n.in[p.table] = true
			c.add = append(c.add, p.table.sharing())
		}
	}
	return nil
}

// settlePort adds to the change what one host port needs, given the claims that exist. It reports whether
// any waits afterwards.
func (c *change) settlePort(before []claim, p hostPort, n *portChange) (waits bool, err error) {
	after := slices.DeleteFunc(slices.Clone(before), func(is claim) bool {
		return slices.ContainsFunc(n.leave, func(l element) bool {
			return is.element.place() == l.place() && (is.owner == l.owner || is.owner == "" && is.value == l.value)
		})
	})
	had := slices.Clone(after)
	for i := range n.join {
		if n.join[i].hostPort() == p {
			after = joined(after, n.join[i], n.on)
		}
	}
	wait := c.rearrange(before, after)
	for _, w := range wait {
		if !slices.ContainsFunc(n.join, func(want element) bool { return w.isOf(&want) }) ||
			slices.ContainsFunc(had, func(h claim) bool { return h.isOf(&w.element) }) {
			continue
		}
		for _, older := range had {
			if older.shadows(&w) && older.compare(w) < 0 && (!n.on.permit(&w.element, &older.element) || len(wait) > maxStandby) {
				return false, taken(&w.element, &older.element)
			}
		}
	}
	return len(wait) > 0, nil
}

// isOf reports whether a claim is that of a mapping's owner for the same key.
func (c *claim) isOf(m *element) bool { return c.owner == m.owner && c.element.place() == m.place() }

// ofOther reports whether an existing element belongs to another owner than the wanted one, or differs
// from it without an owner.
func ofOther(want, is *element) bool {
	return is.set != nil && is.owner != want.owner && (is.owner != "" || is.value != want.value)
}

// joined returns claims with that of one more mapping. Without an Order it is behind all that have its
// packets.
func joined(claims []claim, want element, on terms) []claim {
	same := func(c claim) bool { return c.element.place() == want.place() }
	own := func(c claim) bool { return c.isOf(&want) || same(c) && c.owner == "" && c.value == want.value }
	if at := slices.IndexFunc(claims, own); at >= 0 {
		is := claims[at]
		want.order = max(want.order, is.order)
		return append(slices.DeleteFunc(claims, own), claim{want, is.place})
	}
	for _, c := range claims {
		everywhere := c.set == c.set.table.hostPorts && !on.mayNarrow && !sameContainer(c.owner, want.owner)
		switch {
		case same(c) && !on.ordered:
			want.order = max(want.order, c.order)
		case everywhere && !same(c) && (want.order == c.order || !on.ordered): // else it would not wait
			want.order = max(want.order, c.order+1)
		}
	}
	return append(claims, claim{want, behind})
}

// waiting reports which of the mappings in list wait because an older one has their packets. found are the
// existing elements with their keys.
func (r *Ruleset) waiting(ctx context.Context, list, found []element) (map[int]bool, error) {
	var lost []element
	for i := range list {
		if list[i].isMapping() && (found[i].set == nil || found[i].owner != list[i].owner) {
			lost = append(lost, list[i])
		}
	}
	if len(lost) == 0 {
		return nil, nil
	}
	claims, err := r.claims(ctx, lost)
	if err != nil {
		return nil, err
	}
	waiting := map[int]bool{}
	for i := range list {
		if !list[i].isMapping() {
			continue
		}
		_, wait := arrange(claims[list[i].hostPort()])
		waiting[i] = slices.ContainsFunc(wait, func(w claim) bool {
			return w.place != 0 && w.owner == list[i].owner && w.element.place() == list[i].place() && w.value == list[i].value
		})
	}
	return waiting, nil
}

// Waiting returns the mappings of an attachment that do not redirect, because an older attachment has
// the host port.
func (r *Ruleset) Waiting(ctx context.Context, e *Elements) ([]Mapping, error) {
	var list []Mapping
	all, err := e.elements()
	var found []element
	if err == nil {
		all = slices.DeleteFunc(all, func(e element) bool { return !e.isMapping() })
		found, err = r.lookUp(ctx, all)
	}
	if err != nil {
		return nil, fmt.Errorf("look for host ports of %s that wait: %w", e.Owner, err)
	}
	for i := range all {
		if found[i].set == nil || found[i].owner != all[i].owner {
			list = append(list, all[i].mapping())
		}
	}
	return list, nil
}

// del removes the elements that exist and belong to the owner. If attachments share
// host ports it looks again, because another attachment may have begun to wait for one
// in the meantime.
func (r *Ruleset) del(ctx context.Context, list []element) error {
	return r.remove(ctx, slices.DeleteFunc(list, func(e element) bool { return e.set.shared }))
}

// remove is del, also for elements that attachments share.
func (r *Ruleset) remove(ctx context.Context, list []element) error {
	for i := range list {
		list[i] = list[i].active()
	}
	var err error
	for range attempts {
		var c change
		if c, err = r.settle(ctx, nil, list, terms{}); err != nil || c.empty() {
			return err
		}
		err = r.apply(ctx, c)
		if err == nil {
			in, err := r.shared(ctx, c.remove)
			if err != nil || len(in) == 0 {
				return err
			}
			continue
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return err
}
