package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/sandbox"
)

// systemsOf returns the systems of each measure, which must have samples and ratios.
func systemsOf(t *testing.T, r *Report) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for _, m := range r.Measures {
		require.Positive(t, m.Samples, m.What)
		require.Positive(t, m.Median, m.What)
		require.GreaterOrEqual(t, m.P95, m.Median, m.What)
		require.NotEqual(t, "-", r.ratio(m, baselineName), m.What)
		all[m.What] = append(all[m.What], m.System)
	}
	return all
}

func TestRunHost(t *testing.T) {
	skip.InShort(t) // the test of the command bench does the same
	privhost.Require(t, "iptables", "iptables-restore")
	plugins, err := refplugins.Dir()
	require.NoError(t, err)
	r, err := RunHost(t.Context(), HostOptions{PluginDirs: []string{"/nonexistent", plugins}, Short: true, Progress: t.Logf})
	require.NoError(t, err)
	made, err := filepath.Glob(filepath.Join(sandbox.DefaultDir, "bench-*"))
	require.NoError(t, err)
	for _, path := range made {
		require.NoError(t, sandbox.Destroy(path))
	}
	require.Empty(t, r.Skipped)
	two, three := []string{baselineName, nativeName}, []string{baselineName, nativeName, execName}
	require.Equal(t, map[string][]string{
		"ADD, ptp": three, "DEL, ptp": three, packetTitle(1): three, packetTitle(200): three, burstTitle("ptp"): three,
		flatTitle("ADD", "ptp", 0): two, flatTitle("ADD", "ptp", 50): two, flatTitle("DEL", "ptp", 0): two, flatTitle("DEL", "ptp", 50): two,
		fillTitle("ptp", 50): two,
	}, systemsOf(t, r))
	require.Len(t, drawn(t, r).texts["q"], 5)
	for _, operation := range []string{"ADD, ", "DEL, "} {
		ratio, ok := r.Ratio(operation, execName, nativeName)
		require.True(t, ok)
		require.Positive(t, ratio)
	}
	_, ok := r.Ratio("ADD, ", goCNIName, nativeName)
	require.False(t, ok)
	var table bytes.Buffer
	require.NoError(t, r.WriteTable(&table))
	require.NotContains(t, table.String(), "TARGET")
}

// TestPluginsThatCannotBeMeasured: plugins may be missing, incomplete, or allocnet's.
func TestPluginsThatCannotBeMeasured(t *testing.T) {
	privhost.Require(t)
	dir := t.TempDir()
	script := func(text string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "ptp"), []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	}
	script("echo CNI ptp plugin v0.0.1; exit 1")
	found, err := findPlugins(t.Context(), []string{"/nonexistent", dir})
	require.NoError(t, err)
	require.Equal(t, dir, found)
	b := &bench{size: shortHost, environment: environment{progress: t.Logf}}
	err = b.tryPlugins(t.Context(), dir)
	require.ErrorIs(t, err, configurator.ErrPluginNotInstalled)
	require.Empty(t, b.plugins)
	require.NoError(t, sandbox.Destroy(b.all[0].netns))

	script("echo '" + strings.ReplaceAll(sdk.About("ptp"), "\n", "'; echo '") + "'")
	_, err = findPlugins(t.Context(), []string{"/nonexistent", dir})
	require.ErrorIs(t, err, errNoReference)
	require.EqualError(t, err, "no directory has the reference plugins: looked in /nonexistent, "+dir+"; those in "+dir+" are allocnet's")
}
