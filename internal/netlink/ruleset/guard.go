package ruleset

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// Family is a family of nftables with a guard of its own.
type Family int

// The values of Family.
const (
	IPv4 Family = iota
	IPv6
	// Bridge stands for the guard of bridge ports, whose addresses are elements: see
	// Elements.Ports. The table that holds it drops what the guard has not checked.
	Bridge
)

// guard is a table without sets that drops packets with addresses that do not belong to
// their link, and the same table a second time, for a connection that owns it.
type guard struct{ table, held *table }

func newGuard(family byte) guard {
	build := func(name string, flags uint32) *table {
		t, _ := tableNamed(name, family)
		t.flags = flags
		t.chains = onceChains(t, func() []chain {
			if flags == 0 {
				return t.guardChains()
			}
			return append(t.guardChains(), t.failClosed()...)
		})
		return t
	}
	return guard{build(names.GuardTable, 0), build(names.HeldGuardTable, ownedTable)}
}

func (t *table) guardChains() []chain {
	if t.family == unix.NFPROTO_IPV6 { // which has no route_localnet
		return []chain{t.routerMessages(), t.ownSources()}
	}
	return []chain{t.localOnly(), t.ownSources()}
}

const chainRouterMessages = "router_messages"

var icmp6 = []expr.Any{protocol(0), equal([]byte{unix.IPPROTO_ICMPV6})}

// Priorities of the guard's chains: before connection tracking, and between that and the
// translation of destinations.
const (
	ahead   = -300
	tracked = -150
)

// localOnly returns the chain that drops packets to and from 127.0.0.0/8 that arrive on
// another link than lo. route_localnet would accept them.
func (t *table) localOnly() chain {
	lo := linkName("lo")
	elsewhere := func(comment string, address uint32) rule {
		return newRule(comment, &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, unequal(lo), firstByte(address), equal([]byte{127}), drop())
	}
	return newChain("local_only", base("filter", unix.NF_INET_PRE_ROUTING, ahead),
		elsewhere("destination 127.0.0.0/8 not through lo", t.destination),
		elsewhere("source 127.0.0.0/8 not through lo", t.source))
}

// routerMessages returns the chain that drops what only routers send. A host that does not forward
// IPv6, and one with accept_ra 2, would take its default route and an address from the router
// advertisement of an allocation (ndisc_router_discovery of the kernel).
func (t *table) routerMessages() chain {
	dropped := func(kind byte) []expr.Any { return slices.Concat(icmp6, icmpType(kind), counted(drop())) }
	return newChain(chainRouterMessages, hook{},
		newRule("advertises a router", dropped(routerAdvertisement)...),
		newRule("redirects", dropped(redirect)...))
}

// ownSources returns the chain that drops packets from a guarded link unless the host's
// route to their source leads over that link: strict reverse path forwarding (RFC 3704,
// section 2.2). So nothing passes of a family of which the host has no route over the link.
// Links that are being removed count as guarded. The kernel excepts IPv4 from 0.0.0.0 to
// 255.255.255.255 or 224.0.0.0/24, and ICMPv6 from :: to link-local addresses. Answers pass: a
// container with several networks sends those to other hosts over its default route, whichever
// of its addresses they come from.
func (t *table) ownSources() chain {
	guarded := []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: 1}, mask(native(names.LinkGroups), native(0)), equal(native(names.GuardedGroup & names.LinkGroups))}
	answer := []expr.Any{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1}, equal([]byte{1}), &expr.Verdict{Kind: expr.VerdictReturn}}
	foreign := []expr.Any{&expr.Fib{Register: 1, FlagSADDR: true, FlagIIF: true, ResultOIF: true}, equal(native(0)), &expr.Counter{}, drop()}
	var rules []rule
	if t.family == unix.NFPROTO_IPV6 {
		rules = append(rules, newRule("ICMPv6", slices.Concat(icmp6, guarded, []expr.Any{jump(chainRouterMessages)})...))
	}
	return newChain("own_sources", base("filter", unix.NF_INET_PRE_ROUTING, tracked), append(rules,
		newRule("answers of tracked connections", slices.Concat(guarded, answer)...),
		newRule("source that is not behind the link", slices.Concat(guarded, foreign)...))...)
}

// failClosed returns chains that drop packets of links with a network policy while the table of
// policies is missing, because another program has flushed the ruleset. They are in the table that
// such a flush does not remove. A chain before the policies marks the packets, the policies clear
// the mark, and a chain after them drops what still has it.
func (t *table) failClosed() []chain {
	var list []chain
	for _, h := range policyHooks {
		set, missed := newChain(h.name+"_before", base("filter", h.number, policyPriority-1)), newChain(h.name+"_after", base("filter", h.number, policyPriority+1))
		for _, d := range h.directions {
			set.rules = append(set.rules, newRule("links that need a policy", append(needsPolicy(d), setMark(ForwardMark)...)...))
			missed.rules = append(missed.rules, newRule("no policy was applied", slices.Concat(needsPolicy(d),
				[]expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}}, anyBit(ForwardMark), []expr.Any{&expr.Counter{}, drop()})...))
		}
		list = append(list, set, missed)
	}
	return list
}

