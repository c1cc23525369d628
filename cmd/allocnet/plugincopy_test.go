package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPluginsInstallCopies installs from the directories of an image onto a host.
func TestPluginsInstallCopies(t *testing.T) {
	p := newPluginDir(t)
	image := t.TempDir()
	bin, lib := filepath.Join(image, "bin"), filepath.Join(image, "lib/allocnet")
	require.NoError(t, os.MkdirAll(bin, 0o755))
	require.NoError(t, os.MkdirAll(lib, 0o755))
	program := filepath.Join(bin, programName)
	require.NoError(t, os.Rename(p.program, program))
	for _, file := range []string{filepath.Join(bin, shimName), filepath.Join(lib, cniName), filepath.Join(lib, cniShimName)} {
		require.NoError(t, os.WriteFile(file, []byte(file), 0o755))
	}
	to := filepath.Join(t.TempDir(), "opt/allocnet")
	l := &pluginLinks{dir: p.dir, program: program, names: []string{"bridge", "loopback"}, keep: true}
	foreign := filepath.Join(p.dir, "loopback")
	require.NoError(t, os.WriteFile(foreign, []byte("other"), 0o755))
	install := func() {
		t.Helper()
		l := *l
		require.NoError(t, l.copyPrograms(to))
		links, err := l.install(t.Context(), false, time.Minute)
		require.NoError(t, err)
		require.Len(t, links, 1)
	}
	for range 2 {
		install()
	}
	for name, want := range map[string]string{"allocnet": cniShimName, "bridge": programName} {
		got, err := os.Readlink(filepath.Join(p.dir, name))
		require.NoError(t, err)
		require.Equal(t, filepath.Join(to, want), got)
	}
	kept, err := os.ReadFile(foreign)
	require.NoError(t, err)
	require.Equal(t, "other", string(kept))
	copied, err := os.ReadFile(filepath.Join(to, cniName))
	require.NoError(t, err)
	require.Equal(t, filepath.Join(lib, cniName), string(copied))

	// A newer image.
	require.NoError(t, os.WriteFile(filepath.Join(lib, cniShimName), []byte("newer"), 0o755))
	install()
	copied, err = os.ReadFile(filepath.Join(p.dir, "allocnet"))
	require.NoError(t, err)
	require.Equal(t, "newer", string(copied))
	entries, err := os.ReadDir(to)
	require.NoError(t, err)
	require.Len(t, entries, 4, "no temporary files")

	require.NoError(t, os.Remove(filepath.Join(p.dir, "allocnet")))
	require.NoError(t, os.WriteFile(filepath.Join(p.dir, "allocnet"), nil, 0o755))
	require.ErrorIs(t, l.copyPrograms(to), errForeign)
	require.NoError(t, os.Remove(filepath.Join(lib, cniName)))
	require.ErrorIs(t, l.copyPrograms(to), os.ErrNotExist)
}
