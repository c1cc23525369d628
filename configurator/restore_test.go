package configurator

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// restoreHost is a host with n allocations, each with a host port. Odd ones are in a network
// of plugin ptp.
func restoreHost(t *testing.T, n int) (h *testHost, allocs []Allocation) {
	t.Helper()
	privhost.FlushRuleset(t) // another test's
	others := []string{`{"type":"firewall"}`, `{"type":"portmap","capabilities":{"portMappings":true}}`}
	h, leases := nativeHost(t, "1.0.0", others...)
	ptp := `{"type":"ptp","ipMasq":true,"ipam":{"type":"host-local","dataDir":"` + leases + `","ranges":[[{"subnet":"10.78.0.0/24"}],[{"subnet":"fd00:78::/64"}]]}}`
	h.file("ptp.conflist", `{"cniVersion":"1.0.0","name":"ptp","plugins":[`+strings.Join(append([]string{ptp}, others...), ",")+`]}`)
	for i := range n {
		a := h.alloc(fmt.Sprint("a", i))
		a.Networks = []string{[]string{"net", "ptp"}[i%2]}
		a.Ports = []portmap.Port{{Value: 8080 + i, To: 80}}
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, h.Teardown(context.Background(), a)) })
		allocs = append(allocs, a)
	}
	return h, allocs
}

func do(t *testing.T, commands ...string) {
	t.Helper()
	for _, c := range commands {
		out, err := exec.Command("sh", "-c", c).CombinedOutput()
		require.NoError(t, err, "%s: %s", c, out)
	}
}

func output(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.Command("sh", "-c", command).CombinedOutput()
	require.NoError(t, err, "%s: %s", command, out)
	return string(out)
}

// TestRestore: whatever was removed is restored without a CHECK, the host looks as before,
// and the allocations are named.
func TestRestore(t *testing.T) {
	h, allocs := restoreHost(t, 4)
	veth := func(i int) string {
		return names.Owner{Network: allocs[i].Networks[0], ID: allocs[i].ID, IfName: "eth0", Instance: h.instance}.Veth()
	}
	see := func() string {
		return output(t, `ip -o -br link show type bridge | sed 's/<.*//'; ip -br -4 address | sed 's/@[^ ]*//' | sort; ip -br -6 address | sed 's/@[^ ]*//' | grep -v brtest | sort; ip route | sort; nft list table ip allocnet | sort; bridge link show | sed 's/.*master/master/' | sort`)
	}
	before := see()
	all := []string{"a0", "a1", "a2", "a3"}
	bridged := []string{"a0", "a2"}
	for name, test := range map[string]struct {
		damage []string
		want   []string
	}{
		"nothing":               {nil, nil},
		"the ruleset":           {[]string{"nft flush ruleset"}, all},
		"a table":               {[]string{"nft delete table ip allocnet"}, all},
		"one element":           {[]string{"nft delete element ip allocnet host_ports { tcp . 8081 }"}, []string{"a1"}},
		"the guard":             {[]string{"nft delete table ip allocnet_guard"}, []string{"a0"}},
		"the gateway's address": {[]string{"ip address flush brtest"}, []string{"a0"}},
		"the route to a bridge": {[]string{"ip route del 10.77.0.0/24"}, []string{"a0"}},
		"the bridge":            {[]string{"ip link del brtest"}, bridged},
		"a bridge that is down": {[]string{"ip link set brtest down"}, []string{"a0"}},
		"a port":                {[]string{"ip link set " + veth(2) + " nomaster"}, []string{"a2"}},
		"a port that is down":   {[]string{"ip link set " + veth(2) + " down"}, []string{"a2"}},
		"a route of ptp":        {[]string{"ip route flush dev " + veth(1)}, []string{"a1"}},
		"addresses of ptp":      {[]string{"ip address flush dev " + veth(3)}, []string{"a3"}},
		"ptp that is down":      {[]string{"ip link set " + veth(3) + " down"}, []string{"a3"}},
		"the accept rule":       {[]string{"iptables -D FORWARD -m comment --comment allocnet -j ALLOCNET-FORWARD"}, []string{"a0"}},
	} {
		t.Run(name, func(t *testing.T) {
			do(t, test.damage...)
			report, err := h.Restore(t.Context())
			require.NoError(t, err)
			require.Equal(t, &RestoreReport{Restored: test.want}, report)
			// The kernel notices a little later that a link is up.
			if !assert.Eventually(t, func() bool { return see() == before }, 30*time.Second, 100*time.Millisecond) {
				require.Equal(t, before, see())
			}
			for _, a := range allocs {
				require.NoError(t, h.CheckOnly(t.Context(), a))
			}
			report, err = h.Restore(t.Context())
			require.NoError(t, err)
			require.Equal(t, &RestoreReport{}, report)
		})
	}
}

// TestRestoreLeavesBusyOnes: an allocation that is being torn down gets nothing back.
func TestRestoreLeavesBusyOnes(t *testing.T) {
	h, allocs := restoreHost(t, 2)
	unlock, err := h.store.Lock(t.Context(), "a0")
	require.NoError(t, err)
	privhost.FlushRuleset(t)
	report, err := h.Restore(t.Context())
	require.NoError(t, err)
	require.Equal(t, &RestoreReport{Restored: []string{"a1"}, Busy: []string{"a0"}}, report)
	require.NotContains(t, output(t, "nft list ruleset"), "a0/eth0")
	unlock()
	require.ErrorIs(t, h.CheckOnly(t.Context(), allocs[0]), ErrUnhealthy)
	repaired, err := h.CheckAndRepair(t.Context(), "a0")
	require.NoError(t, err)
	require.True(t, repaired)
}

// TestRestoreReportsWhatIsLost: a veth that is gone cannot be restored, and a network
// namespace that is gone waits for its Teardown.
func TestRestoreReportsWhatIsLost(t *testing.T) {
	h, allocs := restoreHost(t, 2)
	s, err := sandbox.Open(allocs[0].Netns)
	require.NoError(t, err)
	require.NoError(t, s.Do(func() error { return exec.Command("ip", "link", "del", "eth0").Run() }))
	require.NoError(t, s.Close())
	report, err := h.Restore(t.Context())
	require.NoError(t, err)
	require.Equal(t, &RestoreReport{Failed: []string{"a0"}}, report)
	_, err = h.CheckAndRepair(t.Context(), "a0")
	require.ErrorIs(t, err, ErrUnhealthy)

	require.NoError(t, sandbox.Destroy(allocs[0].Netns))
	report, err = h.Restore(t.Context())
	require.NoError(t, err)
	require.Equal(t, &RestoreReport{}, report)
	_, err = h.CheckAndRepair(t.Context(), "a0")
	require.ErrorIs(t, err, ErrNotFound)
}

// TestRestoreOfOtherBackends: rules outside of allocnet's tables need a CHECK.
func TestRestoreOfOtherBackends(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"firewall","backend":"iptables"}`, `{"type":"portmap","backend":"iptables","capabilities":{"portMappings":true}}`)
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Teardown(context.Background(), a)) })
	do(t, "iptables -t nat -F", "iptables -t nat -X", "iptables -F", "iptables -X")
	report, err := h.Restore(t.Context())
	require.NoError(t, err)
	require.Equal(t, &RestoreReport{Unchecked: []string{"a"}}, report)
	repaired, err := h.CheckAndRepair(t.Context(), "a")
	require.NoError(t, err)
	require.True(t, repaired)
	require.NoError(t, h.CheckOnly(t.Context(), a))
}
