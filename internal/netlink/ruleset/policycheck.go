package ruleset

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// CheckPolicy returns ErrMissing, with the names of what is missing or differs, if a policy is
// not complete.
func (r *Ruleset) CheckPolicy(ctx context.Context, p *Policy) error {
	var missing []string
	for _, t := range policyTables {
		n, err := p.objects(t)
		if err == nil {
			var some []string
			some, err = r.missingOf(ctx, n)
			missing = append(missing, some...)
		}
		if err != nil {
			return fmt.Errorf("check policy %s: %w", p.ID, err)
		}
	}
	return missingError(missing)
}

func (r *Ruleset) missingOf(ctx context.Context, n *policyObjects) ([]string, error) {
	missing, err := r.problemsOf(ctx, n.table)
	if err != nil {
		return nil, err
	}
	is, err := r.chainsOf(ctx, n.table, n.chains)
	if err != nil {
		return nil, err
	}
	for _, c := range n.chains {
		if !c.has(is.rules[c.name]) {
			missing = append(missing, c.label)
		}
	}
	sets, err := r.existing(ctx, n.selections)
	if err != nil {
		return nil, err
	}
	for _, s := range n.selections { // one without members has no element that could be missing
		if !slices.Contains(sets, s) {
			missing = append(missing, s.label)
		}
	}
	wanted := slices.Concat(n.links, n.elements, n.constant())
	found, err := r.lookUp(ctx, wanted)
	if err != nil {
		return nil, err
	}
	for i := range wanted {
		if is := &found[i]; is.set == nil || is.value != wanted[i].value || is.owner != wanted[i].owner {
			missing = append(missing, wanted[i].String())
		}
	}
	return missing, nil
}

// chainsOf reads which of the chains exist, and the comments of their rules.
func (r *Ruleset) chainsOf(ctx context.Context, t *table, chains []chain) (*state, error) {
	is, err := r.existingChains(ctx, t, chains)
	if err != nil {
		return nil, err
	}
	for name := range is.chains {
		if err := r.readRules(ctx, t, name, is); err != nil {
			return nil, err
		}
	}
	return is, nil
}

// existingChains reads which of the chains exist.
func (r *Ruleset) existingChains(ctx context.Context, t *table, chains []chain) (*state, error) {
	is := &state{chains: map[string]hook{}, rules: map[string][]string{}}
	var failed error
	err := r.get(ctx, len(chains), func(b *sock.Requests, i int) {
		t.begin(b, chains[i].label, unix.NFT_MSG_GETCHAIN, 0)
		b.CString(unix.NFTA_CHAIN_TABLE, t.name)
		b.CString(unix.NFTA_CHAIN_NAME, chains[i].name)
	}, func(i int, _ []byte, err error) {
		switch {
		case err == nil:
			is.chains[chains[i].name] = hook{}
		case !errors.Is(err, unix.ENOENT):
			failed = errors.Join(failed, err)
		}
	})
	return is, errors.Join(err, failed)
}
