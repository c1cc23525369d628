package confmanager

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/conflist"
)

// TestBadEdit breaks the primary network's file. The last valid configuration
// stays active, even though another file is valid.
func TestBadEdit(t *testing.T) {
	const file = "net.d/20-b.conflist"
	tests := []struct {
		name string
		edit func(r *rig)
		want []string // parts of the report, in addition to the file
	}{
		{"empty", func(r *rig) { r.write(file, "") }, []string{"empty"}},
		{"truncated", func(r *rig) { r.write(file, network("b", "p")[:20]) }, []string{"1:20"}},
		{"no JSON", func(r *rig) { r.write(file, "{\n  \"name\": b}") }, []string{"2:11"}},
		{"no object", func(r *rig) { r.write(file, "[]") }, []string{"'{'"}},
		{"no name", func(r *rig) { r.write(file, `{"cniVersion":"1.0.0","plugins":[{"type":"p"}]}`) }, []string{`set "name"`}},
		{"no plugins", func(r *rig) { r.write(file, `{"cniVersion":"1.0.0","name":"b"}`) }, []string{"no plugins"}},
		{"plugin without a type", func(r *rig) { r.write(file, `{"cniVersion":"1.0.0","name":"b","plugins":[{}]}`) }, []string{"plugin 1 of 1", `"type"`}},
		{"unknown version", func(r *rig) { r.write(file, `{"cniVersion":"9.9.9","name":"b","plugins":[{"type":"p"}]}`) }, []string{"9.9.9"}},
		{"huge", func(r *rig) { r.write(file, strings.Repeat(" ", 2<<20)) }, []string{"1 MiB"}},
		{"exchanged for a directory", func(r *rig) {
			r.mkdir("tmp")
			require.NoError(r.t, unix.Renameat2(unix.AT_FDCWD, r.path("tmp"), unix.AT_FDCWD, r.path(file), unix.RENAME_EXCHANGE))
			r.remove("tmp")
		}, []string{"directory"}},
		{"replaced by a pipe", func(r *rig) {
			require.NoError(r.t, unix.Mkfifo(r.path("tmp"), 0o600))
			r.rename("tmp", file)
		}, []string{"named pipe"}},
		{"replaced by a broken one", func(r *rig) {
			r.write("tmp", "{")
			r.rename("tmp", file)
		}, []string{"1:1"}},
		{"replaced by a dangling symlink", func(r *rig) {
			r.symlink("nowhere", "tmp")
			r.rename("tmp", file)
		}, []string{"dangling symlink"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.write(file, network("b", "p"), "net.d/30-c.conflist", network("c", "p"))
			r.run().delegates("b")
			before, good := r.State(), r.read(own)
			tt.edit(r)
			r.reports(append(tt.want, r.path(file), "stays active")...)
			requireBroken(t, r, r.path(file))
			r.delegates("b")
			require.Equal(t, before.Since, r.State().Since)
			require.Equal(t, good, r.read(own))
			raw, ok := r.raw("b")
			require.True(t, ok)
			require.Contains(t, raw, `"type":"p"`)
			r.logs("stays active")

			r.remove(file)
			r.write("tmp", network("x", "p"))
			r.rename("tmp", file)
			r.delegates("x")
			require.Empty(t, r.State().Problems)
			require.NotContains(t, r.log.String(), "network is not ready")
			r.logs("problems are gone")
		})
	}
}

func requireBroken(t *testing.T, r *rig, file string) {
	t.Helper()
	require.Len(t, r.State().Problems, 1)
	var broken *conflist.FileError
	require.True(t, errors.As(r.State().Problems[0], &broken))
	require.Equal(t, file, broken.File)
}

// TestNewcomerBroken: an invalid new file changes nothing until it is repaired.
func TestNewcomerBroken(t *testing.T) {
	r := newRig(t)
	r.write("net.d/20-b.conflist", network("b", "p"))
	r.run().delegates("b")
	r.write("tmp", "{")
	r.rename("tmp", "net.d/10-a.conflist")
	r.reports(r.path("net.d/10-a.conflist"), "1:1")
	r.delegates("b")
	r.write("net.d/40-d.conflist", "{")
	r.reports(r.path("net.d/10-a.conflist"), r.path("net.d/40-d.conflist"))
	r.logs("40-d.conflist")
	require.Equal(t, 1, strings.Count(r.log.String(), "10-a.conflist"), "said once")
	r.write("net.d/10-a.conflist", network("a", "p"))
	r.delegates("a")
}

