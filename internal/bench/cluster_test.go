package bench

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/sandbox"
)

func TestCluster(t *testing.T) {
	b := &bench{environment: *testEnvironment(t), size: size{kinds: []string{"ptp"}, hosts: 300, flatRounds: 1}, report: &Report{}}
	require.NoError(t, b.cluster(t.Context()))
	for _, s := range b.all {
		require.NoError(t, sandbox.Destroy(s.netns))
	}
	for _, name := range []string{baselineName, nativeName} {
		for _, hosts := range []int{0, 300} {
			m, ok := b.report.find(key(clusterTitle("ADD", "ptp", hosts), name))
			require.True(t, ok, name)
			require.Positive(t, m.Median)
		}
	}
}

// TestWithHosts: what the host has meanwhile, and that nothing is left.
func TestWithHosts(t *testing.T) {
	testEnvironment(t)
	count := func(command string) int {
		out, err := exec.Command("sh", "-c", command).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return strings.Count(string(out), "\n")
	}
	_, err := withHosts(300, func() (map[string]*lives, error) {
		require.Equal(t, 300, count("ip route show dev flannel.1"))
		require.Equal(t, 300, count("ip neighbour show dev flannel.1 nud permanent"))
		require.Equal(t, 300, count("bridge fdb show dev flannel.1"))
		return nil, nil
	})
	require.NoError(t, err)
	require.Zero(t, count("ip route show table all | grep flannel.1; true"))
}
