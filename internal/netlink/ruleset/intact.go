package ruleset

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Another program can remove the rules of a chain, and leave the sets. Then elements can be added,
// but have no effect. The kernel counts the rules of a chain together with those that call it, and
// tells that number without listing the rules. Add and its like compare it, so that they do not
// report success for elements without effect. CHECK compares the rules themselves.
//
// Nothing is compared again until another program has changed nf_tables. The kernel numbers its states
// (sock.Generation), and tells the number of each transaction: if it follows that of the
// transaction before, no other program made one in between.

// intact has the names of tables, policies and others (Unless) that are intact in the states first to last
// of nf_tables. A Ruleset made all transactions between these. It is safe for concurrent
// use.
type intact struct {
	mu          sync.Mutex
	first, last uint32 // 0 before the first state
	names       map[string]bool
}

// maxIntact bounds the names. Beyond it, all are removed.
const maxIntact = 256

// has reports whether a name is intact in a state.
func (i *intact) has(name string, state uint32) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.last == state && i.names[name]
}

// add adds a name that was found intact in a state, or later.
func (i *intact) add(name string, state uint32) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.first <= state && state <= i.last: // only the Ruleset has changed something since
	case i.last < state:
		i.first, i.last, i.names = state, state, nil
	default:
		return
	}
	if i.names == nil || len(i.names) >= maxIntact {
		i.names = map[string]bool{}
	}
	i.names[name] = true
}

// removePolicy removes the names of a policy, also for a call of add that has looked before.
func (i *intact) removePolicy(id string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	maps.DeleteFunc(i.names, func(name string, _ bool) bool { return strings.HasPrefix(name, policyName(id)) })
	i.first = i.last
}

// policyName is the beginning of the names of a policy: see PolicyChains.name.
func policyName(id string) string { return "policy " + id + " of group " }

// committed notes the state after a transaction of the Ruleset.
func (i *intact) committed(state uint32) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if state != i.last+1 {
		i.first, i.names = state, nil
	}
	i.last = state
}

// transaction makes a change after which everything is intact that was so before, unless another program
// made a transaction in between. A first request that empties a set would return all its elements.
func (r *Ruleset) transaction(ctx context.Context, build func(*sock.Requests)) error {
	return r.socket.NumberedTransaction(ctx, build, r.intact.committed)
}

// restoreRules makes the rules of tables again of which some are missing. The tables exist.
func (r *Ruleset) restoreRules(ctx context.Context, tables ...*table) error {
	state, err := sock.Generation(ctx, r.socket)
	if err != nil {
		return fmt.Errorf("restore rules: %w", err)
	}
	for _, t := range tables {
		if r.intact.has(t.label, state) {
			continue
		}
		whole, err := r.isWhole(ctx, t)
		if err == nil && !whole {
			err = r.rebuild(ctx, t)
		}
		if err != nil {
			return fmt.Errorf("restore the rules of %s: %w", t.label, err)
		}
		r.intact.add(t.label, state)
	}
	return nil
}

// restoreRulesOf does so for the tables of elements.
func (r *Ruleset) restoreRulesOf(ctx context.Context, list []element) error {
	used := slices.DeleteFunc(slices.Clone(every), func(t *table) bool { return !t.used(list) })
	if len(used) == 0 {
		return nil
	}
	return r.restoreRules(ctx, used...)
}

// Unless calls ensure, unless it succeeded before under the same name and no other program has changed
// nf_tables since. It is for what other tables than those of this package have.
func (r *Ruleset) Unless(ctx context.Context, name string, ensure func() error) error {
	state, err := sock.Generation(ctx, r.socket)
	if err != nil || r.intact.has(name, state) {
		return err
	}
	if err := ensure(); err != nil {
		return err
	}
	r.intact.add(name, state)
	return nil
}

// isWhole reports whether a table has all its chains, with at least as many rules and callers as
// they should have. Elements and the chains of policies call some of them, too.
//
// The kernel also counts the rules that a transaction adds that it has not made yet, and which can
// still fail: such as that of another process that makes the tables, if they exist. So a table has to have
// its rules once more after the transaction that was being made at the first look.
func (r *Ruleset) isWhole(ctx context.Context, t *table) (bool, error) {
	if whole, err := r.hasCounts(ctx, t); err != nil || !whole {
		return false, err
	}
	if err := r.socket.AwaitTransaction(ctx); err != nil {
		return false, err
	}
	return r.hasCounts(ctx, t)
}

// hasCounts is isWhole at a single look.
func (r *Ruleset) hasCounts(ctx context.Context, t *table) (bool, error) {
	const use = 6 // NFTA_CHAIN_USE
	chains := t.chains()
	calls := map[string]uint32{}
	for _, c := range chains {
		for _, one := range c.rules {
			calls[one.calls]++
		}
	}
	whole := true
	var failed error
	err := r.get(ctx, len(chains), func(b *sock.Requests, i int) {
		t.begin(b, chains[i].label, unix.NFT_MSG_GETCHAIN, 0)
		b.CString(unix.NFTA_CHAIN_TABLE, t.name)
		b.CString(unix.NFTA_CHAIN_NAME, chains[i].name)
	}, func(i int, payload []byte, err error) {
		if err != nil {
			if whole = false; !errors.Is(err, unix.ENOENT) {
				failed = errors.Join(failed, err)
			}
			return
		}
		sock.EachNetfilterAttribute(payload, func(kind uint16, value []byte) {
			if kind == use && sock.Uint32BE(value) < uint32(len(chains[i].rules))+calls[chains[i].name] {
				whole = false
			}
		})
	})
	return whole, errors.Join(err, failed)
}