// TestSince checks the time at which the active configuration changed.
func TestSince(t *testing.T) {
	r := newRig(t)
	r.write("net.d/20-b.conflist", network("b", "p"))
	r.run().delegates("b")
	first := r.State().Since
	r.write("net.d/20-b.conflist", network("b", "q"))
	r.eventually(func() bool { return r.State().Since.After(first) }, "later")
	raw, ok := r.raw("b")
	require.True(t, ok)
	require.Contains(t, raw, `"type":"q"`)
}

// TestPrimaryGone removes the only network. The manager's file stays, because
// without it runtimes would use any other file.
func TestPrimaryGone(t *testing.T) {
	for _, primary := range []string{"", "b"} {
		t.Run("named "+primary, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(o *Options) { o.Primary = primary })
			r.write("net.d/20-b.conflist", network("b", "p"))
			r.run().delegates("b")
			good := r.read(own)
			r.remove("net.d/20-b.conflist")
			r.unready(`primary network "b" is gone`, "restore its file")
			require.Equal(t, good, r.read(own))
			_, ok := r.raw("b")
			require.False(t, ok)
			r.remove(own)
			r.eventually(func() bool { return r.read(own) == good }, "restored")
			r.write("net.d/25-b.conf", `{"cniVersion":"1.0.0","name":"b","type":"p"}`)
			r.delegates("b")
			require.Equal(t, r.path("net.d/25-b.conf"), r.State().File)
		})
	}
}

// TestReadinessFile: the manager waits for the readiness file at start. Without
// it later, the manager is not ready.
func TestReadinessFile(t *testing.T) {
	for _, file := range []string{"ready", "net.d/ready", "not/yet/there/ready"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(o *Options) { o.ReadinessFile = o.ConfDir + "/../" + file })
			r.write("net.d/20-b.conflist", network("b", "p"))
			r.run().unready(r.path(file), "no such file", "has to create it")
			require.ErrorIs(t, r.Ready(), os.ErrNotExist)
			require.NoFileExists(t, r.path(own))
			require.False(t, r.State().Written)

			r.mkdir("not/yet/there")
			r.write(file, "")
			r.delegates("b")

			r.remove(file)
			r.unready("readiness file", r.path(file))
			requireOwn(t, r)
			require.True(t, r.State().Written)
			// The manager still follows changes.
			r.write("net.d/10-a.conflist", network("a", "p"))
			r.eventually(func() bool { return r.delegate() == "a" }, "follows")
			require.Error(t, r.Ready())

			r.write(file, "")
			r.delegates("a")
		})
	}
}

// TestPlugins: a network is ready when its plugins exist, in whichever
// directory.
func TestPlugins(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.PluginDirs, o.Usable = []string{o.ConfDir + "/../bin1", o.ConfDir + "/../bin2"}, nil
	})
	r.write("net.d/20-b.conflist", `{"cniVersion":"1.0.0","name":"b","plugins":[{"type":"p","ipam":{"type":"i"}}]}`,
		"net.d/30-c.conflist", network("c", "q"))
	r.mkdir("bin1")
	r.write("bin1/q", "")
	r.run().unready(`"b"`, `"p"`, `"i"`, r.path("bin2"), "install")
	require.Equal(t, "b", r.delegate(), "no other network in its place")
	require.True(t, r.State().Written)
	r.write("bin1/p", "")
	r.eventually(func() bool { return !strings.Contains(text(r.Ready()), `"p"`) }, "found")
	r.unready(`"i"`)
	r.mkdir("bin2")
	r.write("bin2/i", "")
	r.delegates("b")
	r.rename("bin1", "old")
	r.unready(`"p"`)
	r.rename("old", "bin1")
	r.delegates("b")
}

// TestStop: the manager leaves its file when it stops, and can run again.
func TestStop(t *testing.T) {
	r := newRig(t)
	r.write("net.d/20-b.conflist", network("b", "p"), "net.d/."+OwnFileName+"123", "left", "net.d/."+OwnFileName+".swp", "an editor's")
	require.ErrorContains(t, r.State().NotReady, "not been read yet")
	ready := make(chan error, 1)
	go func() { ready <- r.Ready() }() // waits for the first look
	r.run().delegates("b")
	require.NoError(t, <-ready)
	require.NoFileExists(t, r.path("net.d/."+OwnFileName+"123"))
	require.FileExists(t, r.path("net.d/."+OwnFileName+".swp"))
	good := r.read(own)
	r.stop()
	require.Equal(t, good, r.read(own))
	r.write("net.d/10-a.conflist", network("a", "p"))
	r.run().delegates("a")
}
