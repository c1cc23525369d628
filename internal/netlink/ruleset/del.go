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

// Del removes the elements that belong to the owner, in one transaction. A host port
// for which another attachment waits is redirected to that attachment from then on. Del is idempotent. It does not remove the elements of
// Guarded and of networks, which attachments share.
func (r *Ruleset) Del(ctx context.Context, e *Elements) error {
	list, err := e.remains()
	if err == nil {
		err = r.del(ctx, list)
	}
	if err != nil {
		return fmt.Errorf("delete elements of %s: %w", e.Owner, err)
	}
	return nil
}

// DelGuard removes the elements of a guarded bridge, or of a guarded interface that no
// longer exists. It is idempotent.
func (r *Ruleset) DelGuard(ctx context.Context, bridge string) error {
	e := &Elements{Guarded: []Guard{{Bridge: bridge}, {Bridge: bridge, Isolated: true}}}
	list, err := e.remains()
	if err == nil {
		err = r.remove(ctx, list)
	}
	if err != nil {
		return fmt.Errorf("delete guard of %q: %w", bridge, err)
	}
	return nil
}

// Guards returns a description of every element that guards one of the interfaces.
func (r *Ruleset) Guards(ctx context.Context, interfaces []string) ([]string, error) {
	e := &Elements{}
	for _, name := range interfaces {
		e.Guarded = append(e.Guarded, Guard{Bridge: name})
	}
	list, err := e.remains()
	if err == nil {
		list, err = r.lookUp(ctx, list)
	}
	if err != nil {
		return nil, fmt.Errorf("look up guards of %q: %w", interfaces, err)
	}
	var texts []string
	for i := range list {
		if list[i].set != nil {
			texts = append(texts, list[i].String())
		}
	}
	slices.Sort(texts)
	return slices.Compact(texts), nil // the tables of both families have them
}

// owned returns the elements in found that belong to the owner of the elements in list,
// each once. An element without an owner belongs to it if the value is the same.
func owned(list, found []element) []element {
	var own []element
	seen := make(map[place]bool, len(list))
	for i, is := range found {
		ours := is.owner == list[i].owner || is.owner == "" && is.value == list[i].value
		if is.set != nil && ours && !seen[is.place()] {
			seen[is.place()] = true
			own = append(own, is)
		}
	}
	return own
}

// DelOwned removes every element for which remove(owner) is true. It reads all
// elements. If other processes change the tables all the time, it can miss some.
func (r *Ruleset) DelOwned(ctx context.Context, remove func(names.Owner) bool) error {
	list, err := r.all(ctx, remove)
	for part := range slices.Chunk(list, 1000) {
		err = errors.Join(err, r.del(ctx, part))
	}
	if err != nil {
		return fmt.Errorf("delete elements by their owners: %w", err)
	}
	return nil
}

// Owned returns a description of every element for which of(owner) is true. It reads
// all elements.
func (r *Ruleset) Owned(ctx context.Context, of func(names.Owner) bool) ([]string, error) {
	list, err := r.all(ctx, of)
	if err != nil {
		return nil, fmt.Errorf("list elements by their owners: %w", err)
	}
	texts := make([]string, len(list))
	for i := range list {
		texts[i] = list[i].String() + " of " + list[i].owner
	}
	slices.Sort(texts)
	return texts, nil
}

// Unpublished returns those of the ports of a family (AF_INET, AF_INET6) that no attachment has published,
// on none of their addresses. It reads all elements of host ports.
func (r *Ruleset) Unpublished(ctx context.Context, family uint8, ports []Port) ([]Port, error) {
	free := slices.Clone(ports)
	t := tableOfFamily(family)
	for _, s := range []*set{t.hostPorts, t.hostIPPorts} {
		if len(free) == 0 {
			return nil, nil
		}
		published, err := r.dumpSet(ctx, s, func(names.Owner) bool { return true })
		if err != nil {
			return nil, fmt.Errorf("list published ports: %w", err)
		}
		for _, e := range published {
			m := e.mapping()
			free = slices.DeleteFunc(free, func(p Port) bool {
				everywhere := s == t.hostPorts || !p.HostIP.IsValid() || p.HostIP.IsUnspecified()
				return p.Protocol == m.Protocol && p.Number == m.HostPort && (everywhere || p.HostIP == m.HostIP)
			})
		}
	}
	return free, nil
}

// Addresses returns the addresses to which the owner's host ports lead, including those
// of mappings that wait. It reads all elements of host ports.
func (r *Ruleset) Addresses(ctx context.Context, owner names.Owner) ([]netip.Addr, error) {
	var list []netip.Addr
	is := owner.String()
	for _, t := range tables {
		for _, s := range []*set{t.hostPorts, t.hostIPPorts, t.standby} {
			some, err := r.dumpSet(ctx, s, func(o names.Owner) bool { return o.String() == is })
			if err != nil {
				return nil, fmt.Errorf("list published addresses of %s: %w", owner, err)
			}
			for _, e := range some {
				active := e.active()
				m := active.mapping()
				if addr := m.To.Addr(); !slices.Contains(list, addr) {
					list = append(list, addr)
				}
			}
		}
	}
	return list, nil
}

// all returns the elements of all tables for which of(owner) is true.
func (r *Ruleset) all(ctx context.Context, of func(names.Owner) bool) ([]element, error) {
	var list []element
	var errs []error
	for _, t := range every {
		sets := slices.DeleteFunc(slices.Clone(t.sets), func(s *set) bool { return s.shared })
		if t.policy != nil {
			selections, err := r.selectionSets(ctx, t)
			sets, errs = append(sets, selections...), append(errs, err)
		}
		for _, s := range sets {
			some, err := r.dumpSet(ctx, s, of)
			list = append(list, some...)
			errs = append(errs, err)
		}
	}
	return list, errors.Join(errs...)
}

// dumpSet returns the elements of a set for which of(owner) is true.
func (r *Ruleset) dumpSet(ctx context.Context, s *set, of func(names.Owner) bool) ([]element, error) {
	return r.dumpElements(ctx, s, func(e *element) bool {
		owner, ok := names.ParseOwner(e.owner)
		return ok && of(owner)
	})
}

// dumpElements returns the elements of a set for which want is true, each once. A set that does
// not exist has no elements.
func (r *Ruleset) dumpElements(ctx context.Context, s *set, want func(*element) bool) ([]element, error) {
	seen := make(map[element]bool)
	var list []element
	err := r.dumpAttributes(ctx, s, func(attrs []byte) {
		if e := readElement(s, attrs); !seen[e] && want(&e) {
			seen[e] = true
			list = append(list, e)
		}
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return list, err
}

// dumpAttributes calls each with the attributes of every element of a set, possibly more than
// once. It reads the set until a dump was not interrupted by a change. If all are interrupted, it
// has called each for the elements seen in any of them: an interrupted dump skips an element at
// most now and then, and hardly ever the same one again.
func (r *Ruleset) dumpAttributes(ctx context.Context, s *set, each func(attrs []byte)) error {
	for range attempts {
		err := r.dump(ctx, func(b *sock.Requests) {
			s.table.begin(b, s.label, unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP)
			b.CString(unix.NFTA_SET_ELEM_LIST_TABLE, s.table.name)
			b.CString(unix.NFTA_SET_ELEM_LIST_SET, s.name)
		}, func(payload []byte) { eachElement(payload, each) })
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return nil
}
