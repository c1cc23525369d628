package ruleset

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Restored is the result of Restore. The indexes are those of the list that it got.
type Restored struct {
	// Changed are the attachments of which an element, or the table that contains it,
	// was missing or differed.
	Changed []int
	// Unsettled are the attachments that Restore left out, because a host port or an
	// address of theirs belongs to another attachment. Add decides about them.
	Unsettled []int
}

// Restore is Add of many attachments in one transaction, which also makes the tables
// where they are missing or incomplete. So a packet sees either none or all of the
// restored elements. It changes nothing if everything is there. If attachments have the
// same host port, the one with the lowest Order gets it, and of equal ones the first in the list.
//
// If the kernel does not let the process send so large a transaction, Restore makes the
// tables first and adds the elements in parts.
func (r *Ruleset) Restore(ctx context.Context, list []*Elements) (*Restored, error) {
	var err error
	for try := range attempts {
		var n *restoration
		if n, err = r.compare(ctx, list); err != nil {
			break
		}
		n.sets = try > 0 // a set that no rule uses may be missing
		if err = r.aroundPorts(ctx, slices.Contains(n.tables, ports), func() error { return n.apply(ctx, r) }); err == nil {
			for _, t := range n.tables {
				if is := n.is[t]; is.exists && len(t.problems(is)) > 0 {
					r.madeAgain(ctx, t)
				}
			}
			return n.result(len(list)), nil
		}
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	return nil, fmt.Errorf("restore elements of %d attachments: %w", len(list), err)
}

// restoration is the difference between the tables as they are and as they should be.
type restoration struct {
	tables []*table // that the elements are in
	is     map[*table]*state
	sets   bool // make missing sets of complete tables, too
	change

	changed, unsettled map[int]bool
}

// wish is an element together with the attachment that wants it.
type wish struct {
	element
	by int
}

// compare reads the tables, and finds out what is missing.
func (r *Ruleset) compare(ctx context.Context, list []*Elements) (*restoration, error) {
	n := &restoration{is: map[*table]*state{}, changed: map[int]bool{}, unsettled: map[int]bool{}}
	wishes := n.wishes(list)
	for _, t := range every {
		mine := wishes[t]
		if len(mine) == 0 {
			continue
		}
		is, err := r.inspect(ctx, t)
		if err != nil {
			return nil, err
		}
		n.tables, n.is[t] = append(n.tables, t), is
		if len(t.problems(is)) > 0 {
			for i := range mine {
				n.changed[mine[i].by] = true
			}
		}
		if err := n.settle(ctx, r, is, mine); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// wishes lists the elements of all attachments by table, with those of one set in a row
// and no key twice.
func (n *restoration) wishes(list []*Elements) map[*table][]wish {
	type interval struct {
		place
		end key
	}
	seen := map[interval]int{}
	bySet := map[*set][]wish{}
	for _, i := range byOrder(list) {
		elements, err := list[i].elements()
		if err != nil {
			n.unsettled[i] = true
			continue
		}
		for _, one := range elements {
			at := interval{one.place(), one.end}
			first, known := seen[at]
			if one.isMapping() && one.set != one.set.table.hostPorts {
				all := one.everywhere()
				if at, is := seen[interval{place: all.place()}]; is && (&claim{element: bySet[all.set][at].element}).shadows(&claim{element: one}) {
					n.unsettled[i] = true
					continue
				}
			}
			if !known {
				seen[at] = len(bySet[one.set])
				bySet[one.set] = append(bySet[one.set], wish{one, i})
			} else if other := &bySet[one.set][first]; other.owner != one.owner || other.value != one.value {
				n.unsettled[i] = true
			}
		}
	}
	wishes := map[*table][]wish{}
	for _, t := range every {
		if t.networks != nil {
			bySet[t.networks], bySet[t.exempt] = outermostWishes(bySet[t.networks]), outermostWishes(bySet[t.exempt])
		}
		for _, s := range t.sets {
			wishes[t] = append(wishes[t], bySet[s]...)
		}
	}
	return wishes
}

// byOrder returns the indexes of a list, those of attachments with a lower Order first.
func byOrder(list []*Elements) []int {
	indexes := make([]int, len(list))
	for i := range list {
		indexes[i] = i
	}
	slices.SortStableFunc(indexes, func(a, b int) int { return max(list[a].Order, 1) - max(list[b].Order, 1) })
	return indexes
}

// outermostWishes removes intervals within other ones.
func outermostWishes(list []wish) []wish {
	return slices.DeleteFunc(slices.Clone(list), func(w wish) bool {
		return slices.ContainsFunc(list, func(o wish) bool { return (o.key != w.key || o.end != w.end) && o.covers(&w.element) })
	})
}

// settle adds to the change what the wishes for one table need.
func (n *restoration) settle(ctx context.Context, r *Ruleset, is *state, wishes []wish) error {
	list := make([]element, len(wishes))
	for i := range wishes {
		list[i] = wishes[i].element
	}
	if !is.exists {
		n.add = append(n.add, list...)
		return nil
	}
	parts, err := r.lookUpParts(ctx, list, ends(list), everywhereOf(list))
	if err != nil {
		return err
	}
	found, atEnd, all := parts[0], parts[1], parts[2]
	for i := range list {
		before := len(n.add)
		want, is := &list[i], &found[i]
		shadowed := false
		if want.isMapping() {
			shadowed = ofOther(want, &all[0]) && is.owner != want.owner
			all = all[1:]
		}
		switch {
		case want.set.interval:
			err = r.settleInterval(ctx, &n.change, want, [2]*element{is, &atEnd[0]})
			atEnd = atEnd[1:]
		case shadowed, is.set != nil && is.owner != "" && is.owner != want.owner, n.change.settle(want, is) != nil:
			n.unsettled[wishes[i].by] = true
		}
		if err != nil {
			return err
		}
		if len(n.add) > before {
			n.changed[wishes[i].by] = true
		}
	}
	return nil
}

// apply makes the change in one transaction, or in several if that is too large for
// the process.
func (n *restoration) apply(ctx context.Context, r *Ruleset) error {
	for _, t := range n.tables {
		if n.is[t].exists && n.is[t].flags != 0 { // see rebuild
			if err := r.socket.Transaction(ctx, func(b *sock.Requests) { t.put(b, 0) }); err != nil {
				return err
			}
		}
	}
	if !slices.Contains(n.tables, ports) { // or build makes it first
		if err := r.reservePorts(ctx, n.tables...); err != nil {
			return err
		}
	}
	err := r.socket.Transaction(ctx, func(b *sock.Requests) {
		n.build(b)
		putElements(b, n.remove, unix.NFT_MSG_DELSETELEM)
		putElements(b, n.add, unix.NFT_MSG_NEWSETELEM)
	})
	if errors.Is(err, unix.EPERM) {
		return n.applyInParts(ctx, r)
	}
	return err
}

// partSize is a number of elements that fits into the smallest send buffer.
const partSize = 400

func (n *restoration) applyInParts(ctx context.Context, r *Ruleset) error {
	err := r.socket.Transaction(ctx, n.build)
	for part := range slices.Chunk(n.remove, partSize) {
		if err == nil {
			err = r.apply(ctx, change{remove: part})
		}
	}
	for part := range slices.Chunk(n.add, partSize) {
		if err == nil {
			err = r.apply(ctx, change{add: part})
		}
	}
	return err
}

// build appends the messages that make what is missing of the tables.
func (n *restoration) build(b *sock.Requests) {
	for _, t := range n.tables {
		switch is := n.is[t]; {
		case !is.exists:
			t.build(b, unix.NLM_F_EXCL, nil)
		case len(t.problems(is)) > 0:
			t.build(b, 0, is)
		case n.sets:
			t.putSets(b, 0)
		}
	}
}

func (n *restoration) result(attachments int) *Restored {
	done := &Restored{}
	for i := range attachments {
		if n.changed[i] {
			done.Changed = append(done.Changed, i)
		}
		if n.unsettled[i] {
			done.Unsettled = append(done.Unsettled, i)
		}
	}
	return done
}
