package confmanager

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/skip"
)

// TestFollows changes a directory that contains the networks b and c while the
// manager delegates to b.
func TestFollows(t *testing.T) {
	tests := []struct {
		name   string
		change func(r *rig)
		want   string
	}{
		{"an earlier newcomer", func(r *rig) { r.write("net.d/10-a.conflist", network("a", "p")) }, "a"},
		{"an earlier newcomer by rename", func(r *rig) {
			r.write("a.tmp", network("a", "p"))
			r.rename("a.tmp", "net.d/10-a.conflist")
		}, "a"},
		{"an earlier newcomer of a single plugin", func(r *rig) {
			r.write("net.d/10-a.conf", `{"cniVersion":"0.4.0","name":"a","type":"p"}`)
		}, "a"},
		{"renamed network", func(r *rig) { r.write("net.d/20-b.conflist", network("x", "p")) }, "x"},
		{"replaced file", func(r *rig) {
			r.write("x.tmp", network("x", "p"))
			r.rename("x.tmp", "net.d/20-b.conflist")
		}, "x"},
		{"file renamed behind another", func(r *rig) { r.rename("net.d/20-b.conflist", "net.d/40-b.conflist") }, "c"},
		{"file renamed to no configuration", func(r *rig) { r.rename("net.d/20-b.conflist", "net.d/20-b.bak") }, "c"},
		{"removed", func(r *rig) { r.remove("net.d/20-b.conflist") }, "c"},
		{"symlink, and its target edited", func(r *rig) {
			r.mkdir("elsewhere")
			r.write("elsewhere/a", network("a", "p"))
			r.symlink("../elsewhere/a", "net.d/10-a.conflist")
			r.delegates("a")
			r.write("elsewhere/a", network("z", "p"))
		}, "z"},
		{"symlinks swapped as volumes do", func(r *rig) {
			r.mkdir("net.d/..1")
			r.mkdir("net.d/..2")
			r.write("net.d/..1/a", network("a1", "p"), "net.d/..2/a", network("a2", "p"))
			r.symlink("..1", "net.d/..data")
			r.symlink("..data/a", "net.d/10-a.conflist")
			r.delegates("a1")
			r.symlink("..2", "net.d/..tmp")
			r.rename("net.d/..tmp", "net.d/..data")
		}, "a2"},
		{"directory replaced", func(r *rig) {
			r.mkdir("new")
			r.write("new/50-n.conflist", network("n", "p"))
			r.rename("net.d", "old")
			r.rename("new", "net.d")
		}, "n"},
		{"directory replaced, then a change in the new one", func(r *rig) {
			r.mkdir("new")
			r.write("new/50-n.conflist", network("n", "p"))
			r.rename("net.d", "old")
			r.rename("new", "net.d")
			r.delegates("n")
			r.write("net.d/50-n.conflist", network("m", "p"))
		}, "m"},
		{"directory removed and made again", func(r *rig) {
			r.remove("net.d")
			r.unready("create the directory")
			r.mkdir("net.d")
			r.write("net.d/50-n.conflist", network("n", "p"))
		}, "n"},
		{"directory removed and made again at once, several times", func(r *rig) {
			// The new directory often has the inode number of the old one.
			for range 5 {
				r.remove("net.d")
				r.mkdir("net.d")
				r.write("net.d/50-n.conflist", network("n", "p"))
				r.delegates("n")
				r.write("net.d/50-n.conflist", network("m", "p"))
				r.delegates("m")
			}
		}, "m"},
		{"directory became a symlink, which is then changed", func(r *rig) {
			r.mkdir("one")
			r.mkdir("two")
			r.write("one/x.conflist", network("x", "p"), "two/y.conflist", network("y", "p"))
			r.rename("net.d", "old")
			r.symlink("one", "net.d")
			r.delegates("x")
			r.symlink(r.path("two"), "tmp")
			r.rename("tmp", "net.d")
		}, "y"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.write("net.d/20-b.conflist", network("b", "p"), "net.d/30-c.conflist", network("c", "p"))
			r.run().delegates("b")
			tt.change(r)
			r.delegates(tt.want)
			requireOwn(t, r)
		})
	}
}

// requireOwn checks the manager's file if it exists.
func requireOwn(t *testing.T, r *rig) {
	t.Helper()
	info, err := os.Lstat(r.path(own))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	left, err := filepath.Glob(r.path("net.d/.*" + OwnFileName + "*"))
	require.NoError(t, err)
	require.Empty(t, left, "temporary files")
}

