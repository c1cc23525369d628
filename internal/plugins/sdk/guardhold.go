package sdk

import (
	"context"
	"sync"

	"github.com/allocnet/allocnet/internal/netlink/ruleset"
)

// A GuardHold is the share of one user in the guard that a long-lived process holds: see
// ruleset.Ruleset.HoldGuard. All users hold it with one connection, which is closed when the
// last share is released. So the guard of the host stays while one user replaces another.
// A GuardHold is safe for concurrent use.
type GuardHold struct{ release func() error }

// heldGuard is the connection of all shares of the process.
var heldGuard struct {
	sync.Mutex
	shares int
	rules  *ruleset.Ruleset // nil until the first hold
}

// NewGuardHold returns a share, which holds nothing yet. The caller releases it.
func NewGuardHold() *GuardHold {
	heldGuard.Lock()
	defer heldGuard.Unlock()
	heldGuard.shares++
	return &GuardHold{release: sync.OnceValue(releaseGuard)}
}

// hold holds the guard of families, which must exist.
func (*GuardHold) hold(ctx context.Context, families ...ruleset.Family) error {
	rules, err := guardRules()
	if err != nil {
		return err
	}
	return rules.HoldGuard(ctx, families...)
}

// holdExisting holds the guard of the families that have one.
func (*GuardHold) holdExisting(ctx context.Context) error {
	rules, err := guardRules()
	if err != nil {
		return err
	}
	return rules.HoldExisting(ctx)
}

func guardRules() (*ruleset.Ruleset, error) {
	heldGuard.Lock()
	defer heldGuard.Unlock()
	if heldGuard.rules == nil {
		rules, err := ruleset.Open()
		if err != nil {
			return nil, err
		}
		heldGuard.rules = rules
	}
	return heldGuard.rules, nil
}

// Release gives the share back. It may be called again; nil has no share.
func (g *GuardHold) Release() error {
	if g == nil {
		return nil
	}
	return g.release()
}

func releaseGuard() error {
	heldGuard.Lock()
	defer heldGuard.Unlock()
	heldGuard.shares--
	if heldGuard.shares > 0 || heldGuard.rules == nil {
		return nil
	}
	rules := heldGuard.rules
	heldGuard.rules = nil
	return rules.Close()
}
