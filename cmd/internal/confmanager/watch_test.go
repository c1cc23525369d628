package confmanager

import (
	"sync"
	"testing"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// TestAppearsBeforeWatch: the directory is created after the manager found it
// missing and before anything is watched.
func TestAppearsBeforeWatch(t *testing.T) {
	r := newRig(t)
	r.remove("net.d")
	appear := sync.OnceFunc(func() {
		r.mkdir("net.d")
		r.write("net.d/20-b.conflist", network("b", "p"))
	})
	r.watch = func() (*fsnotify.Watcher, error) {
		appear()
		return fsnotify.NewWatcher()
	}
	r.run().delegates("b")
	r.write("net.d/20-b.conflist", network("c", "p"))
	r.delegates("c")
}

// TestUnreadable: a directory that cannot be watched is reported, the others
// are watched, and the manager tries again.
func TestUnreadable(t *testing.T) {
	r := newRig(t, func(o *Options) { o.PluginDirs = []string{o.ConfDir + "/../bin"} })
	r.mkdir("bin")
	require.NoError(t, unix.Chmod(r.path("bin"), 0o111))
	w := newWatch(fsnotify.NewWatcher, r.own.isTemp)
	defer w.close()
	privhost.Unprivileged(t, func() {
		for range 2 {
			err := w.follow(r.o)
			require.ErrorIs(t, err, unix.EACCES)
			require.ErrorContains(t, err, r.path("bin"))
			require.ErrorContains(t, err, "make it readable")
			require.Empty(t, w.changed, "no look without a change")
		}
	})
	r.write("net.d/20-b.conflist", network("b", "p"))
	r.changes(w)
	require.NoError(t, w.follow(r.o))
	r.changes(w)
	r.write("bin/p", "")
	r.changes(w)
}

// TestBindMount: the kernel reports an event only once for a directory that is
// mounted twice.
func TestBindMount(t *testing.T) {
	privhost.Require(t)
	r := newRig(t, func(o *Options) {
		o.ReadinessFile = o.ConfDir + "/../one/ready"
		o.PluginDirs = []string{o.ConfDir + "/../two/bin"}
	})
	r.mkdir("one")
	r.mkdir("two")
	require.NoError(t, unix.Mount(r.path("one"), r.path("two"), "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(r.path("two"), unix.MNT_DETACH)) })
	w := newWatch(fsnotify.NewWatcher, r.own.isTemp)
	defer w.close()
	require.NoError(t, w.follow(r.o))
	r.changes(w)
	r.write("one/ready", "")
	r.changes(w)
	r.mkdir("two/bin")
	r.changes(w)
}

// changes waits until the watch reports a change.
func (r *rig) changes(w *watch) {
	r.t.Helper()
	r.eventually(func() bool {
		select {
		case <-w.changed:
			return true
		default:
			return false
		}
	}, "sees a change")
}
