package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/sandbox"
)

// TestRepeatedTeardownSparesContainers: an allocation that is gone does not
// become the short form of the ID of a runtime's container.
func TestRepeatedTeardownSparesContainers(t *testing.T) {
	w := newWorkspace(t)
	ask := w.serve(sandbox.DefaultDir)
	container := strings.Repeat("cafe4567", 8) + ".eth0"
	netns := w.sandbox("container").Path()
	w.run("setup", container, "--netns", netns, "--scope", "cni/front").ok(t)
	for name, run := range map[string]func(...string) outcome{"alone": w.run, "daemon": ask} {
		t.Run(name, func(t *testing.T) {
			w.named("cafe")
			run("setup", "cafe", "--create").ok(t)
			for range 2 {
				run("teardown", "cafe", "--destroy").ok(t)
			}
			again := run("teardown", "cafe", "--destroy", "--json")
			require.Equal(t, "cafe", decode[teardownReport](t, again.ok(t)).ID)
			require.Contains(t, again.errOut, "cafe4567cafe.eth0", "what to type for the container")
			require.NoError(t, sandbox.Validate(netns))
			run("check", container).ok(t)
		})
	}
	w.interrupt(container)
	forced := w.run("cleanup", "--force", "cafe", "--json")
	require.Contains(t, forced.ok(t), `"id": "cafe"`)
	require.Contains(t, forced.errOut, "cafe4567cafe.eth0")
	require.Equal(t, container+"\n", w.run("ls", "-q").ok(t))
	require.Contains(t, w.run("cleanup", "--force", "cafe4567cafe").ok(t), container)
}

// TestNameOfContainer: a command suggests the ID that containerd's client made of the
// container's name, and does not take the one for the other.
func TestNameOfContainer(t *testing.T) {
	w := newWorkspace(t)
	w.run("setup", "default-web-1.eth0", "--netns", w.sandbox("c").Path()).ok(t)
	for _, command := range []string{"check", "inspect", "trace"} {
		for _, name := range []string{"web-1", "default-web-1"} {
			missing := w.run(command, name, "--json").failure(t, exitNo)
			require.Equal(t, "not-found", missing.Kind)
			require.Contains(t, missing.Hint, "type default-web-1.eth0", command)
		}
		require.NotContains(t, w.run(command, "eb-1", "--json").failure(t, exitNo).Hint, "default-web-1")
	}
}

// TestShortFormsThatChange are those of lists, and shorter ones only show.
func TestShortFormsThatChange(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("c")
	w.run("setup", longID+".eth0", "--netns", "/run/netns/c").ok(t)
	for _, short := range []string{"0123456789ab", "0123456789ab.eth0", "0123456789abc", longID} {
		require.Contains(t, w.run("check", short).ok(t), longID+".eth0")
		require.Contains(t, w.run("setup", short, "--netns", "/run/netns/c").ok(t), longID+".eth0 is set up already")
	}
	for _, short := range []string{"012", "01234567", "0123456789a", "01234567.eth0"} {
		missing := w.run("check", short, "--json").failure(t, exitNo)
		require.Equal(t, "not-found", missing.Kind)
		require.Contains(t, missing.Hint, "type 0123456789ab.eth0")
	}
	missing := w.run("inspect", "012", "--json").failure(t, exitNo)
	require.Contains(t, missing.Hint, "type 0123456789ab.eth0")
	require.Contains(t, w.run("inspect", "0123.eth0").ok(t), longID)
	require.Contains(t, w.run("cleanup", "--audit", "0123").ok(t), longID+".eth0")

	for _, args := range [][]string{{"--live", "0123"}, {"--live-from", "-"}} {
		refused := runWith("0123\n", append(append([]string{"gc", "--json"}, args...), w.flags()...)...).failure(t, exitUsage)
		require.Contains(t, refused.Error, `ID "0123"`)
		require.Contains(t, refused.Hint, "type 0123456789ab.eth0")
	}
	require.Contains(t, w.run("gc", "--live", "0123", "--scope", "mine", "--json").ok(t), `"removed": []`, "it would not be removed")
	kept := decode[gcReport](t, w.run("gc", "--live", "0123456789ab", "--json").ok(t))
	require.Equal(t, []string{longID + ".eth0"}, kept.Kept)

	w.sandbox("second")
	w.run("setup", longID+".eth1", "--netns", "/run/netns/second").ok(t)
	for _, command := range []string{"inspect", "check", "teardown"} {
		refused := w.run(command, "0123456789ab", "--json").failure(t, exitUsage)
		require.Contains(t, refused.Error, "matches 2 allocations")
		require.Equal(t, "type one of 0123456789ab.eth0, 0123456789ab.eth1", refused.Hint)
	}
	w.run("teardown", "0123456789ab.eth1").ok(t)
	require.Equal(t, longID+".eth0\n", w.run("ls", "-q").ok(t))
}

// TestSuggestion is what lists show where that is of one allocation.
func TestSuggestion(t *testing.T) {
	twin := longID[:20] + strings.Repeat("f", 44)
	require.Equal(t, "type 0123456789ab.eth0", suggestion([]string{longID + ".eth0"}))
	require.Equal(t, "type one of "+longID+", "+twin, suggestion([]string{longID, twin}))
	require.ErrorAs(t, ambiguous("0123", []string{longID, twin}), new(stepError))
	require.Equal(t, exitUsage, exitCode(ambiguous("0123", []string{longID, twin})))
}
