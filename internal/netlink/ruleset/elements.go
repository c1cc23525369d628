package ruleset

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// lister makes the elements of an attachment, and keeps the first error.
type lister struct {
	owner string
	order uint32 // of mappings
	// removing is true if the elements are to be removed. Then a published address
	// is listed in all sets that can contain it.
	removing bool
	// replacing is true if they are replaced: then all elements of ports are known.
	replacing bool
	list      []element
	err       error
}

// elements returns the elements to add, with those of the same set in a row.
func (e *Elements) elements() ([]element, error) {
	return e.listTo(&lister{owner: e.Owner.String(), order: uint32(max(e.Order-1, 0))})
}

// remains returns the elements that can exist if Add was called before.
func (e *Elements) remains() ([]element, error) {
	return e.listTo(&lister{owner: e.Owner.String(), removing: true})
}

func (e *Elements) listTo(l *lister) ([]element, error) {
	if len(e.Zone) > maxZone {
		l.fail("the name of firewalld's zone is longer than %d bytes", maxZone)
	}
	l.list = make([]element, 0, 2*(len(e.Masquerade)+len(e.Published))+len(e.Mappings)+len(e.Open)+2*len(e.PublishedOnly)+len(e.Announced)+4*len(e.Guarded)+len(e.Known)+6*len(e.Policed)+8*len(e.Ports))
	for _, t := range policyTables {
		l.policies(t, e)
	}
	l.needing(needy, e.Policed)
	for _, t := range tables {
		l.addresses(t, e)
		l.routes(t, e.Announced)
		l.mappings(t, e.Mappings)
		l.networks(t, e)
		l.exemptions(t, e.Exempt)
		l.guards(t, e.Guarded)
		for _, link := range e.Unfragmented {
			l.add(t.unfragmented, linkName(link))
		}
	}
	l.ports(e.Ports)
	l.policedPorts(e.Policed)
	return l.list, l.err
}

func (l *lister) fail(format string, args ...any) {
	if l.err == nil {
		l.err = fmt.Errorf(format, args...)
	}
}

// addresses adds the elements of Masquerade, Published, Open and PublishedOnly.
func (l *lister) addresses(t *table, e *Elements) {
	for _, p := range e.Masquerade {
		l.within(t, t.masqueraded, p)
	}
	for _, s := range t.published() {
		for i := range e.Published {
			l.published(t, s, &e.Published[i])
		}
	}
	for _, a := range e.Open {
		if one := l.address(t, t.open, a); one != nil {
			one.zone = e.Zone
		}
	}
	for _, p := range e.PublishedOnly {
		l.within(t, t.publishedOnly, p)
	}
}

// published adds an address to s, one of the sets of published addresses, if it belongs
// there or removing is true.
func (l *lister) published(t *table, s *set, p *Published) {
	own, known := map[SNAT]*set{SNATAll: t.snatAll, SNATLocal: t.snatLocal, SNATNone: t.snatNone}[p.SNAT]
	if !known {
		l.fail("published address %s: no such SNAT as %q", p.Address, p.SNAT)
		return
	}
	if l.removing || s == own {
		l.within(t, s, p.Address)
	}
}

// published returns the sets of the addresses to which host ports lead.
func (t *table) published() []*set { return []*set{t.snatAll, t.snatLocal, t.snatNone} }

// within adds an address with the prefix length of its network.
func (l *lister) within(t *table, s *set, p netip.Prefix) {
	e := l.address(t, s, p.Addr())
	if p = unmap(p); e != nil && p.IsValid() {
		e.network = uint8(p.Bits()) + 1
	}
}

func unmap(p netip.Prefix) netip.Prefix {
	if a := p.Addr(); a.Is4In6() {
		return netip.PrefixFrom(a.Unmap(), p.Bits()-96)
	}
	return p
}

// address adds an element for an address of the table's family. It returns nil for an
// address of the other family.
func (l *lister) address(t *table, s *set, a netip.Addr) *element {
	if !a.IsValid() {
		l.fail("%s: an address is missing", s.label)
		return nil
	}
	if a = a.Unmap(); tableOf(a) != t {
		return nil
	}
	return l.add(s, a.AsSlice())
}

func (l *lister) add(s *set, keys ...[]byte) *element {
	l.list = append(l.list, element{set: s})
	e := &l.list[len(l.list)-1]
	if !s.shared {
		e.owner = l.owner
	}
	at := 0
	for _, k := range keys {
		at += (copy(e.key[at:], k) + 3) &^ 3
	}
	return e
}

