package bench

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/sandbox"
)

// TestMany runs each measurement with a few allocations, and leaves none.
func TestMany(t *testing.T) {
	skip.InShort(t)
	const n = manySize(3)
	b := &bench{environment: *testEnvironment(t), size: size{many: n, manyRounds: 2}, report: &Report{}}
	require.NoError(t, b.many(t.Context()))
	for _, name := range []string{
		key(ownedTitle("ADD", 0), daemonName), key(ownedTitle("DEL", 0), daemonName), key(ownedTitle("ADD", n), daemonName),
		key(ownedTitle("DEL", n), daemonName), key(ownedTitle("ADD", n), namespaceName), key(n.setUpTitle(), daemonName),
		key(n.removedTitle(), daemonName), key(n.listTitle(), daemonName), key(n.listTitle(), noDaemonName), key(n.restartTitle(), daemonName),
	} {
		m, ok := b.report.find(name)
		require.True(t, ok, name)
		require.Positive(t, m.Median, name)
	}
	made, err := os.ReadDir(sandbox.DefaultDir)
	require.NoError(t, err)
	require.Empty(t, made)
}

// TestCPU runs each measurement once.
func TestCPU(t *testing.T) {
	skip.InShort(t)
	b := &bench{environment: *testEnvironment(t), size: size{cpuLives: 2, cpuBlocks: 1}, report: &Report{}}
	require.NoError(t, b.cpu(t.Context()))
	for _, s := range b.all {
		require.NoError(t, sandbox.Destroy(s.netns))
	}
	for _, system := range []string{nativeName, apiName, throughName, pluginName} {
		m, ok := b.report.find(key(cpuTitle, system))
		require.True(t, ok, system)
		require.Equal(t, 1, m.Samples, system)
		require.Positive(t, m.Median, system)
	}
}

// TestClock: the clock of another process advances while it works.
func TestClock(t *testing.T) {
	before, err := clockOf(os.Getpid()).read()
	require.NoError(t, err)
	own, err := ownClock.read()
	require.NoError(t, err)
	require.GreaterOrEqual(t, own, before)
	require.Eventually(t, func() bool {
		now, err := clockOf(os.Getpid()).read()
		return err == nil && now > before
	}, 10*time.Second, time.Millisecond)
	_, err = clockOf(1 << 23).read()
	require.Error(t, err)
}
