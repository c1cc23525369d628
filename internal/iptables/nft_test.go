package iptables

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestScript(t *testing.T) {
	table := &NFTable{Family: "ip", Name: "web"}
	s := table.Script()
	require.True(t, s.Empty())
	s.Make("of a test")
	s.Chain("first", "")
	s.Chain("second", "with words")
	s.NAT("output", "output", -100)
	s.Flush("first")
	s.Rule("first", "", "jump", "second")
	words := append(make([]string, 0, 9), "tcp dport 80", "accept")
	s.Rule("second", "one, two", words...)
	s.Rule("second", "other", words...)
	s.Delete(NFTRule{Chain: "second", Handle: 7, Comment: "gone"})
	require.False(t, s.Empty())
	require.Equal(t, `add table ip web { comment "of a test" ; }
add chain ip web first
add chain ip web second { comment "with words" ; }
add chain ip web output { type nat hook output priority -100 ; }
flush chain ip web first
add rule ip web first jump second
add rule ip web second tcp dport 80 accept comment "one, two"
add rule ip web second tcp dport 80 accept comment "other"
delete rule ip web second handle 7
`, s.text.String())
}

// TestCommentThatWouldEnd: a comment with a quote or a line break is refused before anything
// runs, because nft would execute what follows it.
func TestCommentThatWouldEnd(t *testing.T) {
	for _, comment := range []string{`a" ; flush ruleset ; #`, "a\nflush ruleset"} {
		s := (&NFTable{Family: "ip", Name: "web"}).Script()
		s.Rule("first", comment, "accept")
		require.ErrorContains(t, s.table.Run(t.Context(), s), "cannot be a comment")
	}
}

// TestNotInstalled: a missing program changes nothing, and existing rules are
// detected anyway.
func TestNotInstalled(t *testing.T) {
	privhost.Require(t, "nft")
	table := &NFTable{Family: "ip", Name: "seen"}
	s := table.Script()
	s.Make("of a test")
	s.Chain("first", "")
	s.Rule("first", "mine", "accept")
	require.NoError(t, table.Run(t.Context(), s))
	t.Run("away", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		require.ErrorIs(t, table.Usable(t.Context()), exec.ErrNotFound)
		rules, err := table.Rules(t.Context(), "first")
		require.NoError(t, err)
		require.Len(t, rules, 1)
		require.Equal(t, "mine", rules[0].Comment)
	})
}
