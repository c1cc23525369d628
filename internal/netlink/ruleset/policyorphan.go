package ruleset

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/retry"
)

// KnownPolicies are the policies of an instance that DelOrphans keeps.
type KnownPolicies struct {
	// IDs are those of the policies, and Selections the names of all their selections.
	IDs, Selections []string
	// InUse reports whether a link is in a group. A policy to which such a group leads still applies.
	InUse func(group uint32) (bool, error)
}

// DelOrphans removes what belongs to an instance's policies that are not known, because their
// state was lost: chains, the links that lead to them, sets of prefixes, and the instance's selections
// that no rule uses. It keeps the policies to which the address of an attachment leads, or a group of
// links in use. The caller ensures that the instance makes no policy meanwhile.
func (r *Ruleset) DelOrphans(ctx context.Context, instance string, known KnownPolicies) error {
	var errs []error
	for _, t := range policyTables {
		err := retry.Do(ctx, func() error { return r.delOrphans(ctx, t, policyOwner(instance), known) })
		if err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("remove policies whose state was lost from %s: %w", t.label, err))
		}
	}
	return errors.Join(errs...)
}

// HasPolicies reports whether the table of policies of an address family exists.
func (r *Ruleset) HasPolicies(ctx context.Context) (bool, error) {
	for _, t := range policyTables {
		if found, _, err := r.has(ctx, t); found || err != nil {
			return found, err
		}
	}
	return false, nil
}

func (r *Ruleset) delOrphans(ctx context.Context, t *table, owner string, known KnownPolicies) error {
	ids := map[string]bool{}
	var chains []chain
	err := r.dump(ctx, func(b *sock.Requests) {
		t.begin(b, t.label, unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP)
	}, func(payload []byte) {
		c, of := readChain(payload)
		if id := names.PolicyID(c.name); of == t.name && c.comment == owner && id != "" && !slices.Contains(known.IDs, id) {
			chains, ids[id] = append(chains, c), true
		}
	})
	if err == nil && len(chains) > 0 {
		err = r.keepUsed(ctx, t, ids, known.InUse)
		chains = slices.DeleteFunc(chains, func(c chain) bool { return !ids[names.PolicyID(c.name)] })
	}
	if err != nil || len(chains) == 0 {
		return errors.Join(err, r.delSelections(ctx, t, owner, known.Selections))
	}
	var links []element
	for _, s := range t.policy.links {
		some, err := r.dumpElements(ctx, s, func(e *element) bool { return ids[names.PolicyID(e.value.chain)] })
		if err != nil {
			return err
		}
		links = append(links, some...)
	}
	sets, err := r.setsNamed(ctx, t, func(name, _ string) bool { return ids[names.PolicyID(name)] })
	if err != nil {
		return err
	}
	err = r.socket.Transaction(ctx, func(b *sock.Requests) {
		putElements(b, links, unix.NFT_MSG_DELSETELEM)
		for _, c := range chains {
			t.begin(b, c.label, unix.NFT_MSG_DELRULE, 0)
			b.CString(unix.NFTA_RULE_TABLE, t.name)
			b.CString(unix.NFTA_RULE_CHAIN, c.name)
		}
		for _, c := range chains {
			c.remove(b, t)
		}
		for _, s := range sets {
			s.remove(b)
		}
	})
	for id := range ids {
		r.intact.removePolicy(id)
	}
	return errors.Join(err, r.delSelections(ctx, t, owner, known.Selections))
}

// keepUsed removes the policies from ids that still apply: the address of an attachment leads to them, so
// that the kernel would not remove their chains, or a group of links that is in use. They go with a later
// call, when the attachment is gone.
func (r *Ruleset) keepUsed(ctx context.Context, t *table, ids map[string]bool, inUse func(uint32) (bool, error)) error {
	for _, s := range slices.Concat(t.policy.addresses[:], t.policy.links[:]) {
		leads, err := r.dumpElements(ctx, s, func(e *element) bool { return ids[names.PolicyID(e.value.chain)] })
		if err != nil {
			return err
		}
		for _, e := range leads {
			used := true
			if s == t.policy.links[egress] || s == t.policy.links[ingress] {
				if used, err = inUse(binary.NativeEndian.Uint32(e.key[:])); err != nil {
					return err
				}
			}
			if used {
				delete(ids, names.PolicyID(e.value.chain))
			}
		}
	}
	return nil
}

// delSelections removes the selections of an owner that are not known. The kernel keeps those that a
// rule uses. It would not keep another owner's of a policy that has rules in the other family only.
func (r *Ruleset) delSelections(ctx context.Context, t *table, owner string, known []string) error {
	sets, err := r.setsNamed(ctx, t, func(name, comment string) bool {
		selection, ok := names.ParseSelectionSet(name)
		return ok && comment == owner && !slices.Contains(known, selection)
	})
	for _, s := range sets {
		one := r.socket.Transaction(ctx, func(b *sock.Requests) { s.remove(b) })
		if !errors.Is(one, unix.EBUSY) && !errors.Is(one, unix.ENOENT) {
			err = errors.Join(err, one)
		}
	}
	return err
}

// setsNamed returns the sets of a table whose names and comments are wanted. They can only be removed.
func (r *Ruleset) setsNamed(ctx context.Context, t *table, wanted func(name, comment string) bool) ([]*set, error) {
	var list []*set
	err := r.dump(ctx, func(b *sock.Requests) {
		t.begin(b, t.label, unix.NFT_MSG_GETSET, unix.NLM_F_DUMP)
		b.CString(unix.NFTA_SET_TABLE, t.name)
	}, func(payload []byte) {
		if name, comment := readSet(payload); wanted(name, comment) {
			list = append(list, t.policySet(name))
		}
	})
	return list, err
}

// readChain reads the name and the comment of a chain, and the name of its table.
func readChain(payload []byte) (c chain, table string) {
	sock.EachNetfilterAttribute(payload, func(kind uint16, value []byte) {
		switch kind {
		case unix.NFTA_CHAIN_TABLE:
			table = sock.String(value)
		case unix.NFTA_CHAIN_NAME:
			c.name = sock.String(value)
		case chainUserData:
			c.comment = commentOf(value)
		}
	})
	c.label = "chain " + c.name
	return c, table
}
