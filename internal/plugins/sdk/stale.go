package sdk

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/conntrack"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/retry"
)

// FlushStale deletes the tracked connections from and to addresses whose source the rules translate now, and did not
// when the connections began, because something was missing; or the reverse. The kernel decides on the first packet
// of a connection only: without that, the others would leave the host with the address of the allocation for as long
// as it sends.
func (h *Host) FlushStale(ctx context.Context, addresses ...netip.Addr) error {
	if len(addresses) == 0 {
		return nil
	}
	return flushStale(ctx, h.Rules, h.Conntrack, addresses...)
}

// flushStale is FlushStale; without addresses, that of all.
func flushStale(ctx context.Context, rules *ruleset.Ruleset, conn *conntrack.Conn, addresses ...netip.Addr) error {
	if conn.Empty() {
		return nil
	}
	n, err := rules.Translations(ctx)
	if err != nil {
		return err
	}
	concerned := make(map[netip.Addr]bool, len(addresses))
	for _, a := range addresses {
		concerned[a] = true
	}
	return flushForwarded(ctx, conn, func(e conntrack.Entry) bool {
		return (len(addresses) == 0 || concerned[e.Source] || concerned[e.Answers]) &&
			n.Stale(e.Source, e.Answers, e.Answers != e.Destination, e.AnswersTo != e.Source)
	})
}

// FlushForwarded deletes the tracked connections that the host forwards and for which stale returns true.
func (h *Host) FlushForwarded(ctx context.Context, stale func(conntrack.Entry) bool) error {
	return flushForwarded(ctx, h.Conntrack, stale)
}

func flushForwarded(ctx context.Context, conn *conntrack.Conn, stale func(conntrack.Entry) bool) error {
	own, err := rtnl.ListHostAddresses()
	if err != nil {
		return err
	}
	received := map[netip.Addr]bool{} // by the host itself, because of a route of the type local
	var failed error
	receives := func(a netip.Addr) bool {
		if _, known := received[a]; !known {
			is, err := rtnl.IsLocal(a)
			failed, received[a] = errors.Join(failed, err), is
		}
		return own.Receives(a) || received[a]
	}
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		err := retry.Do(ctx, func() error {
			return conn.DeleteMatching(ctx, family, func(e conntrack.Entry) bool { return stale(e) && !receives(e.Answers) })
		})
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		return fmt.Errorf("flush connections that rules translate otherwise: %w", failed)
	}
	return nil
}
