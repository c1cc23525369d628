package ruleset

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// attachment returns the elements of an attachment of container c, with two
// host ports in both families.
func attachment(i int) *Elements {
	e := &Elements{Owner: names.Owner{Network: fmt.Sprint("net", i), ID: "c", IfName: fmt.Sprint("eth", i)}}
	for _, p := range []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 2}), 24),
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 7: byte(i), 15: 2}), 64),
	} {
		e.Published = append(e.Published, Published{p, SNATLocal})
		local := netip.MustParseAddr("127.0.0.1")
		if p.Addr().Is6() {
			local = netip.IPv6Loopback()
		}
		e.Mappings = append(e.Mappings, Mapping{Protocol: 6, HostPort: 8080, To: netip.AddrPortFrom(p.Addr(), 80)},
			Mapping{Protocol: 17, HostPort: 53, HostIP: local, To: netip.AddrPortFrom(p.Addr(), 53)})
	}
	return e
}

// requireActive checks that the host ports lead to an attachment.
func requireActive(t *testing.T, r *Ruleset, i int) {
	t.Helper()
	list, err := attachment(i).elements()
	require.NoError(t, err)
	found, err := r.lookUp(t.Context(), list)
	require.NoError(t, err)
	for j := range list {
		if list[j].isMapping() {
			require.Equal(t, list[j], found[j])
		}
	}
}

// TestShared: attachments of one container have the same host ports. When one
// is removed, the next one gets them at once.
func TestShared(t *testing.T) {
	r := open(t)
	for i := range 3 {
		for range 2 {
			require.NoError(t, r.Add(t.Context(), attachment(i)))
		}
		requireActive(t, r, 0)
		require.NoError(t, r.Check(t.Context(), attachment(i)))
	}
	other := attachment(3)
	other.Owner.ID = "d"
	require.ErrorIs(t, r.Add(t.Context(), other), ErrPortTaken)
	elsewhere := attachment(3)
	elsewhere.Owner.Instance = "1a2b"
	require.ErrorIs(t, r.Add(t.Context(), elsewhere), ErrPortTaken)

	require.NoError(t, r.Del(t.Context(), attachment(1)))
	require.ErrorIs(t, r.Check(t.Context(), attachment(1)), ErrMissing)
	requireActive(t, r, 0)
	require.NoError(t, r.Add(t.Context(), attachment(1)))
	for _, step := range []struct{ goes, stays int }{{0, 2}, {2, 1}} {
		for range 2 {
			require.NoError(t, r.Del(t.Context(), attachment(step.goes)))
			requireActive(t, r, step.stays)
			require.NoError(t, r.Check(t.Context(), attachment(step.stays)))
		}
	}
	require.NoError(t, r.Del(t.Context(), attachment(1)))
	require.Zero(t, countElements(t))
	require.NoError(t, r.Add(t.Context(), other))
}

// TestSharedOfAll: GC and the audit find attachments on standby.
func TestSharedOfAll(t *testing.T) {
	r := open(t)
	for i := range 3 {
		require.NoError(t, r.Add(t.Context(), attachment(i)))
	}
	of := func(list ...int) func(names.Owner) bool {
		return func(o names.Owner) bool {
			return strings.Contains(fmt.Sprint(list), strings.TrimPrefix(o.IfName, "eth"))
		}
	}
	texts, err := r.Owned(t.Context(), of(2))
	require.NoError(t, err)
	require.Contains(t, texts, "host port 8080/tcp -> 10.2.0.2:80 (standby) of allocnet:net2/c/eth2")
	require.Len(t, texts, 6)
	addresses, err := r.Addresses(t.Context(), attachment(2).Owner)
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{netip.MustParseAddr("10.2.0.2"), netip.MustParseAddr("fd00:0:0:2::2")}, addresses)

	require.NoError(t, r.DelOwned(t.Context(), of(0, 1)))
	requireActive(t, r, 2)
	require.NoError(t, r.Check(t.Context(), attachment(2)))
	require.NoError(t, r.DelOwned(t.Context(), of(2)))
	require.Zero(t, countElements(t))
}

// TestSharedRepair: Add restores whatever is missing.
func TestSharedRepair(t *testing.T) {
	for _, set := range []string{"host_ports", "standby_ports", ""} {
		r := open(t)
		for i := range 2 {
			require.NoError(t, r.Add(t.Context(), attachment(i)))
		}
		if set == "" {
			privhost.FlushRuleset(t)
		} else {
			nft(t, "flush", "map", "ip", "allocnet", set)
			require.ErrorIs(t, r.Check(t.Context(), attachment(1)), ErrMissing)
		}
		for _, i := range []int{1, 0} {
			require.NoError(t, r.Add(t.Context(), attachment(i)))
		}
		for i := range 2 {
			require.NoError(t, r.Check(t.Context(), attachment(i)))
		}
		require.NoError(t, r.Del(t.Context(), attachment(1)))
		requireActive(t, r, 0)
		require.NoError(t, r.Del(t.Context(), attachment(0)))
		require.Zero(t, countElements(t))
	}
}

// TestSharedOnOldTables: the map is added to tables of a version without it.
func TestSharedOnOldTables(t *testing.T) {
	r := open(t)
	require.NoError(t, r.Add(t.Context(), attachment(0)))
	for _, family := range []string{"ip", "ip6"} {
		nft(t, "delete", "map", family, "allocnet", "standby_ports")
	}
	require.NoError(t, r.Check(t.Context(), attachment(0)))
	require.NoError(t, r.Add(t.Context(), attachment(1)))
	require.NoError(t, r.Del(t.Context(), attachment(0)))
	requireActive(t, r, 1)
	for _, family := range []string{"ip", "ip6"} {
		nft(t, "delete", "map", family, "allocnet", "standby_ports")
	}
	require.NoError(t, r.Del(t.Context(), attachment(1)))
	require.Zero(t, countElements(t))
}

// TestSharedAtOnce: an attachment that is added while the other one is removed
// has the host ports in the end.
func TestSharedAtOnce(t *testing.T) {
	r, another := open(t), openAnother(t)
	require.NoError(t, r.Add(t.Context(), attachment(0)))
	for i := range 50 {
		goes, comes := i%2, 1-i%2
		var both sync.WaitGroup
		errs := make([]error, 2)
		for j, act := range []func(context.Context, *Elements) error{r.Del, another.Add} {
			both.Go(func() { errs[j] = act(t.Context(), attachment([]int{goes, comes}[j])) })
		}
		both.Wait()
		require.Equal(t, []error{nil, nil}, errs)
		requireActive(t, r, comes)
	}
	require.NoError(t, r.Del(t.Context(), attachment(0)))
	require.Zero(t, countElements(t))
}