// Guard drops packets to and from 127.0.0.0/8 that do not come from the host itself. That is
// needed if a link has route_localnet, with every backend of host ports. It drops packets of a
// family from a link of the group names.GuardedGroup whose source is reached over another link,
// except for answers, and those that only IPv6 routers send. In family Bridge, it drops frames of
// guarded bridge ports that have no elements for them. The first call completes an existing table,
// which an older version may have made. Later calls make rules again of which some are missing: see
// Repair.
func (r *Ruleset) Guard(ctx context.Context, families ...Family) error {
	state, err := sock.Generation(ctx, r.socket)
	for i := 0; err == nil && i < len(families); i++ {
		err = r.guard(ctx, families[i], state)
	}
	if err != nil {
		return fmt.Errorf("guard the host: %w", err)
	}
	return nil
}

// guard does so for a family, in a state of nf_tables that a transaction may have changed since.
func (r *Ruleset) guard(ctx context.Context, f Family, state uint32) error {
	t := guards[f].table
	if r.guarded[f].Load() {
		if r.intact.has(t.label, state) {
			return nil
		}
		if found, _, err := r.has(ctx, t); err != nil {
			return err
		} else if found {
			return r.restoreRules(ctx, t)
		}
	}
	// A transaction that fails, because the table exists, waits for RCU.
	is, err := r.inspect(ctx, t)
	if err == nil && len(t.problems(is)) > 0 {
		err = r.ensureTable(ctx, t)
	}
	if err == nil {
		r.guarded[f].Store(true)
	}
	return err
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
func (r *Ruleset) HoldGuard(ctx context.Context, families ...Family) error {
	for _, f := range families {
		if r.holds[f].Load() != holdUnknown {
			continue
		}
		is, err := r.hold(ctx, guards[f].held)
		if errors.Is(err, unix.ENOENT) { // another program removed it first
			is, err = r.hold(ctx, guards[f].held)
		}
		if err != nil {
			return fmt.Errorf("hold the guard of the host: %w", err)
		}
		r.holds[f].CompareAndSwap(holdUnknown, is)
	}
	return nil
}

// HoldExisting is HoldGuard for the families whose guard exists, whichever process has made it. A table
// that was only reserved guards nothing.
func (r *Ruleset) HoldExisting(ctx context.Context) error {
	for f := range guards {
		t := guards[f].table
		is, err := r.inspect(ctx, t)
		if err == nil && is.exists && !t.isReserved(is) {
			err = r.HoldGuard(ctx, Family(f))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// What a connection knows of a table that HoldGuard makes.
const (
	holdUnknown     int32 = iota // another process may own it
	holdOwned                    // this connection owns it
	holdUnsupported              // the kernel has no tables with an owner
)

// hold makes a table that this connection owns, unless another one does.
func (r *Ruleset) hold(ctx context.Context, t *table) (is int32, err error) {
	// A transaction that fails waits for RCU. Therefore none is begun if another
	// process owns the table.
	found, owner, err := r.has(ctx, t)
	if err != nil || owner != 0 {
		return holdUnknown, err
	}
	err = r.socket.Transaction(ctx, func(b *sock.Requests) {
		if found {
			t.remove(b)
		}
		t.build(b, unix.NLM_F_EXCL, nil)
	})
	switch {
	case err == nil:
		return holdOwned, nil
	case t.isRefused(err):
		return holdUnsupported, nil
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.EPERM):
		return holdUnknown, nil
	}
	return holdUnknown, err
}

// isRefused reports whether the kernel has refused the table itself, of which only the flags can be unknown to it,
// and not just something in it. Linux before 5.12 answers EINVAL (nf_tables_newtable), later versions EOPNOTSUPP.
func (t *table) isRefused(err error) bool {
	var answers sock.Errors
	return errors.As(err, &answers) && slices.ContainsFunc(answers, func(e *sock.Error) bool {
		return e.Request == t.label && (e.Errno == unix.EINVAL || e.Errno == unix.EOPNOTSUPP)
	})
}

// CheckGuard checks the rules of Guard. It returns ErrMissing, with the names of what
// is missing, if they are not complete.
func (r *Ruleset) CheckGuard(ctx context.Context, families ...Family) error {
	var missing []string
	for _, f := range families {
		problems, err := r.problemsOf(ctx, guards[f].table)
		if err != nil {
			return fmt.Errorf("check the guard of the host: %w", err)
		}
		missing = append(missing, problems...)
	}
	return missingError(missing)
}
