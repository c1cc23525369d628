package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/sandbox"
)

// TestScope keeps repair, recover and gc to the allocations of one scope.
func TestScope(t *testing.T) {
	w := newWorkspace(t)
	for id, scope := range map[string]string{"a": "mine", "b": "other", "c": ""} {
		w.sandbox(id)
		w.run("setup", id, "--scope", scope).ok(t)
	}
	require.Equal(t, "mine", decode[configurator.Record](t, w.run("inspect", "a", "--json").ok(t)).Scope)
	require.Regexp(t, `(?m)^Scope +mine$`, w.run("inspect", "a").ok(t))
	require.Regexp(t, `(?m)^Scope +-$`, w.run("inspect", "c").ok(t))
	require.Regexp(t, `(?s)^ID[^\n]* AGE +SCOPE +LABELS +POLICY +ARGS\na [^\n]* mine +- +- +-\nb [^\n]* other +- +- +-\nc [^\n]* - +- +- +-\n$`, w.run("ls", "--wide").ok(t))
	require.Equal(t, "ok: healthy 1, repaired 0, broken 0\n", w.run("repair", "--scope", "mine").ok(t))
	require.Equal(t, "ok: healthy 3, repaired 0, broken 0\n", w.run("repair").ok(t))

	unfinished := func(id string) {
		file := w.path("state/allocs/" + id + ".json")
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(string(data), `"ready"`, `"adding"`)), 0o600))
	}
	unfinished("b")
	unfinished("c")
	require.JSONEq(t, `{"recovered": []}`, w.run("recover", "--scope", "mine", "--json").ok(t))
	require.Equal(t, "removed 1 unfinished allocation\n  - b\n", w.run("recover", "--scope", "other").ok(t))
	require.Equal(t, "removed 1 unfinished allocation\n  - c\n", w.run("recover").ok(t))
	require.Equal(t, "removed 0 unfinished allocations\n", w.run("recover").ok(t))

	w.run("setup", "c").ok(t)
	got := w.run("gc", "--scope", "mine", "--none", "--destroy")
	require.Equal(t, "removed 1 allocation, kept 0 allocations\n  - a\ndestroyed network namespace /run/netns/a\n", got.ok(t))
	require.Empty(t, got.errOut)
	require.ErrorIs(t, sandbox.Validate("/run/netns/a"), sandbox.ErrNotExist)
	require.Equal(t, "c\n", w.run("ls", "-q").ok(t))
}
