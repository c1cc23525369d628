package configurator

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

const policyPlugin = `{"type":"policy","capabilities":{"policy":true}}`

// oldNetwork adds a routed network with network policies.
func (h *testHost) oldNetwork(name, version, leases string) {
	h.file(name+".conflist", fmt.Sprintf(`{"cniVersion":%q,"name":%q,"plugins":[
		{"type":"ptp","ipam":{"type":"host-local","dataDir":%q,"subnet":"10.78.0.0/24"}},%s]}`, version, name, leases, policyPlugin))
}

// TestUpdateOfOldVersions: labels and the policy can be changed on networks of every CNI version.
// Versions before 0.4.0 have no prevResult for CHECK and DEL, but allocnet knows the result.
func TestUpdateOfOldVersions(t *testing.T) {
	for _, versions := range [][2]string{{"0.3.0", "0.3.1"}, {"0.3.1", "1.0.0"}, {"1.0.0", "0.3.1"}} {
		t.Run(versions[0]+" and "+versions[1], func(t *testing.T) {
			h, leases := nativeHost(t, versions[0], policyPlugin)
			h.oldNetwork("more", versions[1], leases)
			a, app := h.alloc("a"), "web"
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			isolated := &policy.Policy{Presets: []policy.Preset{policy.Isolated}}
			for _, change := range []Change{{Labels: map[string]*string{"app": &app}}, {Policy: isolated}} {
				_, err = h.Update(t.Context(), a.ID, change)
				require.NoError(t, err)
			}
			_, err = h.Attach(t.Context(), a.ID, "more", AttachOptions{})
			require.NoError(t, err)
			_, err = h.Update(t.Context(), a.ID, Change{Policy: &policy.Policy{}})
			require.NoError(t, err)
			_, err = h.Update(t.Context(), a.ID, Change{Policy: isolated})
			require.NoError(t, err)
			require.NoError(t, h.Check(t.Context(), a))
			r, err := h.Get(t.Context(), a.ID)
			require.NoError(t, err)
			require.Equal(t, isolated, r.Policy)
			require.Equal(t, map[string]string{"app": "web"}, r.Labels)
			_, err = h.Detach(t.Context(), a.ID, "eth1", "")
			require.NoError(t, err)
			require.NoError(t, h.Teardown(t.Context(), a))
			h.requireNoRecords()
		})
	}
}

// TestCheckOfOldVersions: the native plugins notice and restore what another program has removed, also
// on networks whose version has no CHECK.
func TestCheckOfOldVersions(t *testing.T) {
	for _, version := range []string{"0.3.0", "0.3.1", "0.4.0"} {
		t.Run(version, func(t *testing.T) {
			h, leases := nativeHost(t, version, `{"type":"firewall"}`, `{"type":"portmap","snat":true,"capabilities":{"portMappings":true}}`,
				`{"type":"tuning","sysctl":{"net.ipv4.conf.all.log_martians":"1"}}`, `{"type":"bandwidth","ingressRate":1000000,"ingressBurst":1000000}`, policyPlugin)
			h.oldNetwork("more", version, leases)
			a := h.alloc("a")
			a.Ports = []portmap.Port{{Value: 8080, To: 80}}
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			_, err = h.Attach(t.Context(), a.ID, "more", AttachOptions{})
			require.NoError(t, err)
			require.NoError(t, h.Check(t.Context(), a))
			privhost.FlushRuleset(t)
			require.ErrorIs(t, h.Check(t.Context(), a), ErrUnhealthy)
			repaired, err := h.Repair(t.Context())
			require.NoError(t, err)
			require.Equal(t, []string{"a"}, repaired.Repaired)
			require.NoError(t, h.Check(t.Context(), a))
			require.NoError(t, h.Teardown(t.Context(), a))
		})
	}
}