// TestDirectoryAppears starts without the directory and without its parents.
func TestDirectoryAppears(t *testing.T) {
	deep := "net.d/sub/link/deep"
	r := newRig(t, func(o *Options) { o.ConfDir = filepath.Join(o.ConfDir, "sub/link/deep") })
	r.run().unready("no primary network", r.path(deep), "the directory does not exist: create it")
	r.mkdir("net.d/sub")
	r.mkdir("target")
	r.symlink("../../target", "net.d/sub/link")
	r.mkdir("target/deep")
	r.write(deep+"/10-x.conflist", network("x", "p"))
	r.eventually(func() bool { return delegateOf(r.read("target/deep/"+OwnFileName)) == "x" && r.Ready() == nil }, "delegates")

	// A distant parent directory is replaced.
	r.mkdir("other/sub/link/deep")
	r.write("other/sub/link/deep/10-y.conflist", network("y", "p"))
	r.rename("net.d", "gone")
	r.rename("other", "net.d")
	r.eventually(func() bool { return delegateOf(r.read(deep+"/"+OwnFileName)) == "y" && r.Ready() == nil }, "delegates")
}

// TestOwnFileRestored changes the manager's file as other programs might.
func TestOwnFileRestored(t *testing.T) {
	tests := []struct {
		name   string
		change func(r *rig)
	}{
		{"removed", func(r *rig) { r.remove(own) }},
		{"emptied", func(r *rig) { r.write(own, "") }},
		{"broken", func(r *rig) { r.write(own, "{") }},
		{"edited", func(r *rig) {
			r.write(own, `{"cniVersion":"1.0.0","name":"b","plugins":[{"type":"allocnet","delegates":["c"]}]}`)
		}},
		{"a network of another type", func(r *rig) { r.write(own, network("b", "other")) }},
		{"replaced", func(r *rig) {
			r.write("tmp", network("z", "other"))
			r.rename("tmp", own)
		}},
		{"other mode", func(r *rig) { require.NoError(r.t, os.Chmod(r.path(own), 0o644)) }},
		{"other owner", func(r *rig) {
			skip.Unless(r.t, os.Geteuid() == 0, "only root can give a file away")
			require.NoError(r.t, os.Chown(r.path(own), 65534, 0))
		}},
		{"renamed", func(r *rig) { r.rename(own, "net.d/00-away") }},
		{"symlink to its copy", func(r *rig) {
			r.write("copy", r.read(own))
			require.NoError(r.t, os.Chmod(r.path("copy"), ownMode))
			r.symlink("../copy", "tmp")
			r.rename("tmp", own)
		}},
		{"named pipe", func(r *rig) {
			require.NoError(r.t, syscall.Mkfifo(r.path("tmp"), 0o600))
			r.rename("tmp", own)
		}},
		{"huge", func(r *rig) { r.write(own, string(make([]byte, 2<<20))) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.write("net.d/20-b.conflist", network("b", "p"), "net.d/30-c.conflist", network("c", "p"))
			r.run().delegates("b")
			want := r.read(own)
			tt.change(r)
			restored := func() bool {
				info, err := os.Lstat(r.path(own))
				return err == nil && info.Mode() == ownMode && int(info.Sys().(*syscall.Stat_t).Uid) == os.Geteuid() && r.read(own) == want
			}
			r.eventually(restored, "restored")
			r.delegates("b")
			require.NotContains(t, r.log.String(), "network is not ready")
			require.NotContains(t, r.log.String(), "name=c", "delegated to another network in between")
		})
	}
}

// TestFileUntouched checks that the file is not written unnecessarily.
func TestFileUntouched(t *testing.T) {
	r := newRig(t)
	r.write("net.d/20-b.conflist", network("b", "p"))
	r.run().delegates("b")
	before, err := os.Stat(r.path(own))
	require.NoError(t, err)
	for i := range 3 {
		looks := r.looks.Load()
		r.write("net.d/20-b.conflist", network("b", []string{"q", "p", "q"}[i]))
		r.eventually(func() bool { return r.looks.Load() > looks }, "looks")
	}
	r.stop()
	r.run().delegates("b")
	r.stop()
	after, err := os.Stat(r.path(own))
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))
	require.Equal(t, before.ModTime(), after.ModTime())
}

// TestSidecar edits plugins that are in their own files.
func TestSidecar(t *testing.T) {
	r := newRig(t)
	r.write("net.d/20-b.conflist", `{"cniVersion":"1.0.0","name":"b","plugins":[{"type":"p"}]}`)
	r.run().delegates("b")
	require.NotContains(t, r.read(own), `"mac"`)
	r.mkdir("net.d/b")
	r.write("net.d/b/10.conf", `{"type":"q","capabilities":{"mac":true}}`)
	r.eventually(func() bool { return containsAll(r.read(own), []string{`"mac": true`}) }, "capability")
	r.write("net.d/b/10.conf", `{"type":"q","capabilities":{"ips":true}}`)
	r.eventually(func() bool { return containsAll(r.read(own), []string{`"ips": true`}) }, "capability")
}
