package names_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
)

func TestPolicyChainReadsBack(t *testing.T) {
	for text, c := range map[string]names.PolicyChain{
		"policy_00ff_ingress":   {ID: "00ff", Direction: names.Ingress, Stage: names.NoStage},
		"policy_web_egress_0":   {ID: "web", Direction: names.Egress, Stage: 0},
		"policy_00ff_egress_12": {ID: "00ff", Direction: names.Egress, Stage: 12},
	} {
		require.Equal(t, text, c.String())
		read, ok := names.ParsePolicyChain(text)
		require.True(t, ok, text)
		require.Equal(t, c, read)
		require.Equal(t, c.ID, names.PolicyID(text))
		require.Equal(t, c.ID, names.PolicyID(c.Set(3)))
		require.Equal(t, text+"_3", c.Set(3))
	}
	for _, text := range []string{
		"", "policy_", "policy_00ff", "policy_00ff_", "policy__ingress", "policy_00ff_forward", "policy_00ff_ingress_", "policy_00ff_ingress_x",
		"policy_00ff_ingress_-1", "policy_00ff_ingress_01", "policy_00ff_ingress_0_1", "selection_00ff", "forward", "xpolicy_00ff_ingress",
	} {
		c, ok := names.ParsePolicyChain(text)
		require.False(t, ok, text)
		require.Zero(t, c)
	}
}

func TestSelectionSetReadsBack(t *testing.T) {
	name, ok := names.ParseSelectionSet(names.SelectionSet("00ff"))
	require.True(t, ok)
	require.Equal(t, "00ff", name)
	_, ok = names.ParseSelectionSet("policy_00ff_ingress")
	require.False(t, ok)
	require.Empty(t, names.PolicyID(names.SelectionSet("00ff")))
}

func FuzzParsePolicyChain(f *testing.F) {
	for _, text := range []string{"policy_00ff_ingress", "policy_web_egress_12", "policy_00ff_ingress_-1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if c, ok := names.ParsePolicyChain(text); ok {
			require.Equal(t, text, c.String())
			require.Equal(t, c.ID, names.PolicyID(text))
		}
	})
}
