package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/sandbox"
)

// TestHeal runs each measurement once.
func TestHeal(t *testing.T) {
	skip.InShort(t)
	b := &bench{environment: *testEnvironment(t), size: size{heal: []int{1, 2}, heals: 1, healLives: 100}, report: &Report{}}
	require.NoError(t, b.heal(t.Context()))
	for _, s := range b.all {
		require.NoError(t, sandbox.Destroy(s.netns))
	}
	for _, name := range []string{
		key(healTitle(1), daemonName), key(healTitle(2), daemonName), key(healCPUTitle, daemonName), key(healCPUTitle, deafDaemonName),
	} {
		m, ok := b.report.find(name)
		require.True(t, ok, name)
		require.Equal(t, 1, m.Samples, name)
		require.Positive(t, m.Median, name)
	}
}
