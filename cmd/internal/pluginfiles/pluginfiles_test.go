package pluginfiles

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// newPluginFiles returns a plugin directory, and a program that answers to the names of two plugins.
func newPluginFiles(t *testing.T) (dir, program string) {
	t.Helper()
	dir, program = t.TempDir(), filepath.Join(t.TempDir(), ProgramName)
	require.NoError(t, os.WriteFile(program, []byte("#!/bin/sh\n"+
		"case ${0##*/} in bridge|loopback) ;; *) exit 2 ;; esac\n"+
		`echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}'`+"\n"), 0o755))
	return dir, program
}

// TestCopyPrograms installs from the directories of an image onto a host.
func TestCopyPrograms(t *testing.T) {
	pluginDir, built := newPluginFiles(t)
	image := t.TempDir()
	bin, lib := filepath.Join(image, "bin"), filepath.Join(image, "lib/allocnet")
	require.NoError(t, os.MkdirAll(bin, 0o755))
	require.NoError(t, os.MkdirAll(lib, 0o755))
	program := filepath.Join(bin, ProgramName)
	require.NoError(t, os.Rename(built, program))
	for _, file := range []string{filepath.Join(bin, ShimName), filepath.Join(lib, cniName), filepath.Join(lib, cniShimName)} {
		require.NoError(t, os.WriteFile(file, []byte(file), 0o755))
	}
	to := filepath.Join(t.TempDir(), "opt/allocnet")
	l := &Links{Dir: pluginDir, Program: program, Names: []string{"bridge", "loopback"}, Keep: true}
	foreign := filepath.Join(pluginDir, "loopback")
	require.NoError(t, os.WriteFile(foreign, []byte("other"), 0o755))
	install := func() {
		t.Helper()
		l := *l
		require.NoError(t, l.CopyPrograms(to))
		links, err := l.Install(t.Context(), false, time.Minute)
		require.NoError(t, err)
		require.Len(t, links, 1)
	}
	for range 2 {
		install()
	}
	for name, want := range map[string]string{"allocnet": cniShimName, "bridge": ProgramName} {
		got, err := os.Readlink(filepath.Join(pluginDir, name))
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
	copied, err = os.ReadFile(filepath.Join(pluginDir, "allocnet"))
	require.NoError(t, err)
	require.Equal(t, "newer", string(copied))
	entries, err := os.ReadDir(to)
	require.NoError(t, err)
	require.Len(t, entries, 4, "no temporary files")

	require.NoError(t, os.Remove(filepath.Join(pluginDir, "allocnet")))
	require.NoError(t, os.WriteFile(filepath.Join(pluginDir, "allocnet"), nil, 0o755))
	require.ErrorIs(t, l.CopyPrograms(to), ErrForeign)
	require.NoError(t, os.Remove(filepath.Join(lib, cniName)))
	require.ErrorIs(t, l.CopyPrograms(to), os.ErrNotExist)
}

// TestInterrupted: an interrupted install leaves nothing.
func TestInterrupted(t *testing.T) {
	pluginDir, built := newPluginFiles(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l := &Links{Dir: pluginDir, Program: built, Names: []string{"bridge", "loopback"}}
	_, err := l.Install(ctx, false, time.Minute)
	require.ErrorIs(t, err, context.Canceled)
	entries, err := os.ReadDir(pluginDir)
	require.NoError(t, err)
	require.Empty(t, entries)
}
