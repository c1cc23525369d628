package ruleset

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
)

// The attachments of one container share its host ports. The element of the first
// attachment redirects; the others are in the map standby_ports, in order. The
// transaction that removes the element of the first attachment activates the next one.
// No rule uses that map.

// maxStandby is the maximum number of attachments that wait for one host port.
const maxStandby = 16

// sameContainer reports whether two owners are attachments of one container.
func sameContainer(a, b string) bool {
	x, ok := names.ParseOwner(a)
	y, also := names.ParseOwner(b)
	return ok && also && x.ID != "" && x.Instance == y.Instance && (x.OfID(y.ID) || y.OfID(x.ID))
}

// standby returns the element of the standby map for a mapping that waits. place is its
// position in the queue, from 1.
func (e *element) standby(place int) element {
	t := e.set.table
	n := int(t.addrLen)
	w := element{set: t.standby, owner: e.owner, value: e.value}
	if e.set == t.hostIPPorts {
		copy(w.key[:], e.key[:n+8])
	} else {
		copy(w.key[n:], e.key[:8])
	}
	binary.NativeEndian.PutUint32(w.key[n+8:], uint32(place))
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
	a := element{set: t.hostIPPorts, owner: e.owner, value: e.value}
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

// queues returns the mappings that wait for each of the host ports, in order.
func (r *Ruleset) queues(ctx context.Context, ports []element) ([][]element, error) {
	queues := make([][]element, len(ports))
	longer := make([]int, len(ports))
	for i := range ports {
		longer[i] = i
	}
	for place := 1; place <= maxStandby && len(longer) > 0; place++ {
		list := make([]element, len(longer))
		for j, i := range longer {
			list[j] = ports[i].standby(place)
		}
		found, err := r.lookUp(ctx, list)
		if err != nil {
			return nil, err
		}
		var still []int
		for j, i := range longer {
			if found[j].set != nil {
				queues[i] = append(queues[i], found[j].active())
				still = append(still, i)
			}
		}
		longer = still
	}
	return queues, nil
}

// requeue adds to the change what turns one queue into another.
func (c *change) requeue(is, want []element) {
	for i := range is {
		if i >= len(want) || want[i] != is[i] {
			c.remove = append(c.remove, is[i].standby(i+1))
		}
	}
	for i := range want {
		if i >= len(is) || want[i] != is[i] {
			c.add = append(c.add, want[i].standby(i+1))
		}
	}
}

// waits reports whether a mapping has to wait, because the existing element with its
// key belongs to another attachment of the same container.
func waits(want, is *element) bool {
	return want.isMapping() && is.set != nil && is.owner != want.owner && sameContainer(want.owner, is.owner)
}

// settleQueues adds to the change what puts the mappings that have to wait into the
// queues, and removes the others from them. found[i] is the existing element with the
// key of list[i].
func (r *Ruleset) settleQueues(ctx context.Context, c *change, list, found []element) error {
	in, err := r.shared(ctx, list)
	if err != nil {
		return err
	}
	var ports, is []element
	seen := map[place]bool{}
	for i := range list {
		p := list[i].place()
		if list[i].isMapping() && !seen[p] && (in[p.set.table] || waits(&list[i], &found[i])) {
			seen[p] = true
			ports, is = append(ports, list[i]), append(is, found[i])
		}
	}
	queues, err := r.queues(ctx, ports)
	if err != nil {
		return err
	}
	for i := range ports {
		want, others := ports[i], slices.Clone(queues[i])
		at := slices.IndexFunc(others, func(e element) bool { return e.owner == want.owner })
		switch {
		case !waits(&want, &is[i]):
			others = slices.DeleteFunc(others, func(e element) bool { return e.owner == want.owner })
		case at >= 0:
			others[at] = want
		case len(others) == maxStandby:
			return taken(&want, &is[i])
		default:
			others = append(others, want)
		}
		if t := want.set.table; len(others) > 0 && !in[t] {
			in[t] = true
			c.add = append(c.add, t.sharing())
		}
		c.requeue(queues[i], others)
	}
	return nil
}

// removal finds the elements of the owner that exist. For each freed host port it
// activates the first attachment that waits for it.
func (r *Ruleset) removal(ctx context.Context, list []element) (change, error) {
	found, err := r.lookUp(ctx, slices.Concat(list, sharingOf(list)))
	if err != nil {
		return change{}, err
	}
	c, in := change{remove: owned(list, found[:len(list)])}, tablesOf(found[len(list):])
	leaving := map[place][]string{}
	var ports, is []element
	for i := range list {
		p := list[i].place()
		if in[p.set.table] && list[i].isMapping() {
			if leaving[p] == nil {
				ports, is = append(ports, list[i]), append(is, found[i])
			}
			leaving[p] = append(leaving[p], list[i].owner)
		}
	}
	queues, err := r.queues(ctx, ports)
	for i := range queues {
		stay := slices.DeleteFunc(slices.Clone(queues[i]), func(e element) bool {
			return slices.Contains(leaving[ports[i].place()], e.owner)
		})
		if len(stay) > 0 && (is[i].set == nil || slices.Contains(c.remove, is[i])) {
			c.add = append(c.add, stay[0])
			stay = stay[1:]
		}
		c.requeue(queues[i], stay)
	}
	return c, err
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
		if c, err = r.removal(ctx, list); err != nil || c.empty() {
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
