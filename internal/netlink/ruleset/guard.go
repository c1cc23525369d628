package ruleset

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// newGuard returns a table without sets that guards the loopback addresses. It is for
// IPv4 only: IPv6 has no route_localnet.
func newGuard(name string, flags uint32) *table {
	t := &table{family: unix.NFPROTO_IPV4, name: name, flags: flags, label: "table ip " + name, addrLen: 4, source: 12, destination: 16}
	t.chains = sync.OnceValue(func() []chain { return t.finish([]chain{t.localOnly()}) })
	return t
}

// localOnly returns the chain that drops packets to and from 127.0.0.0/8 that arrive on
// another link than lo. route_localnet would accept them.
func (t *table) localOnly() chain {
	lo := make([]byte, unix.IFNAMSIZ)
	copy(lo, "lo")
	elsewhere := func(comment string, address uint32) rule {
		return newRule(comment, &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, unequal(lo), firstByte(address), equal([]byte{127}), drop())
	}
	return newChain("local_only", base("filter", unix.NF_INET_PRE_ROUTING, -300),
		elsewhere("the loopback is the host's own", t.destination),
		elsewhere("nobody else speaks from the loopback", t.source))
}

// Guard drops packets to and from 127.0.0.0/8 that do not come from the host itself. It
// is needed if a link has route_localnet, with every backend of host ports. If the
// table exists, Guard changes nothing: see Repair.
func (r *Ruleset) Guard(ctx context.Context) error {
	found, _, err := r.has(ctx, guards)
	if err == nil && !found {
		err = r.ensureTable(ctx, guards)
	}
	if err != nil {
		return fmt.Errorf("guard the loopback: %w", err)
	}
	return nil
}

// has reports whether a table exists, whatever it contains, and the number of the
// socket that owns it, or 0.
func (r *Ruleset) has(ctx context.Context, t *table) (found bool, owner uint32, err error) {
	var answer error
	err = r.get(ctx, 1, func(b *sock.Requests, _ int) {
		t.begin(b, t.label, unix.NFT_MSG_GETTABLE, 0)
		b.CString(unix.NFTA_TABLE_NAME, t.name)
	}, func(_ int, payload []byte, err error) {
		if answer = err; err == nil {
			owner = readOwner(payload)
		}
	})
	if err == nil && !errors.Is(answer, unix.ENOENT) {
		err = answer
	}
	return err == nil && answer == nil, owner, err
}

// HoldGuard makes the guard a second time, in a table that this connection owns. Other
// programs cannot remove such a table, so `nft flush ruleset` leaves it; the kernel
// removes it when the connection is closed. If a connection of another process owns the
// table, it stays and serves this process, too. If no connection owns it, for example
// after a saved ruleset was loaded, it is replaced. Kernels before 5.12 do not have
// tables with an owner.
func (r *Ruleset) HoldGuard(ctx context.Context) error {
	if r.holdsGuard.Load() {
		return nil
	}
	err := r.holdGuard(ctx)
	if errors.Is(err, unix.ENOENT) { // another program removed it first
		err = r.holdGuard(ctx)
	}
	if err != nil {
		return fmt.Errorf("hold the guard of the loopback: %w", err)
	}
	return nil
}

func (r *Ruleset) holdGuard(ctx context.Context) error {
	// A transaction that fails waits for RCU. Therefore none is begun if another
	// process owns the table.
	found, owner, err := r.has(ctx, heldGuard)
	if err != nil || owner != 0 {
		return err
	}
	err = r.socket.Transaction(ctx, func(b *sock.Requests) {
		if found {
			heldGuard.remove(b)
		}
		heldGuard.build(b, unix.NLM_F_EXCL, nil)
	})
	switch {
	case err == nil:
		r.holdsGuard.Store(true)
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.EPERM), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return nil
	}
	return err
}

// CheckGuard checks the rules of Guard. It returns ErrMissing, with the names of what
// is missing, if they are not complete.
func (r *Ruleset) CheckGuard(ctx context.Context) error {
	missing, err := r.problemsOf(ctx, guards)
	if err != nil {
		return fmt.Errorf("check the guard of the loopback: %w", err)
	}
	if len(missing) > 0 {
		return fmt.Errorf("%w: %s", ErrMissing, strings.Join(missing, ", "))
	}
	return nil
}
