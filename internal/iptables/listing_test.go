package iptables

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	tests := []struct {
		name, text string
		want       Listing
		broken     bool
	}{
		{name: "nothing"},
		{
			name: "chains",
			text: "-P POSTROUTING ACCEPT\n-P INPUT ACCEPT -c 0 0\n-N CNI-0123\n",
			want: Listing{Chains: []string{"POSTROUTING", "INPUT", "CNI-0123"}},
		},
		{
			name: "plain words",
			text: "-A CNI-FORWARD -s 10.0.0.2/32 -j ACCEPT",
			want: listingOf("CNI-FORWARD", "-s", "10.0.0.2/32", "-j", "ACCEPT"),
		},
		{
			name: "no spec",
			text: "-A FORWARD",
			want: Listing{Rules: []Rule{{Chain: "FORWARD", Spec: []string{}}}},
		},
		{
			name: "quotes in a comment, space behind the closing quote",
			text: `-A POSTROUTING -m comment --comment "name: \"net\" id: \"abc\""  -j CNI-1`,
			want: listingOf("POSTROUTING", "-m", "comment", "--comment", `name: "net" id: "abc"`, "-j", "CNI-1"),
		},
		{
			name: "Go's quoting inside iptables' quoting",
			text: `-A P --comment "name: \"a\\\"b\" id: \"it\'s \\x\""`,
			want: listingOf("P", "--comment", `name: "a\"b" id: "it's \x"`),
		},
		{
			name: "an escape that iptables does not need",
			text: `-A P --comment "\a\ \n"`,
			want: listingOf("P", "--comment", "a n"),
		},
		{
			name: "line break inside quotes",
			text: "-A P --comment \"two\n-A lines\" -j X\n-N Y",
			want: Listing{
				Chains: []string{"Y"},
				Rules:  []Rule{{Chain: "P", Spec: []string{"--comment", "two\n-A lines", "-j", "X"}}},
			},
		},
		{
			name: "empty word",
			text: `-A P --comment "" -j X`,
			want: listingOf("P", "--comment", "", "-j", "X"),
		},
		{
			name: "quote and backslash inside a bare word stay",
			text: `-A P --comment a"b\c -j X`,
			want: listingOf("P", "--comment", `a"b\c`, "-j", "X"),
		},
		{
			name: "warning line",
			text: "# Warning: iptables-legacy tables present, \"use\" iptables-legacy\n-N X",
			want: Listing{Chains: []string{"X"}},
		},
		{
			name:   "missing quote spoils its line only",
			text:   "-A P --comment \"x -j Y\n-N X",
			want:   Listing{Chains: []string{"X"}},
			broken: true,
		},
		{
			name:   "closing quote inside a word",
			text:   "-A P --comment \"x\"y -j Z\n-N X",
			want:   Listing{Chains: []string{"X"}},
			broken: true,
		},
		{
			name:   "backslash at the end",
			text:   `-A P --comment "x\`,
			broken: true,
		},
		{
			name:   "unknown statement",
			text:   "-X FOO\n-N\n-N X",
			want:   Listing{Chains: []string{"X"}},
			broken: true,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Parse(strings.Split(test.text, "\n"))
			require.Equal(t, test.want, got)
			require.Equal(t, test.broken, err != nil, "error: %v", err)
		})
	}
}

func listingOf(chain string, spec ...string) Listing {
	return Listing{Rules: []Rule{{Chain: chain, Spec: spec}}}
}

func TestRuleValue(t *testing.T) {
	tests := []struct{ line, option, want string }{
		{"-A X -s 10.0.0.2/32 -j Y", "-s", "10.0.0.2/32"},
		{"-A X -s 10.0.0.2/32 -j Y", "-j", "Y"},
		{"-A X -s 10.0.0.2/32 -j Y", "-d", ""},
		{"-A X ! -s 10.0.0.2/32 -j Y", "-s", ""},
		{"-A X ! -s 10.0.0.2/32 -j Y", "-j", "Y"},
		{"-A X ! --syn -j Y", "-j", "Y"},
		{"-A X -m comment --comment -j -j Y", "-j", "Y"},
		{`-A X -m comment --comment "-j Z" -j Y`, "-j", "Y"},
		{"-A X -m comment --comment ! -j Y", "-j", "Y"},
		{"-A X -m comment --comment --comment", "--comment", "--comment"},
		{"-A X -j", "-j", ""},
	}
	for _, test := range tests {
		t.Run(test.line+" "+test.option, func(t *testing.T) {
			listing, err := Parse([]string{test.line})
			require.NoError(t, err)
			require.Len(t, listing.Rules, 1)
			require.Equal(t, test.want, listing.Rules[0].Value(test.option))
		})
	}
}

func TestRuleString(t *testing.T) {
	rule := Rule{Chain: "POSTROUTING", Spec: []string{
		"-s", "10.0.0.2/32", "-m", "comment", "--comment", `name: "it's" id: "a\b"`, "-j", "CNI-1",
	}}
	require.Equal(t,
		`-A POSTROUTING -s 10.0.0.2/32 -m comment --comment "name: \"it\'s\" id: \"a\\b\"" -j CNI-1`, rule.String())
}

func FuzzParse(f *testing.F) {
	f.Add("-P INPUT ACCEPT\n-N X\n-A X -m comment --comment \"name: \\\"a\\\" id: \\\"b\\\"\" -j Y")
	f.Add("-A X ! -s 1.2.3.4/32 --comment \"two\nlines\\'\\\\\"")
	f.Add("-A X \"\\")
	f.Fuzz(func(t *testing.T, text string) {
		listing, _ := Parse([]string{text})
		for _, rule := range listing.Rules {
			again, err := Parse([]string{rule.String()})
			require.NoError(t, err)
			require.Equal(t, []Rule{rule}, again.Rules)
		}
	})
}

func FuzzQuote(f *testing.F) {
	f.Add(`name: "a" id: "it's\"`)
	f.Add("")
	f.Add("#\n")
	f.Fuzz(func(t *testing.T, text string) {
		listing, err := Parse([]string{"-A X " + Quote(text) + " -j Y"})
		require.NoError(t, err)
		require.Equal(t, []Rule{{Chain: "X", Spec: []string{text, "-j", "Y"}}}, listing.Rules)
	})
}
