package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/sandbox"
)

// TestAttachCommand changes the networks of an allocation that is set up.
func TestAttachCommand(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("web")
	require.NoError(t, os.WriteFile(w.path("conf/40-storage.conflist"), []byte(`{"cniVersion":"1.0.0","name":"storage","plugins":[
		{"type":"ptp","ipam":{"type":"host-local","dataDir":"`+w.path("leases")+`","subnet":"10.95.0.0/24"}}]}`), 0o600))
	status := decode[configurator.Status](t, w.run("setup", "web", "--network", "allocnet", "--json").ok(t))

	text := w.run("attach", "web", "storage", "--interface", "data0", "--revision", status.Revision).ok(t)
	require.Regexp(t, `web is changed\n\nINTERFACE +NETWORK .*\neth0 +allocnet .*\ndata0 +storage +10.95.0.2/24`, text)
	require.Equal(t, "revision", w.run("detach", "web", "data0", "--revision", status.Revision, "--json").failure(t, exitFailure).Kind)
	require.Equal(t, "cannot-update", w.run("detach", "web", "eth0", "--json").failure(t, exitFailure).Kind)
	absent := w.run("detach", "web", "eth9", "--json").failure(t, exitNo)
	require.Equal(t, "not-found", absent.Kind)
	require.Contains(t, absent.Error, "it has no such interface; it has eth0, data0")
	require.Contains(t, absent.Hint, "allocnet inspect web")
	unknown := w.run("attach", "web", "none", "--json").failure(t, exitFailure)
	require.Equal(t, "unknown-network", unknown.Kind)
	require.Contains(t, unknown.Error, `known by name: "front", "back", "storage", "allocnet"`)
	require.Equal(t, "`allocnet networks` lists the networks and the files that were skipped; allocnet, the embedded one, needs no file", unknown.Hint)
	require.Equal(t, "not-found", w.run("attach", "absent", "storage", "--json").failure(t, exitNo).Kind)
	require.Regexp(t, `(?m)^web +ready +allocnet, storage`, w.run("ls").ok(t))
	changed := decode[configurator.Status](t, w.run("detach", "web", "data0", "--json").ok(t))
	require.Len(t, decode[configurator.Record](t, w.run("inspect", "web", "--json").ok(t)).Networks, 1)
	require.NotEqual(t, status.Revision, changed.Revision)
	w.run("teardown", "web").ok(t)
}

// TestAttachHints: the hint is about what was not found or is in use, not about the ID.
func TestAttachHints(t *testing.T) {
	w := newWorkspace(t)
	id := strings.Repeat("0123456789abcdef", 4)
	w.sandbox("web")
	w.run("setup", id, "--netns", "/run/netns/web", "--network", "allocnet").ok(t)
	require.Equal(t, "`allocnet inspect "+id+"` shows its phase and its interfaces", w.run("detach", id, "eth9", "--json").failure(t, exitNo).Hint)
	require.NoError(t, os.WriteFile(w.path("conf/40-storage.conflist"), []byte(`{"cniVersion":"1.0.0","name":"storage","plugins":[{"type":"ptp"}]}`), 0o600))
	used := w.run("attach", id, "storage", "--interface", "eth0", "--json").failure(t, exitUsage)
	require.Equal(t, "name another interface with --interface, or omit the flag; `allocnet inspect "+id+"` lists the interfaces", used.Hint)
	require.NoError(t, sandbox.Destroy("/run/netns/web"))
	gone := w.run("set", id, "-l", "a=b", "--json").failure(t, exitNo)
	require.Equal(t, "its network namespace is gone: `allocnet teardown "+id+"` removes what is left on the host", gone.Hint)
	w.run("teardown", id).ok(t)
}
