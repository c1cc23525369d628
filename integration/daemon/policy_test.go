package daemon

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/testbed"
)

// capabilities returns cnitool's variable for capability arguments.
func capabilities(t testing.TB, args map[string]any) string {
	t.Helper()
	data, err := json.Marshal(args)
	require.NoError(t, err)
	return "CAP_ARGS=" + string(data)
}

// TestDaemonPolicyFromTheRuntime: a runtime passes the policy and the labels of a container
// through the manager's configuration, and they are active when ADD returns.
func TestDaemonPolicyFromTheRuntime(t *testing.T) {
	m := newManaged(t)
	chain := append(testbed.Chain("ptp", testbed.V4Only, ""), map[string]any{"type": "policy", "capabilities": map[string]bool{"policy": true}})
	m.list("net", "1.1.0", chain...)
	require.NoError(t, os.WriteFile(m.ready, nil, 0o600))
	m.delegates("net")
	m.eventually("the own configuration declares policy", func() bool {
		c := m.load("net").Plugins[0].Network.Capabilities
		return c["policy"] && c["labels"]
	})
	onlyWeb := map[string]any{"ingress": map[string]any{"default": "deny", "rules": []any{
		map[string]any{"peers": []any{map[string]any{"labels": map[string]string{"app": "web"}}}},
	}}}
	for _, mode := range awayAndUp {
		mode.turn(m.cni)
		db, web, other := m.h.netns("db"+mode.name), m.h.netns("web"+mode.name), m.h.netns("other"+mode.name)
		testbed.Serve(t, db, "tcp", 80, "db")
		_, err := m.tool("add", "net", db, capabilities(t, map[string]any{"policy": map[string]any{"ingres": map[string]any{}}}))
		require.ErrorContains(t, err, `runtimeConfig: policy: parse policy: unknown field "ingres"`)
		request := capabilities(t, map[string]any{"policy": onlyWeb, "labels": map[string]string{"app": "db"}})
		result, _ := m.result("net", db, request)
		m.result("net", web, capabilities(t, map[string]any{"labels": map[string]string{"app": "web"}}))
		m.result("net", other)
		at := fmt.Sprintf("%s:80", result.IPs[0].Address.IP)
		testbed.RequireSilence(t, other, "tcp", at)
		testbed.RequireAnswer(t, web, "tcp", at, "db")
		m.ok("check", "net", db, request)
		r, err := m.h.Get(t.Context(), m.allocation(db))
		require.NoError(t, err)
		require.Equal(t, map[string]string{"app": "db"}, r.Labels)
		require.False(t, r.Policy.IsEmpty())
		for _, netns := range []string{db, web, other} {
			m.ok("del", "net", netns)
		}
		require.Empty(t, m.h.phases())
	}
}
