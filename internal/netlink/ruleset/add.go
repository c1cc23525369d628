package ruleset

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// attempts is the maximum number of tries of a change with which other processes can
// interfere.
const attempts = 10

// change contains the elements that one transaction removes, and those that it then
// adds.
type change struct{ remove, add []element }

func (c *change) empty() bool { return len(c.remove)+len(c.add) == 0 }

func (r *Ruleset) apply(ctx context.Context, c change) error {
	return r.transaction(ctx, func(b *sock.Requests) {
		putElements(b, c.remove, unix.NFT_MSG_DELSETELEM)
		putElements(b, c.add, unix.NFT_MSG_NEWSETELEM)
	})
}

// Add adds the elements in one transaction, and makes missing tables. It is idempotent:
// elements that the owner already has are changed to the given values.
//
// If another container has the host port of a mapping, Add returns a *PortTakenError
// and adds nothing. Unless MayNarrow is set, it does the same for a host port of one
// address if another container has the port on every address. The reverse is not checked:
// a new host port of every address leaves the existing host ports of single addresses as
// they are. With MayWait, or if the other one is an attachment of the same container, the mapping
// waits instead until that attachment is removed, or takes the host port over: see Order. If two
// mappings give one host port different destinations, the error has the CNI code of an invalid
// configuration. If another attachment that exists has an address, Add returns
// ErrAddressTaken and adds nothing. An address of an owner whose attachment does not exist becomes
// one of this owner, because it was assigned again: see Attached.
func (r *Ruleset) Add(ctx context.Context, e *Elements) error {
	list, err := e.elements()
	waits := false
	if err == nil {
		waits, err = r.checkEverywhere(ctx, list, r.termsOf(e))
	}
	if err == nil {
		err = r.add(ctx, list, r.termsOf(e), waits)
	}
	if err == nil {
		err = r.restoreRulesOf(ctx, list)
	}
	if err != nil {
		return fmt.Errorf("add elements of %s: %w", e.Owner, err)
	}
	return nil
}

// Extend adds elements for an attachment that has others. In the same transaction, those in
// present are added where they are missing. It does not make tables: if one is missing,
// errors.Is finds ENOENT. If one of more exists, or has to wait, errors.Is finds EEXIST. After an error,
// nothing has changed. It returns a *PortTakenError as Add does.
func (r *Ruleset) Extend(ctx context.Context, present []*Elements, more *Elements) error {
	var had []element
	for _, e := range present {
		list, err := e.elements()
		if err != nil {
			return fmt.Errorf("extend elements of %s: %w", e.Owner, err)
		}
		had = append(had, list...)
	}
	list, err := more.elements()
	waits := false
	if err == nil {
		waits, err = r.checkEverywhere(ctx, list, r.termsOf(more))
	}
	if waits {
		err = unix.EEXIST
	}
	if err == nil && len(had)+len(list) > 0 {
		err = r.transaction(ctx, func(b *sock.Requests) {
			putElementsWith(b, had, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE)
			putElements(b, list, unix.NFT_MSG_NEWSETELEM)
		})
	}
	if err == nil {
		err = r.restoreRulesOf(ctx, append(had, list...))
	}
	if err != nil {
		return fmt.Errorf("extend elements of %s: %w", more.Owner, err)
	}
	return nil
}

// checkEverywhere returns a *PortTakenError for a new host port of one address if
// another container has the port on every address: the new mapping would take over some
// of its clients. If the mapping may wait instead, it reports that. With MayNarrow it does nothing.
func (r *Ruleset) checkEverywhere(ctx context.Context, list []element, on terms) (waits bool, err error) {
	if on.mayNarrow {
		return false, nil
	}
	var pairs []element
	for _, e := range list {
		if e.set == e.set.table.hostIPPorts {
			pairs = append(pairs, e, e.everywhere())
		}
	}
	if len(pairs) == 0 {
		return false, nil
	}
	found, err := r.lookUp(ctx, pairs)
	if err != nil {
		return false, err
	}
	for i := 0; i < len(pairs); i += 2 {
		want, is, all := &pairs[i], &found[i], &found[i+1]
		there := is.set != nil && is.owner == want.owner
		if there || all.set == nil || all.owner == want.owner {
			continue
		}
		if !on.permit(want, all) {
			return false, taken(want, all)
		}
		waits = true
	}
	return waits, nil
}

