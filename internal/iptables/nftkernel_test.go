package iptables

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// TestNFTable creates rules, finds them, and deletes one of them. A script is
// applied as a whole or not at all.
func TestNFTable(t *testing.T) {
	privhost.Require(t, "nft")
	table := &NFTable{Family: "inet", Name: "web"}
	require.NoError(t, table.Usable(t.Context()))
	rules, err := table.Rules(t.Context(), "first")
	require.NoError(t, err)
	require.Empty(t, rules, "there is no table yet")

	for range 2 {
		s := table.Script()
		s.Make("of a test")
		s.Chain("first", "with words")
		s.NAT("postrouting", "postrouting", 100)
		s.Flush("first")
		s.Rule("first", "one", "tcp dport 80 accept")
		s.Rule("first", "two", "tcp dport 81 accept")
		require.NoError(t, table.Run(t.Context(), s))
	}
	rules, err = table.Rules(t.Context(), "first")
	require.NoError(t, err)
	require.Len(t, rules, 2)

	s := table.Script()
	s.Delete(rules[0])
	s.Rule("absent", "", "accept")
	require.ErrorContains(t, table.Run(t.Context(), s), "No such file or directory")
	s = table.Script()
	s.Delete(rules[0])
	require.NoError(t, table.Run(t.Context(), s))
	left, err := table.Rules(t.Context(), "first")
	require.NoError(t, err)
	require.Equal(t, rules[1:], left)
}
