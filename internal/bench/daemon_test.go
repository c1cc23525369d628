package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/programs"
	"github.com/allocnet/allocnet/sandbox"
)

// TestDaemon runs each measurement once.
func TestDaemon(t *testing.T) {
	b := &bench{environment: *testEnvironment(t), size: size{daemon: 1}, report: &Report{}}
	b.programs = t.TempDir()
	require.NoError(t, b.buildEmpty(t.Context(), b.programs))
	require.NoError(t, programs.Copy(b.programs, append(daemonPrograms, shimName)...))
	require.NoError(t, b.daemon(t.Context()))
	require.NoError(t, sandbox.Destroy(b.all[0].netns))
	for _, name := range []string{
		key(emptyTitle, emptyName), key(throughTitle, nativeName), key(throughTitle, daemonName), key(throughTitle, noDaemonName),
		key(beyondTitle, daemonName),
	} {
		m, ok := b.report.find(name)
		require.True(t, ok, name)
		require.Equal(t, 1, m.Samples, name)
	}
	through, _ := b.report.find(key(throughTitle, daemonName))
	native, _ := b.report.find(key(throughTitle, nativeName))
	beyond, _ := b.report.find(key(beyondTitle, daemonName))
	require.InDelta(t, through.Median-native.Median, beyond.Median, 1e-9)
}
