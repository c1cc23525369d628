package main

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
)

// TestStatus: the daemon reports what it has repaired and which operations have failed.
func TestStatus(t *testing.T) {
	w := newWorkspace(t)
	w.configure(embedded, `pool "allocnet" { size = 1 }`)
	p := w.start()
	status := func() *client.HostStatus {
		t.Helper()
		s, err := w.client().HostStatus(background())
		require.NoError(t, err)
		return s
	}
	s := status()
	require.Equal(t, p.cmd.Process.Pid, s.Daemon.PID)
	require.WithinDuration(t, time.Now(), s.Daemon.Started, time.Hour)
	require.Equal(t, configurator.EngineAuto, s.Engine)
	require.Empty(t, s.Errors)
	require.Nil(t, s.Repairs.Last)

	w.allocate("a1")
	_, err := w.client().Setup(background(), configurator.Allocation{ID: "a2", Netns: "/run/netns/nowhere"})
	require.Error(t, err)
	s = status()
	require.Equal(t, client.AllocationCounts{Total: 1, Healthy: 1}, s.Allocations)
	require.Len(t, s.Networks, 1)
	require.GreaterOrEqual(t, s.Networks[0].Addresses["ipv4"].Used, 1.)
	require.Equal(t, 1, s.Networks[0].Pool.Size)
	require.Len(t, s.Errors, 1)
	require.Equal(t, "setup a2", s.Errors[0].Operation+" "+s.Errors[0].ID)
	require.Contains(t, s.Errors[0].Error, "/run/netns/nowhere")

	require.True(t, *s.Ready)
	require.Empty(t, s.Unread)
	require.Equal(t, &client.DoctorSummary{Findings: []client.DoctorFinding{}}, s.Doctor)
	out, err := exec.Command("sh", "-c", "ip link add other type bridge && ip addr add 10.202.3.1/24 dev other").CombinedOutput()
	require.NoError(t, err, string(out))
	s = status()
	require.Equal(t, 1, s.Doctor.Errors)
	require.Equal(t, "subnet-overlap", s.Doctor.Findings[0].ID)
	out, err = exec.Command("ip", "link", "del", "other").CombinedOutput()
	require.NoError(t, err, string(out))

	out, err = exec.Command("nft", "flush", "ruleset").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Eventually(t, func() bool { return status().Repairs.Count > 0 }, 20*time.Second, 20*time.Millisecond)
	require.NotEmpty(t, status().Repairs.Change)
	w.release("a1")
	p.stop()
}