// add first assumes the usual case: all elements are new, and the tables exist. Only if
// the kernel refuses that, or if the caller knows that mappings have to wait, it looks up what
// exists. If mappings have to wait, it looks them up again, because the mappings that they wait for
// may have been removed in the meantime.
func (r *Ruleset) add(ctx context.Context, list []element, on terms, waits bool) error {
	c, err := change{add: list}, error(unix.EEXIST)
	if !waits {
		err = r.apply(ctx, c)
	}
	for try := 0; try < attempts && (err != nil || c.waits()); try++ {
		missing, exists := errors.Is(err, unix.ENOENT), errors.Is(err, unix.EEXIST)
		if err != nil && !missing && !exists {
			return err
		}
		if missing {
			if err := r.ensure(ctx, list); err != nil {
				return err
			}
		}
		var settleErr error
		if c, settleErr = r.settle(ctx, list, nil, on); settleErr != nil {
			return settleErr
		}
		err = r.apply(ctx, c)
	}
	return err
}

// waits reports whether the change adds mappings that wait.
func (c *change) waits() bool {
	return slices.ContainsFunc(c.add, func(e element) bool { return e.set == e.set.table.standby })
}

// ensure makes the tables of the elements where they are missing or incomplete.
func (r *Ruleset) ensure(ctx context.Context, list []element) error {
	for _, t := range every {
		if !t.used(list) {
			continue
		}
		if err := r.ensureTable(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// used reports whether any of the elements is in the table.
func (t *table) used(list []element) bool {
	for i := range list {
		if list[i].set.table == t {
			return true
		}
	}
	return false
}

// settle compares the elements with the existing ones, and returns the change that adds those in list, and
// removes those in gone that belong to their owners. For each host port that is freed, the change activates
// the first attachment that waits for it.
func (r *Ruleset) settle(ctx context.Context, list, gone []element, on terms) (change, error) {
	var c change
	parts, err := r.lookUpParts(ctx, list, gone, ends(list), sharingOf(slices.Concat(list, gone)), everywhereOf(list))
	if err != nil {
		return c, err
	}
	found, atEnd := parts[0], parts[2]
	n := &portChange{on: on, in: tablesOf(parts[3]), contested: map[hostPort]bool{}}
	n.contest(list, found, parts[4])
	seen := make(map[place]*element, len(list))
	others := holders{list: r.attached}
	for i := range list {
		want, is := &list[i], &found[i]
		if want.set.interval {
			if err := r.settleInterval(ctx, &c, want, [2]*element{is, &atEnd[0]}); err != nil {
				return c, err
			}
			atEnd = atEnd[1:]
			continue
		}
		if twin := seen[want.place()]; twin != nil {
			if twin.value != want.value && want.isMapping() {
				return c, requestedTwice(want.mapping(), twin.mapping())
			}
			continue
		}
		seen[want.place()] = want
		if n.has(want) {
			n.join = append(n.join, *want)
			continue
		}
		if err := others.requireFree(want, is); err != nil {
			return c, err
		}
		if err := c.settle(want, is); err != nil {
			return c, err
		}
	}
	c.remove = append(c.remove, n.uncontested(gone, parts[1])...)
	return c, r.settlePorts(ctx, &c, n)
}

// lookUpParts is lookUp of several lists at once.
func (r *Ruleset) lookUpParts(ctx context.Context, lists ...[]element) ([][]element, error) {
	found, err := r.lookUp(ctx, slices.Concat(lists...))
	parts := make([][]element, len(lists))
	for i, list := range lists {
		parts[i], found = found[:len(list)], found[len(list):]
	}
	return parts, err
}

// everywhereOf returns the elements for the host ports of the mappings in list on every address.
func everywhereOf(list []element) []element {
	var all []element
	for i := range list {
		if list[i].isMapping() {
			all = append(all, list[i].everywhere())
		}
	}
	return all
}

// settle adds to the change what one element needs, given the existing element with the
// same key. If there is none, the set of the existing element is nil.
func (c *change) settle(want, is *element) error {
	switch {
	case is.set == nil:
	case is.owner == want.owner && is.value == want.value && is.network == want.network && is.zone == want.zone:
		return nil
	case want.isMapping() && ofOther(want, is):
		return taken(want, is)
	default:
		c.remove = append(c.remove, *is)
	}
	c.add = append(c.add, *want)
	return nil
}

// settleInterval adds to the change what an element of a set of intervals needs. at are
// the existing elements at its first and at its last address.
func (r *Ruleset) settleInterval(ctx context.Context, c *change, want *element, at [2]*element) error {
	if want.set == want.set.table.networks {
		return r.settleNetwork(ctx, c, want, at)
	}
	return c.settleExemption(want, at)
}

// settleExemption adds to the change what one exemption needs. The kernel refuses one
// that begins or ends within another.
func (c *change) settleExemption(want *element, at [2]*element) error {
	for _, other := range at {
		switch {
		case other.set == nil:
		case other.covers(want):
			return nil
		case !want.covers(other):
			return fmt.Errorf("%s overlaps with the existing %s: give both networks the same exceptions", want, other)
		}
	}
	for _, other := range at {
		if other.set != nil && !slices.Contains(c.remove, *other) {
			c.remove = append(c.remove, *other)
		}
	}
	if !slices.Contains(c.add, *want) {
		c.add = append(c.add, *want)
	}
	return nil
}

// settleNetwork adds to the change what one network needs. at are the existing networks
// at its first and at its last address. The kernel refuses a network that begins or
// ends within another one. An existing larger network is kept while one of its
// addresses uses it; smaller networks are removed.
func (r *Ruleset) settleNetwork(ctx context.Context, c *change, want *element, at [2]*element) error {
	wanted := []element{*want}
	if larger := at[0]; larger.set != nil && larger.covers(want) {
		if want.covers(larger) {
			return nil
		}
		inside, used, err := r.networksOf(ctx, larger)
		if err != nil || used {
			return err
		}
		wanted = outermost(append(inside, *want))
	}
	for _, other := range at {
		if other.set != nil && !slices.Contains(c.remove, *other) {
			c.remove = append(c.remove, *other)
		}
	}
	for _, one := range wanted {
		if !slices.Contains(c.add, one) {
			c.add = append(c.add, one)
		}
	}
	return nil
}

// networksOf returns the networks of the addresses within larger, an existing network,
// and whether larger is still the network of any of them. It reads all addresses;
// networks that contain other networks are rare.
func (r *Ruleset) networksOf(ctx context.Context, larger *element) (inside []element, used bool, err error) {
	t := larger.set.table
	first, end := larger.address(), string(larger.end[:t.addrLen])
	for _, s := range append(t.published(), t.masqueraded, t.publishedOnly) {
		list, err := r.dumpSet(ctx, s, func(names.Owner) bool { return true })
		if err != nil {
			return nil, false, err
		}
		for _, e := range list {
			if e.address().Less(first) || string(e.key[:t.addrLen]) > end {
				continue
			}
			if e.network == 0 {
				return nil, true, nil
			}
			one := t.network(netip.PrefixFrom(e.address(), int(e.network)-1))
			if one.covers(larger) {
				return nil, true, nil
			}
			inside = outermost(append(inside, one))
		}
	}
	return inside, false, nil
}

// ends returns the last addresses of the networks in list, as elements to look up.
func ends(list []element) []element {
	var last []element
	for _, e := range list {
		if e.set.interval {
			e.key = e.end
			last = append(last, e)
		}
	}
	return last
}

func (e *element) isMapping() bool {
	return e.set == e.set.table.hostPorts || e.set == e.set.table.hostIPPorts
}

// taken returns the error for a mapping whose host port the element by has.
func taken(want, by *element) error {
	owner, _ := names.ParseOwner(by.owner)
	return portTaken(want.mapping(), owner)
}

// lookUp returns the existing elements with the keys of those in list, in the same
// order. Where there is none, the set of the returned element is nil.
func (r *Ruleset) lookUp(ctx context.Context, list []element) ([]element, error) {
	found := make([]element, len(list))
	var failed error
	err := r.get(ctx, len(list), func(b *sock.Requests, i int) {
		nest := beginElements(b, list[i].set, unix.NFT_MSG_GETSETELEM, 0)
		list[i].put(b, false)
		b.End(nest)
	}, func(i int, payload []byte, err error) {
		switch {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			failed = errors.Join(failed, err)
		default:
			eachElement(payload, func(attrs []byte) { found[i] = readElement(list[i].set, attrs) })
		}
	})
	return found, errors.Join(err, failed)
}
