package confmanager

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWatchSet checks which changes are relevant.
func TestWatchSet(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.PluginDirs = []string{o.ConfDir + "/../bin", o.ConfDir + "/../missing/bin"}
		o.ReadinessFile = o.ConfDir + "/../run/ready"
	})
	for _, dir := range []string{"net.d/side", "net.d/..1", "bin", "run", "else/where", "else/loop"} {
		r.mkdir(dir)
	}
	r.write("else/file", "", "net.d/..1/a", "")
	r.symlink("../else/file", "net.d/10-a.conflist")
	r.symlink(r.path("else/where/not"), "net.d/20-b.conflist")
	r.symlink("..1", "net.d/..data")
	r.symlink("..data/a", "net.d/30-c.conflist")
	r.symlink("loop2", "net.d/loop1")
	r.symlink("loop1", "net.d/loop2")
	got := watchSetOf(r.o)
	for path, want := range map[string]bool{
		"net.d": true, "net.d/new": true, "net.d/side/new": true, "net.d/..1/a": true, "net.d/side/sub/new": false,
		"else": true, "else/file": true, "else/where": true, "else/where/not": true, "else/other": false, "else/where/other": false, "else/loop/x": false,
		"bin": true, "bin/new": true, "missing": true, "missing/bin": false, "other": false,
		"run": true, "run/ready": true, "run/other": false,
	} {
		require.Equal(t, want, got.covers(r.path(path)), path)
	}
	require.True(t, got.covers("/"+parts(r.dir)[0]), "what leads there")
	require.False(t, got.covers("/other"))

	require.True(t, got.equal(watchSetOf(r.o)))
	r.rename("net.d/side", "net.d/aside")
	require.False(t, got.equal(watchSetOf(r.o)))
	r.rename("net.d/aside", "net.d/side")
	require.True(t, got.equal(watchSetOf(r.o)))
	r.symlink("../else/other", "tmp")
	r.rename("tmp", "net.d/10-a.conflist")
	require.False(t, got.equal(watchSetOf(r.o)), "another file matters")
	got = watchSetOf(r.o)
	r.rename("bin", "old")
	r.mkdir("bin")
	require.False(t, got.equal(watchSetOf(r.o)), "another directory in its place")
	require.NoError(t, os.Remove(r.path("run")))
	require.Nil(t, watchSetOf(r.o)[r.path("run")])
}
