package ruleset

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Another program can remove the rules of a chain, and leave the sets. Then elements can be added,
// but have no effect. The kernel counts the rules of a chain together with those that call it, and
// tells that number without listing the rules. Add and its like compare it, so that they do not
// report success for elements without effect. CHECK compares the rules themselves.

// intactTime is how long a table that was found intact is not looked at again, so that a burst
// looks at it once. It is a time in which a change by another program would not be noticed anyway:
// that after Add has returned.
const intactTime = 20 * time.Millisecond

// intact has the labels of the tables, and the IDs of the policies, that were found intact lately. It
// is safe for concurrent use.
type intact struct {
	mu    sync.Mutex
	until map[string]time.Time
}

// maxIntact bounds the entries. Beyond it, all are removed.
const maxIntact = 256

func (i *intact) has(name string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return time.Now().Before(i.until[name])
}

func (i *intact) add(name string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.until == nil || len(i.until) >= maxIntact {
		i.until = map[string]time.Time{}
	}
	i.until[name] = time.Now().Add(intactTime)
}

func (i *intact) remove(name string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.until, name)
}

// restoreRules makes the rules of a table again if some are missing. The table exists.
func (r *Ruleset) restoreRules(ctx context.Context, t *table) error {
	if r.intact.has(t.label) {
		return nil
	}
	whole, err := r.isWhole(ctx, t)
	if err == nil && !whole {
		err = r.rebuild(ctx, t)
	}
	if err != nil {
		return fmt.Errorf("restore the rules of %s: %w", t.label, err)
	}
	r.intact.add(t.label)
	return nil
}

// restoreRulesOf does so for the tables of elements.
func (r *Ruleset) restoreRulesOf(ctx context.Context, list []element) error {
	for _, t := range every {
		if !t.used(list) {
			continue
		}
		if err := r.restoreRules(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// isWhole reports whether a table has all its chains, with at least as many rules and callers as
// they should have. Elements and the chains of policies call some of them, too.
func (r *Ruleset) isWhole(ctx context.Context, t *table) (bool, error) {
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
