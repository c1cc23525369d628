package builtin_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/state/policystate"
)

// policed returns the configuration of the plugin policy for an allocation. policy is "" for none.
func policed(conf object, id, policy string) object {
	request := object{"allocation": id, "labels": object{"app": id}}
	if policy != "" {
		request["policy"] = object{"presets": []any{policy}}
	}
	return object{"cniVersion": "1.0.0", "name": conf["name"], "type": "policy", "runtimeConfig": object{"policy": request}}
}

// TestPolicyLife: what ADD makes for an allocation with a policy and without one, CHECK compares,
// Repair restores, and DEL removes. Another allocation keeps its own.
func TestPolicyLife(t *testing.T) {
	for _, conf := range []object{guardedBridge(), guardedLinks("net")} {
		for _, policy := range []string{"", "isolated", "no-metadata"} {
			t.Run(conf["type"].(string)+" "+policy, func(t *testing.T) { testPolicyLife(t, conf, policy) })
		}
	}
}

func testPolicyLife(t *testing.T, conf object, policy string) {
	g := newGuardTest(t)
	dir := t.TempDir()
	g.native.exec.Host.Policies = policystate.New(dir)
	other, otherResult, _ := g.add("other", conf)
	t.Cleanup(func() { _, _ = g.native.run("DEL", other, withResult(t, conf, otherResult)) })
	require.NoError(t, g.run("ADD", other, policed(conf, "other", "isolated"), otherResult))

	a, result, _ := g.add("a", conf)
	t.Cleanup(func() { _, _ = g.native.run("DEL", a, withResult(t, conf, result)) })
	before, members := policyTables(t), files(t, dir)
	own := policed(conf, "a", policy)
	for range 2 {
		require.NoError(t, g.run("ADD", a, own, result))
	}
	require.NoError(t, g.run("CHECK", a, own, result))
	set := policyTables(t)
	require.NotEqual(t, before, set)

	output(t, "nft", "delete", "table", "ip", names.PolicyTable)
	require.Error(t, g.run("CHECK", a, own, result))
	require.NoError(t, g.run(sdk.Repair, a, own, result))
	require.NoError(t, g.run(sdk.Repair, other, policed(conf, "other", "isolated"), otherResult))
	require.NoError(t, g.run("CHECK", a, own, result))
	require.Equal(t, set, policyTables(t))

	for range 2 {
		require.NoError(t, g.run("DEL", a, own, result))
		require.Equal(t, before, policyTables(t))
		require.Equal(t, members, files(t, dir))
	}
	require.NoError(t, g.run("CHECK", other, policed(conf, "other", "isolated"), otherResult))
	require.NoError(t, g.run("DEL", other, policed(conf, "other", "isolated"), otherResult))
	require.NotContains(t, policyTables(t), "allocnet:net/other/eth0")
}

// policyTables returns the lines of the tables of policies.
func policyTables(t *testing.T) string {
	t.Helper()
	return sorted(output(t, "nft", "list", "table", "ip", names.PolicyTable) + output(t, "nft", "list", "table", "ip6", names.PolicyTable))
}

// files returns the paths of the files below a directory.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var list []string
	for _, pattern := range []string{"*/*", "*/*/*", "*/*/*/*"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		require.NoError(t, err)
		list = append(list, found...)
	}
	return list
}
