package rtnl_test

import (
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// TestSourceRules: source rules are added once, listed by link, and deleted when their link is gone.
// Other rules stay.
func TestSourceRules(t *testing.T) {
	h := open(t)
	s, first, second := newSandbox(t, "a"), veth("rules-a"), veth("rules-b")
	second.PeerName = "eth1"
	require.NoError(t, h.CreateVeth(first, s))
	require.NoError(t, h.CreateVeth(second, s))
	ip := func(args string) (out string) {
		t.Helper()
		require.NoError(t, s.Do(func() error {
			text, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
			out = string(text)
			return err
		}), args)
		return out
	}
	rules := func() string { return ip("rule") + ip("-6 rule") }
	before := rules()
	ip("rule add from 10.9.0.9 lookup 100 pref 30000")
	ip("-6 rule add from fd00:9::9 lookup 1073741900 pref 29999")
	foreign := rules()

	for range 2 {
		var b rtnl.Batch
		b.AddSourceRule(net.ParseIP("10.9.0.2"), first.PeerIndex)
		b.AddSourceRule(net.ParseIP("fd00:9::2"), first.PeerIndex)
		b.AddSourceRule(net.ParseIP("10.9.0.3"), second.PeerIndex)
		require.NoError(t, s.Apply(&b))
	}
	require.Len(t, strings.Split(rules(), "\n"), len(strings.Split(foreign, "\n"))+3)
	of := func(index int) (texts []string) {
		t.Helper()
		from, err := s.SourceRules(index)
		require.NoError(t, err)
		for _, one := range from {
			texts = append(texts, one.String())
		}
		return texts
	}
	require.ElementsMatch(t, []string{"10.9.0.2", "fd00:9::2"}, of(first.PeerIndex))
	require.Equal(t, []string{"10.9.0.3"}, of(second.PeerIndex))
	require.Empty(t, of(100))

	both := rules()
	require.NoError(t, s.DelOrphanedSourceRules())
	require.Equal(t, both, rules(), "their links exist")
	_, err := h.DeleteLink(t.Context(), first.Name)
	require.NoError(t, err)
	require.NoError(t, s.DelOrphanedSourceRules())
	require.Empty(t, of(first.PeerIndex))
	require.Equal(t, []string{"10.9.0.3"}, of(second.PeerIndex))
	_, err = h.DeleteLink(t.Context(), second.Name)
	require.NoError(t, err)
	require.NoError(t, s.DelOrphanedSourceRules())
	require.Equal(t, foreign, rules())
	ip("rule del from 10.9.0.9 lookup 100 pref 30000")
	ip("-6 rule del from fd00:9::9 lookup 1073741900 pref 29999")
	require.Equal(t, before, rules())
}

// TestTryRoute: a route yields to one over another link only if both have the same destination and
// priority.
func TestTryRoute(t *testing.T) {
	h := open(t)
	s, first, second := newSandbox(t, "a"), veth("try-a"), veth("try-b")
	second.PeerName = "eth1"
	require.NoError(t, h.CreateVeth(first, s))
	require.NoError(t, h.CreateVeth(second, s))
	require.NoError(t, s.SetUp(first.PeerIndex))
	require.NoError(t, s.SetUp(second.PeerIndex))
	try := func(to string, index, priority int) (taken bool) {
		t.Helper()
		_, dst, err := net.ParseCIDR(to)
		require.NoError(t, err)
		var b rtnl.Batch
		b.TryRoute(&rtnl.Route{Index: index, Dst: dst, Priority: priority}, &taken)
		require.NoError(t, s.Apply(&b))
		return taken
	}
	for _, all := range []string{"0.0.0.0/0", "::/0"} {
		require.False(t, try(all, first.PeerIndex, 0))
		require.True(t, try(all, second.PeerIndex, 0))
		require.False(t, try(all, second.PeerIndex, rtnl.Fallback(second.PeerIndex)))
	}
	require.False(t, try("10.8.0.0/16", second.PeerIndex, 0))
	require.False(t, try("fd00:8::/64", second.PeerIndex, 0))
}
