package sandbox

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/retry"
)

func TestCreate(t *testing.T) {
	needKernel(t)
	s := create(t, "c1")
	require.Equal(t, "/run/netns/c1", s.Path())
	require.Equal(t, "c1", s.Name())
	require.NoError(t, Validate(s.Path()))
	require.NoError(t, s.Do(func() error {
		links, err := retry.List(netlink.LinkList)
		require.NoError(t, err)
		require.Len(t, links, 1, "a sandbox starts out empty")
		require.NotZero(t, links[0].Attrs().Flags&net.FlagUp, "loopback is up")
		return nil
	}))
	requireAllAtHome(t)
}

func TestDo(t *testing.T) {
	needKernel(t)
	s := create(t, "c1")
	want, err := identify(s.file)
	require.NoError(t, err)

	var wait sync.WaitGroup
	for range 64 {
		wait.Go(func() {
			err := s.Do(func() error {
				got, err := threadNamespace()
				if err == nil && (got != want || unix.Gettid() == unix.Getpid()) {
					err = errors.New("not on a thread in the sandbox")
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
			if got, err := threadNamespace(); err != nil || got != home {
				t.Error("the caller was moved", got, err)
			}
		})
	}
	wait.Wait()
	requireAllAtHome(t)
}

// TestDoSparesTheMainThread starts a call on the main thread.
func TestDoSparesTheMainThread(t *testing.T) {
	needKernel(t)
	s := create(t, "c1")
	main := mainThread
	t.Cleanup(func() { mainThread = main })
	var ran int
	c := call{done: make(chan struct{}), fn: func() error {
		ran = unix.Gettid()
		return s.enter()
	}}
	var wait sync.WaitGroup
	wait.Go(func() {
		runtime.LockOSThread()
		mainThread = unix.Gettid()
		c.run()
		if got, err := threadNamespace(); err != nil || got != home {
			t.Error("the main thread was moved", got, err)
		}
	})
	wait.Wait()
	require.NoError(t, c.err)
	require.True(t, c.finished)
	require.NotEqual(t, mainThread, ran)
	requireAllAtHome(t)
}

func TestDoReturnsTheError(t *testing.T) {
	needKernel(t)
	s := create(t, "c1")
	require.ErrorIs(t, s.Do(func() error { return unix.ENOTTY }), unix.ENOTTY)
}

func TestDoInsideDo(t *testing.T) {
	needKernel(t)
	a, b := create(t, "a"), create(t, "b")
	for _, s := range []*Sandbox{a, b} {
		want, err := identify(s.file)
		require.NoError(t, err)
		require.NoError(t, a.Do(func() error {
			return s.Do(func() error {
				got, err := threadNamespace()
				require.Equal(t, want, got)
				return err
			})
		}))
	}
}

// TestDoEndsTheCaller: the function ends its goroutine, as a failing require
// does.
func TestDoEndsTheCaller(t *testing.T) {
	needKernel(t)
	s := create(t, "c1")
	returned := true
	var wait sync.WaitGroup
	wait.Go(func() {
		returned = false
		_ = s.Do(func() error { runtime.Goexit(); return nil })
		returned = true
	})
	wait.Wait()
	require.False(t, returned)
	requireAllAtHome(t)
}

// TestDoThrowsAwayTheThread makes it impossible to restore the thread's
// namespace.
func TestDoThrowsAwayTheThread(t *testing.T) {
	needKernel(t)
	s := create(t, "c1")
	var thread int
	require.NoError(t, s.Do(func() error {
		thread = unix.Gettid()
		return dropPower()
	}))
	require.Eventually(t, func() bool {
		return unix.Tgkill(unix.Getpid(), thread, 0) == unix.ESRCH
	}, 10*time.Second, time.Millisecond)
	requireAllAtHome(t)
}

func TestClosed(t *testing.T) {
	needKernel(t)
	create(t, "c1")
	s, err := Open("/run/netns/c1")
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	err = s.Do(func() error { return nil })
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorContains(t, err, `use sandbox "/run/netns/c1"`)
	require.NoError(t, Validate("/run/netns/c1"), "closing does not destroy")
}

func TestWith(t *testing.T) {
	needKernel(t)
	create(t, "c1")
	s, err := Open("/run/netns/c1")
	require.NoError(t, err)
	want, err := identify(s.file)
	require.NoError(t, err)
	require.ErrorIs(t, s.With(func(int) error { return unix.ENOTTY }), unix.ENOTTY)
	require.NoError(t, s.With(func(fd int) error {
		require.NoError(t, s.Close())
		got, err := identifyRaw(fd)
		require.Equal(t, want, got, "closing waits until it is no longer used")
		return err
	}))
	err = s.With(func(int) error {
		t.Error("called with what is closed")
		return nil
	})
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorContains(t, err, `use sandbox "/run/netns/c1": `)
}

func TestLoopbackUp(t *testing.T) {
	needKernel(t)
	s := create(t, "c1")
	isUp := func() (up bool) {
		require.NoError(t, s.Do(func() error {
			lo, err := netlink.LinkByName("lo")
			up = err == nil && lo.Attrs().Flags&net.FlagUp != 0
			return err
		}))
		return up
	}
	require.NoError(t, s.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		require.NoError(t, err)
		return netlink.LinkSetDown(lo)
	}))
	opened, err := Open(s.Path())
	require.NoError(t, err)
	require.NoError(t, opened.Close())
	require.False(t, isUp(), "opening leaves it as it is")
	for range 2 {
		require.NoError(t, LoopbackUp(s.Path()))
		require.True(t, isUp())
	}
	require.ErrorIs(t, LoopbackUp("/run/netns/missing"), ErrNotExist)
}

func TestValidate(t *testing.T) {
	needKernel(t)
	create(t, "c1")
	dir := t.TempDir()
	file, fifo, link := filepath.Join(dir, "file"), filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	hostName := filepath.Join(dir, "host")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.WriteFile(hostName, nil, 0o600))
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	require.NoError(t, os.Symlink("/run/netns/c1", link))
	require.NoError(t, unix.Mount("/proc/self/ns/net", hostName, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(hostName, 0)) })

	for _, test := range []struct {
		name, path string
		want       error
	}{
		{"sandbox", "/run/netns/c1", nil},
		{"link to a sandbox", link, nil},
		{"missing", "/run/netns/missing", ErrNotExist},
		{"no path", "", ErrNotExist},
		{"file", file, ErrNotNamespace},
		{"named pipe", fifo, ErrNotNamespace},
		{"directory", dir, ErrNotNamespace},
		{"other file of /proc", "/proc/self/status", ErrNotNamespace},
		{"mount namespace", "/proc/self/ns/mnt", ErrNotNamespace},
		{"own namespace", "/proc/self/ns/net", ErrHostNamespace},
		{"parent, in the same namespace", hostName, ErrHostNamespace},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := Validate(test.path)
			require.ErrorIs(t, err, test.want)
			if test.want != nil {
				require.ErrorContains(t, err, `open sandbox "`+test.path+`": `)
			}
		})
	}
}

// TestHostStaysTheHost determines the host's namespace from inside another
// sandbox.
func TestHostStaysTheHost(t *testing.T) {
	needKernel(t)
	s := create(t, "c1")
	require.NoError(t, s.Do(func() error {
		require.NoError(t, Validate("/proc/thread-self/ns/net"))
		require.ErrorIs(t, Validate("/proc/self/ns/net"), ErrHostNamespace)
		return nil
	}))
}