// mappings adds first the host ports of every address, and then those of single
// addresses.
func (l *lister) mappings(t *table, list []Mapping) {
	for _, s := range []*set{t.hostPorts, t.hostIPPorts} {
		for i := range list {
			l.mapping(t, s, &list[i])
		}
	}
}

func (l *lister) mapping(t *table, s *set, m *Mapping) {
	to, host := m.To.Addr().Unmap(), m.HostIP.Unmap()
	switch {
	case !to.IsValid():
		l.fail("%s: the address is missing", m)
		return
	case host.IsValid() && host.Is4() != to.Is4():
		l.fail("%s: %s is of another family", m, to)
		return
	case tableOf(to) != t || (s == t.hostPorts) != (!host.IsValid() || host.IsUnspecified()):
		return
	}
	protocol := []byte{m.Protocol, 0, 0, 0}
	port := binary.BigEndian.AppendUint16(nil, m.HostPort)
	var e *element
	if s == t.hostPorts {
		e = l.add(s, protocol, port)
	} else {
		e = l.add(s, host.AsSlice(), protocol, port)
	}
	e.order = l.order
	n := copy(e.value.data[:], to.AsSlice())
	binary.BigEndian.PutUint16(e.value.data[n:], m.To.Port())
}

// networks adds every network once, except for a network within another one.
func (l *lister) networks(t *table, e *Elements) {
	first := len(l.list)
	add := func(p netip.Prefix) {
		if p = unmap(p); !p.IsValid() {
			l.fail("%s: %s is not a network", t.networks.label, p)
			return
		}
		if tableOf(p.Addr()) == t {
			l.list = append(l.list, t.network(p))
			l.list = l.list[:first+len(outermost(l.list[first:]))]
		}
	}
	for _, p := range slices.Concat(e.Masquerade, e.PublishedOnly) {
		add(p)
	}
	for _, p := range e.Published {
		add(p.Address)
	}
}

// network returns the element for a network.
func (t *table) network(p netip.Prefix) element {
	return t.pair(t.networks, p, p)
}

// pair returns the element for packets from one network to another.
func (t *table) pair(s *set, from, to netip.Prefix) element {
	from, to = from.Masked(), to.Masked()
	e := element{set: s}
	copy(e.key[copy(e.key[:], from.Addr().AsSlice()):], to.Addr().AsSlice())
	copy(e.end[copy(e.end[:], last(from)):], last(to))
	return e
}

// outermost removes the last network in list if one of the others contains it, and
// otherwise the others that it contains.
func outermost(list []element) []element {
	known, one := list[:len(list)-1], list[len(list)-1]
	if slices.ContainsFunc(known, func(e element) bool { return e.covers(&one) }) {
		return known
	}
	return append(slices.DeleteFunc(known, func(e element) bool { return one.covers(&e) }), one)
}

// last returns the last address of a network.
func last(p netip.Prefix) []byte {
	a := p.Addr().AsSlice()
	for i := range a {
		if bits := p.Bits() - 8*i; bits < 8 {
			a[i] |= 0xff >> max(bits, 0)
		}
	}
	return a
}

// exemptions adds every exemption once, except for one within another.
func (l *lister) exemptions(t *table, list []Exemption) {
	first := len(l.list)
	for _, x := range list {
		from, to := unmap(x.From), unmap(x.To)
		if !from.IsValid() || !to.IsValid() || from.Addr().Is4() != to.Addr().Is4() {
			l.fail("%s: %s and %s are not networks of one family", t.exempt.label, from, to)
			return
		}
		if tableOf(from.Addr()) == t {
			l.list = append(l.list, t.pair(t.exempt, from, to))
			l.list = l.list[:first+len(outermost(l.list[first:]))]
		}
	}
}

// guards adds the bridges, which are in the tables of both families.
func (l *lister) guards(t *table, list []Guard) {
	for _, g := range list {
		if len(g.Bridge) == 0 || len(g.Bridge) >= unix.IFNAMSIZ {
			l.fail("%s: %q is not the name of a bridge", t.guarded.label, g.Bridge)
			return
		}
		l.add(t.guarded, []byte(g.Bridge))
	}
	for _, g := range list {
		name := linkName(g.Bridge)
		one := l.add(t.guards, name, name)
		one.verdict = int32(expr.VerdictReturn)
		if g.Isolated {
			one.verdict = int32(expr.VerdictDrop)
		}
	}
}
