package ruleset

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
)

// TestNamesOfAPolicy: the name of each chain of a policy says its policy, direction and stage, and
// the comment of each rule the name of the rule. The names of sets say the policy or the selection.
func TestNamesOfAPolicy(t *testing.T) {
	p := examplePolicy()
	named := map[names.PolicyChain][]string{
		{ID: p.ID, Direction: names.Egress, Stage: names.NoStage}: {"stage", "stage", "stage"},
		{ID: p.ID, Direction: names.Egress, Stage: 0}:             {"preset no-metadata", "no-services", "several-services", "several-services", "preset no-metadata"},
		{ID: p.ID, Direction: names.Egress, Stage: 1}: {
			"egress.rules[0]", "egress.rules[1]", "egress.rules[2]", "egress.rules[2]", "egress.rules[3]", "egress.rules[5]", "egress.rules[6]",
			"egress.rules[7]", "egress.rules[8]", "egress.rules[9]", "egress.rules[9]", "egress.rules[9]", "default"},
		{ID: p.ID, Direction: names.Egress, Stage: 2}: {"preset no-host", "preset no-host", "preset no-host"},
		{ID: p.ID, Direction: names.Ingress, Stage: names.NoStage}: {"ingress.rules[0]", "ingress.rules[0]", "host",
			"preset published-only", "preset published-only", "preset published-only", "preset published-only", "default"},
	}
	n, err := p.objects(policies4)
	require.NoError(t, err)
	read := map[names.PolicyChain][]string{}
	for i := range n.chains {
		c, ok := names.ParsePolicyChain(n.chains[i].name)
		require.True(t, ok, n.chains[i].name)
		for _, r := range n.chains[i].rules {
			read[c] = append(read[c], Purpose(r.comment))
			require.NotEqual(t, r.comment, Purpose(r.comment), "it ends in a digest")
		}
	}
	require.Equal(t, named, read)
	for _, link := range n.links {
		c, ok := names.ParsePolicyChain(link.value.chain)
		require.True(t, ok)
		require.Contains(t, named, c)
	}
	require.NotEmpty(t, n.sets)
	for _, s := range n.sets {
		require.Equal(t, p.ID, names.PolicyID(s.name))
	}
	for i, s := range n.selections {
		selection, ok := names.ParseSelectionSet(s.name)
		require.True(t, ok)
		require.Equal(t, p.Selections[i].Name, selection)
	}
}

// TestPurpose: only a digest is removed from a comment.
func TestPurpose(t *testing.T) {
	for comment, want := range map[string]string{
		"default [0123abcd]": "default", "a [b] [0123abcd]": "a [b]", " [0123abcd]": "",
		"": "", "default": "default", "egress.rules[0]": "egress.rules[0]", "default [0123abcx]": "default [0123abcx]",
		"default [0123abcd] ": "default [0123abcd] ", "default[0123abcd]": "default[0123abcd]", "default [0123abcde]": "default [0123abcde]",
		"[0123abcd]": "[0123abcd]", "]": "]",
	} {
		require.Equal(t, want, Purpose(comment), comment)
	}
}
