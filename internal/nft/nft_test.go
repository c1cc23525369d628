package nft

import (
	"errors"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestScript(t *testing.T) {
	table := &Table{Family: "ip", Name: "web"}
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
	s.Delete(Rule{Chain: "second", Handle: 7, Comment: "gone"})
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

// TestCommentThatWouldEnd is refused before anything runs: what came after it
// would be nft's.
func TestCommentThatWouldEnd(t *testing.T) {
	for _, comment := range []string{`a" ; flush ruleset ; #`, "a\nflush ruleset"} {
		s := (&Table{Family: "ip", Name: "web", path: "/nowhere"}).Script()
		s.Rule("first", comment, "accept")
		require.ErrorContains(t, s.table.Run(t.Context(), s), "cannot be a comment")
	}
}

func TestParse(t *testing.T) {
	rules, err := parse([]byte(`{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"chain": {"name": "c", "handle": 1}},
		{"rule": {"family": "ip", "table": "web", "chain": "c", "handle": 4, "expr": [{"accept": null}]}},
		{"rule": {"family": "ip", "table": "web", "chain": "c", "handle": 5, "comment": "mine", "expr": []}}]}`))
	require.NoError(t, err)
	require.Equal(t, []Rule{{Chain: "c", Handle: 4}, {Chain: "c", Handle: 5, Comment: "mine"}}, rules)
	_, err = parse([]byte(`{"nftables": [`))
	require.ErrorContains(t, err, "read what nft lists")
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"nftables": [{"rule": {"chain": "c", "handle": 4, "comment": "mine"}}, {"rule": null}]}`))
	f.Fuzz(func(t *testing.T, listing []byte) {
		if rules, err := parse(listing); err != nil {
			require.Nil(t, rules)
		}
	})
}

func TestNotInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Open("ip", "web")
	require.True(t, errors.Is(err, exec.ErrNotFound))
}
