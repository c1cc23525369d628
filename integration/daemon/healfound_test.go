package daemon

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
)

// TestHealWhatARequestFinds: damage of which the kernel does not notify counts as soon as a request
// has found it, and the daemon repairs it five seconds later, unless a request finds it healthy
// before that.
func TestHealWhatARequestFinds(t *testing.T) {
	d := newHealingHost(t, onlyNotified, testbed.Chain("bridge", testbed.V4Only, ""))
	unhealthy := func() float64 { return d.metric("unhealthy_allocations") }
	mac, err := testbed.Output("ip", "-br", "link", "show", "br-test")
	require.NoError(t, err)
	mac = strings.Fields(mac)[2]
	heals := d.heals()

	testbed.Shell(t, "ip link set br-test address 02:00:00:00:00:99")
	require.ErrorIs(t, d.client().Check(t.Context(), d.allocs[0]), configurator.ErrUnhealthy)
	require.EqualValues(t, 1, unhealthy())
	d.awaitHeal(heals, func(h *client.Heal) bool { return h.Unhealthy == "a0" && h.Error != "" })
	testbed.Shell(t, "ip link set br-test address "+mac)
	require.NoError(t, d.client().Check(t.Context(), d.allocs[0]))
	require.Zero(t, unhealthy(), "found by a request")

	testbed.Shell(t, "ip link set br-test address 02:00:00:00:00:99")
	require.ErrorIs(t, d.client().Check(t.Context(), d.allocs[0]), configurator.ErrUnhealthy)
	d.awaitHeal(heals, func(h *client.Heal) bool { return h.Cause == "drift" && h.Restored == 1 })
	require.Zero(t, unhealthy(), "restored")

	record, err := d.client().Get(t.Context(), "a0")
	require.NoError(t, err)
	testbed.Shell(t, "ip route add unreachable "+record.Status.Address)
	report, err := d.client().Repair(t.Context())
	require.Error(t, err)
	require.Equal(t, []string{"a0"}, report.Broken)
	require.EqualValues(t, 1, unhealthy())
	testbed.Shell(t, "ip route del unreachable "+record.Status.Address)
	report, err = d.client().Repair(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"a0"}, report.Healthy)
	require.Zero(t, unhealthy(), "found by a repair")
}
