package confmanager

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

// mount mounts a small file system over the configuration directory.
func (r *rig) mount() {
	r.t.Helper()
	privhost.Require(r.t)
	dir := r.path("net.d")
	require.NoError(r.t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
	r.t.Cleanup(func() { require.NoError(r.t, unix.Unmount(dir, unix.MNT_DETACH)) })
}

// readOnly changes the mount flags, which causes no event.
func (r *rig) readOnly(flag uintptr) {
	r.t.Helper()
	require.NoError(r.t, unix.Mount("", r.path("net.d"), "", unix.MS_REMOUNT|unix.MS_BIND|flag, ""))
}

// fill fills the file system of the configuration directory.
func (r *rig) fill() {
	r.t.Helper()
	f, err := os.Create(r.path("net.d/filler"))
	require.NoError(r.t, err)
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	require.ErrorIs(r.t, err, syscall.ENOSPC)
}

// TestReadOnly starts in a read-only directory, and continues when it becomes
// writable.
func TestReadOnly(t *testing.T) {
	r := newRig(t)
	r.timer = impatientTimer
	r.mount()
	r.write("net.d/20-b.conflist", network("b", "p"))
	r.readOnly(unix.MS_RDONLY)
	r.run().unready(r.path(own), "read-only file system: make the directory writable")
	require.NoFileExists(t, r.path(own))
	require.Equal(t, "b", r.State().Primary)
	require.False(t, r.State().Written)
	said := strings.Count(r.log.String(), "network is not ready")
	looks := r.looks.Load()
	r.eventually(func() bool { return r.looks.Load() > looks+2 }, "looks again")
	require.Equal(t, said, strings.Count(r.log.String(), "network is not ready"), "said once")
	r.readOnly(0)
	r.delegates("b")
	requireOwn(t, r)
}

// TestMounted mounts another directory over the configuration directory without
// an event. The manager detects it in time, and follows it from then on.
func TestMounted(t *testing.T) {
	r := newRig(t)
	late := make(chan time.Time)
	r.timer = func(d time.Duration) (<-chan time.Time, func() bool) {
		if d == rescan {
			return late, func() bool { return true }
		}
		return shortTimer(d)
	}
	r.write("net.d/20-b.conflist", network("b", "p"))
	r.run().delegates("b")
	r.mount()
	r.write("net.d/10-x.conflist", network("x", "p"))
	late <- time.Time{}
	r.delegates("x")
	r.write("net.d/10-x.conflist", network("y", "p"))
	r.delegates("y")
}

// TestFull: on a full file system, the previous file stays complete, and no
// incomplete file is left.
func TestFull(t *testing.T) {
	r := newRig(t)
	r.mount()
	r.write("net.d/20-b.conflist", network("b", "p"))
	r.fill()
	r.run().unready(r.path(own), "no space left on device: free some space")
	require.NoFileExists(t, r.path(own))
	r.remove("net.d/filler")
	r.delegates("b")

	good := r.read(own)
	r.fill()
	r.write("net.d/20-b.conflist", network("x", "p"))
	r.unready("free some space")
	require.Equal(t, "x", r.State().Primary)
	require.False(t, r.State().Written)
	require.Equal(t, good, r.read(own))
	requireOwn(t, r)
	r.remove("net.d/filler")
	r.delegates("x")
	requireOwn(t, r)
}

// TestFailedWriteUnseen: a failed write does not lead to another look at once.
func TestFailedWriteUnseen(t *testing.T) {
	r := newRig(t)
	r.mount()
	seen := make(chan string, 100)
	w := newWatch(fsnotify.NewWatcher, func(path string) bool {
		seen <- path
		return r.own.isTemp(path)
	})
	defer w.close()
	require.NoError(t, w.follow(r.o))
	r.fill()
	_, err := r.own.keep([]byte(network("b", "p")))
	require.ErrorIs(t, err, syscall.ENOSPC)
	r.remove("net.d/filler")
	filler := r.path("net.d/filler")
	temps := 0
	for removed := false; !removed; {
		path := <-seen
		if path != filler {
			require.True(t, r.own.isTemp(path), path)
			temps++
		}
		removed = path == filler && temps > 0
	}
	for _, other := range []string{own, "net.d/." + OwnFileName, "net.d/." + OwnFileName + ".swp", "." + OwnFileName + "1"} {
		require.False(t, r.own.isTemp(r.path(other)), other)
	}
}

// TestDirectoryInTheWay: a directory with content at the path of the manager's
// file is not removed.
func TestDirectoryInTheWay(t *testing.T) {
	r := newRig(t)
	r.mkdir(own + "/kept")
	r.write("net.d/20-b.conflist", network("b", "p"))
	r.run().unready(r.path(own), "remove the directory")
	require.DirExists(t, r.path(own+"/kept"))
	r.remove(own)
	r.delegates("b")
}

// TestNoWatch: if the kernel provides no watcher, that is reported, and changes
// are still detected.
func TestNoWatch(t *testing.T) {
	r := newRig(t)
	r.timer = impatientTimer
	var refuse atomicError
	refuse.set(syscall.EMFILE)
	r.Manager.watch = func() (*fsnotify.Watcher, error) {
		if err := refuse.get(); err != nil {
			return nil, err
		}
		return fsnotify.NewWatcher()
	}
	r.write("net.d/20-b.conflist", network("b", "p"))
	r.run().delegates("b")
	r.reports("seen late", "fs.inotify.max_user_instances")
	r.write("net.d/10-a.conflist", network("a", "p"))
	r.delegates("a")
	refuse.set(nil)
	r.eventually(func() bool { return len(r.State().Problems) == 0 }, "watches")
}

// TestLimits: the error says what to do.
func TestLimits(t *testing.T) {
	for err, want := range map[error]string{
		syscall.EMFILE: "max_user_instances", syscall.ENOSPC: "max_user_watches", syscall.EACCES: "make it readable",
	} {
		require.ErrorContains(t, limit(err), want)
		require.ErrorIs(t, limit(err), err)
	}
	for err, want := range map[error]string{
		syscall.EACCES: "writable", syscall.EDQUOT: "space", syscall.ENOENT: "create the directory", errors.New("x"): "x",
	} {
		require.ErrorContains(t, remedy(err), want)
		require.ErrorIs(t, remedy(err), err)
	}
}
