package ruleset

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// examples returns the elements of n allocations.
func examples(n int) []*Elements {
	var list []*Elements
	for i := range n {
		list = append(list, example(i+1))
	}
	return list
}

// TestRestore: whatever another program removed or changed is as before, and the
// attachments that it concerns are reported.
func TestRestore(t *testing.T) {
	all := []int{0, 1, 2}
	for name, test := range map[string]struct {
		damage [][]string
		want   []int
	}{
		"nothing":              {nil, nil},
		"flush of the ruleset": {[][]string{{"flush", "ruleset"}}, all},
		"a table gone":         {[][]string{{"delete", "table", "ip6", "allocnet"}}, all},
		"a table flushed":      {[][]string{{"flush", "table", "ip", "allocnet"}}, all},
		"a chain gone":         {[][]string{{"delete", "chain", "ip", "allocnet", "postrouting"}}, all},
		"asleep":               {[][]string{{"add", "table", "ip", "allocnet", "{ flags dormant; }"}}, all},
		"a map flushed":        {[][]string{{"flush", "map", "ip", "allocnet", "host_ports"}}, all},
		"an element gone":      {[][]string{{"delete", "element", "ip", "allocnet", "host_ports", "{ tcp . 2 }"}}, []int{1}},
		"an element changed": {[][]string{
			{"delete", "element", "ip", "allocnet", "host_ports", "{ tcp . 3 }"},
			{"add", "element", "ip", "allocnet", "host_ports", `{ tcp . 3 comment "allocnet:net/alloc-3/eth0" : 10.9.9.9 . 9 }`}}, []int{2}},
		"a network gone":     {[][]string{{"flush", "set", "ip", "allocnet", "networks"}}, []int{0}},
		"an unused set gone": {[][]string{{"delete", "map", "ip", "allocnet", "standby_ports"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r, list := open(t), examples(3)
			for _, e := range list {
				require.NoError(t, r.Add(t.Context(), e))
			}
			before := nft(t, "list", "ruleset")
			for _, args := range test.damage {
				nft(t, args...)
			}
			done, err := r.Restore(t.Context(), list)
			require.NoError(t, err)
			require.Equal(t, &Restored{Changed: test.want}, done)
			if name != "an unused set gone" { // the next Add of an element in it makes it
				require.ElementsMatch(t, lines(before), lines(nft(t, "list", "ruleset")))
			}
			done, err = r.Restore(t.Context(), list)
			require.NoError(t, err)
			require.Equal(t, &Restored{}, done)
		})
	}
}

// TestRestoreIsOneTransaction: the generation of the ruleset counts transactions.
func TestRestoreIsOneTransaction(t *testing.T) {
	r, list := open(t), examples(300)
	before := generation(t)
	_, err := r.Restore(t.Context(), list)
	require.NoError(t, err)
	require.Equal(t, before+1, generation(t))
	_, err = r.Restore(t.Context(), list)
	require.NoError(t, err)
	require.Equal(t, before+1, generation(t), "nothing was missing")
	for _, e := range list {
		require.NoError(t, r.Check(t.Context(), e))
	}
	nft(t, "flush", "map", "ip", "allocnet", "host_ports")
	before = generation(t)
	_, err = r.Restore(t.Context(), list)
	require.NoError(t, err)
	require.Equal(t, before+1, generation(t))
}

// TestRestoreInParts: with a send buffer that cannot grow, Restore succeeds as well.
func TestRestoreInParts(t *testing.T) {
	r, list := open(t), examples(300)
	n, err := r.compare(t.Context(), list)
	require.NoError(t, err)
	require.NoError(t, n.applyInParts(t.Context(), r))
	for _, e := range list {
		require.NoError(t, r.Check(t.Context(), e))
	}
	nft(t, "flush", "map", "ip6", "allocnet", "host_ports")
	n, err = r.compare(t.Context(), list)
	require.NoError(t, err)
	require.NoError(t, n.applyInParts(t.Context(), r))
	require.NoError(t, r.Check(t.Context(), list[299]))
}

// TestRestoreLeavesConflicts: a host port of two attachments goes to the first one, and
// one that another owner has stays with that owner. The other elements are restored.
func TestRestoreLeavesConflicts(t *testing.T) {
	r := open(t)
	first, second, third := example(1, "ip"), example(2, "ip"), example(3, "ip")
	second.Mappings[0].HostPort = 1
	done, err := r.Restore(t.Context(), []*Elements{first, second, third})
	require.NoError(t, err)
	require.Equal(t, &Restored{Changed: []int{0, 1, 2}, Unsettled: []int{1}}, done)
	require.NoError(t, r.Check(t.Context(), first))
	require.ErrorIs(t, r.Check(t.Context(), second), ErrMissing)

	nft(t, "delete", "element", "ip", "allocnet", "masqueraded", "{ 10.1.0.2 }")
	done, err = r.Restore(t.Context(), []*Elements{second, third})
	require.NoError(t, err)
	require.Equal(t, &Restored{Changed: []int{0}, Unsettled: []int{0}}, done)
	require.NoError(t, r.Check(t.Context(), first))
	second.Mappings = second.Mappings[1:]
	require.NoError(t, r.Check(t.Context(), second))
}

// TestRestoreSharedPorts: an attachment that waits for a host port of its container is
// left to Add.
func TestRestoreSharedPorts(t *testing.T) {
	r := open(t)
	list := []*Elements{attachment(0), attachment(1)}
	for _, e := range list {
		require.NoError(t, r.Add(t.Context(), e))
	}
	done, err := r.Restore(t.Context(), list)
	require.NoError(t, err)
	require.Equal(t, &Restored{Unsettled: []int{1}}, done)
	privhost.FlushRuleset(t)
	done, err = r.Restore(t.Context(), list)
	require.NoError(t, err)
	require.Equal(t, []int{1}, done.Unsettled)
	require.NoError(t, r.Check(t.Context(), list[0]))
	require.NoError(t, r.Add(t.Context(), list[1]))
	require.NoError(t, r.Check(t.Context(), list[1]))
}

// TestRestoreNestedNetworks: only the largest of nested networks is restored.
func TestRestoreNestedNetworks(t *testing.T) {
	r := open(t)
	var list []*Elements
	for _, p := range []string{"10.1.0.5/24", "10.1.0.6/16", "10.2.0.5/24", "10.1.3.5/24"} {
		list = append(list, &Elements{Owner: owner(p[:8]), Masquerade: []netip.Prefix{netip.MustParsePrefix(p)}})
	}
	for range 2 {
		_, err := r.Restore(t.Context(), list)
		require.NoError(t, err)
		for _, e := range list {
			require.NoError(t, r.Check(t.Context(), e))
		}
		privhost.FlushRuleset(t)
	}
}

// generation returns the number of the ruleset's generation, which every transaction
// increments.
func generation(t *testing.T) (number uint32) {
	t.Helper()
	s, err := sock.Open(unix.NETLINK_NETFILTER)
	require.NoError(t, err)
	defer s.Close()
	var answer error
	require.NoError(t, sock.Build(func(b *sock.Requests) {
		b.BeginNetfilter("", unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC)
	}, func(b *sock.Requests) error {
		return s.Exchange(t.Context(), b, func(_ int, payload []byte, err error) {
			answer = err
			sock.EachNetfilterAttribute(payload, func(kind uint16, value []byte) {
				if kind == unix.NFTA_GEN_ID {
					number = sock.Uint32BE(value)
				}
			})
		})
	}))
	require.NoError(t, answer)
	return number
}
