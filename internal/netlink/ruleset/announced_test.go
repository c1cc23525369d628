package ruleset

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func announced(to string, table uint32, link int) Route {
	return Route{Address: netip.MustParsePrefix(to), Table: table, Protocol: 91, Link: link}
}

// TestAnnounced: the elements of routes have all of the route and its owner, also after the
// host has restored them from nft's own listing.
func TestAnnounced(t *testing.T) {
	r := open(t)
	a := &Elements{Owner: owner("a"), Announced: []Route{announced("10.1.0.2/32", 100, 5), announced("10.1.0.2/32", 200, 5), announced("fd01::2/64", 100, 0)}}
	b := &Elements{Owner: owner("b"), Announced: []Route{announced("10.1.0.3/24", 100, 6)}}
	found, err := r.Announced(t.Context(), a.Announced)
	require.NoError(t, err)
	require.Equal(t, make([]AnnouncedRoute, 3), found, "there is no table yet")
	require.NoError(t, r.Add(t.Context(), a))
	require.NoError(t, r.Add(t.Context(), b))
	listed := nft(t, "list", "ruleset")
	privhost.FlushRuleset(t)
	load(t, listed)
	require.NoError(t, r.Check(t.Context(), a))
	require.NoError(t, r.Check(t.Context(), b))

	found, err = r.Announced(t.Context(), []Route{a.Announced[2], announced("10.1.0.9/32", 100, 5), announced("10.1.0.3/24", 100, 9)})
	require.NoError(t, err)
	require.Equal(t, []AnnouncedRoute{{a.Announced[2], a.Owner}, {}, {b.Announced[0], b.Owner}}, found)
	all, err := r.AnnouncedOf(t.Context(), func(o names.Owner) bool { return o.ID == "a" })
	require.NoError(t, err)
	require.ElementsMatch(t, []AnnouncedRoute{{a.Announced[0], a.Owner}, {a.Announced[1], a.Owner}, {a.Announced[2], a.Owner}}, all)

	moved := &Elements{Owner: owner("a"), Announced: []Route{announced("10.1.0.2/32", 100, 8)}}
	require.ErrorIs(t, r.Check(t.Context(), moved), ErrMissing, "the link is another one")
	require.NoError(t, r.Add(t.Context(), moved))
	require.NoError(t, r.Check(t.Context(), moved))
	require.NoError(t, r.Del(t.Context(), b))
	require.NoError(t, r.Del(t.Context(), a))
	require.Zero(t, countElements(t))
	for _, bad := range []string{"::ffff:10.1.0.2/128"} {
		require.ErrorContains(t, r.Add(t.Context(), &Elements{Announced: []Route{announced(bad, 100, 1)}}), "is not an address with a prefix length")
	}
	require.Error(t, r.Add(t.Context(), &Elements{Announced: []Route{{Table: 100}}}))
}

// TestFindAnnounced: one of many routes to a network is found, and none of others.
func TestFindAnnounced(t *testing.T) {
	r := open(t)
	network := netip.MustParsePrefix("10.1.0.0/16")
	everyone := func(names.Owner) bool { return true }
	_, found, err := r.FindAnnounced(t.Context(), network, 100, everyone)
	require.NoError(t, err)
	require.False(t, found)
	for i := range 300 {
		e := &Elements{Owner: owner(fmt.Sprint(i)), Announced: []Route{announced(fmt.Sprintf("10.1.%d.%d/16", i/250, i%250), 100, 5)}}
		require.NoError(t, r.Add(t.Context(), e))
	}
	one, found, err := r.FindAnnounced(t.Context(), network, 100, everyone)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, network, one.Address.Masked())
	visited := 0
	again, found, err := r.FindAnnounced(t.Context(), network, 100, func(names.Owner) bool { visited++; return true })
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, one, again)
	require.Equal(t, 1, visited, "the last one is looked up")
	require.NoError(t, r.Del(t.Context(), &Elements{Owner: one.Owner, Announced: []Route{one.Route}}))
	again, found, err = r.FindAnnounced(t.Context(), network, 100, everyone)
	require.NoError(t, err)
	require.True(t, found)
	require.NotEqual(t, one, again)
	one, found, err = r.FindAnnounced(t.Context(), network, 100, func(o names.Owner) bool { return o.ID == "299" })
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, "299", one.Owner.ID)
	for _, other := range []string{"10.1.0.0/24", "10.2.0.0/16", "fd01::/64"} {
		_, found, err = r.FindAnnounced(t.Context(), netip.MustParsePrefix(other), 100, everyone)
		require.NoError(t, err)
		require.False(t, found, other)
	}
	_, found, err = r.FindAnnounced(t.Context(), network, 101, everyone)
	require.NoError(t, err)
	require.False(t, found)
}

// load runs nft with a text.
func load(t *testing.T, text string) {
	t.Helper()
	file := t.TempDir() + "/rules.nft"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	nft(t, "-f", file)
}
