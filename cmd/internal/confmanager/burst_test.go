package confmanager

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/conflist"
)

// clock returns timers that the test fires.
type clock map[time.Duration]chan time.Time

func (c clock) timer(d time.Duration) (<-chan time.Time, func() bool) {
	return c[d], func() bool { return true }
}

// TestBurst: events close together lead to one look, and a burst has a longest
// duration.
func TestBurst(t *testing.T) {
	r := newRig(t)
	c := clock{}
	for _, d := range []time.Duration{quiet, longest, retry, rescan} {
		c[d] = make(chan time.Time)
	}
	r.timer = c.timer
	for _, end := range []time.Duration{quiet, longest} {
		t.Run(end.String(), func(t *testing.T) {
			changed, over := make(chan struct{}), make(chan struct{})
			go func() { defer close(over); r.wait(t.Context(), changed) }()
			for range 100 {
				select {
				case changed <- struct{}{}:
				case <-over:
					require.Fail(t, "in the middle of the burst")
				}
			}
			c[end] <- time.Time{}
			<-over
		})
	}
	t.Run("none", func(t *testing.T) {
		for _, ready := range []error{nil, errors.New("not")} {
			r.state.NotReady = ready
			over := make(chan struct{})
			go func() { defer close(over); r.wait(t.Context(), nil) }()
			if ready == nil {
				c[rescan] <- time.Time{}
			} else {
				c[retry] <- time.Time{}
			}
			<-over
		}
	})
	t.Run("end", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		changed := make(chan struct{}, 1)
		changed <- struct{}{}
		cancel()
		r.wait(ctx, changed)
	})
}

// slowWatch returns a watcher that reads nothing until hold is closed.
// overflows counts overflows of the kernel's queue, in which the events before
// the first one are lost as well.
func slowWatch(hold <-chan struct{}, overflows *atomic.Int64) func() (*fsnotify.Watcher, error) {
	return func() (*fsnotify.Watcher, error) {
		w, err := fsnotify.NewWatcher()
		if err != nil {
			return nil, err
		}
		fromEvents, fromErrors := w.Events, w.Errors
		events, errs := make(chan fsnotify.Event), make(chan error)
		w.Events, w.Errors = events, errs
		go func() {
			defer close(events)
			<-hold
			for {
				select {
				case e, open := <-fromEvents:
					if !open {
						return
					}
					if overflows.Load() > 0 {
						events <- e
					}
				case err, open := <-fromErrors:
					if !open {
						return
					}
					overflows.Add(1)
					errs <- err
				}
			}
		}()
		return w, nil
	}
}

// TestOverflow overflows the kernel's queue, so that the end of a watch is
// lost: the watcher still has a watch of a directory that is gone.
func TestOverflow(t *testing.T) {
	r := newRig(t)
	hold, overflows := make(chan struct{}), &atomic.Int64{}
	r.watch = slowWatch(hold, overflows)
	r.write("net.d/20-b.conflist", network("b", "p"))
	// The own file exists already, so the manager causes no events.
	r.write(own, string(must(r.conflist(must(conflist.Parse([]byte(network("b", "p"))))))))
	require.NoError(t, os.Chmod(r.path(own), ownMode))
	r.run().delegates("b")

	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	require.NoError(t, err)
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	for range limit/2 + 4096 {
		// More events than the watcher has read ahead, of two files in turn,
		// because the kernel merges equal consecutive events.
		require.NoError(t, os.Chmod(r.path(own), ownMode))
		require.NoError(t, os.Chmod(r.path("net.d/20-b.conflist"), 0o600))
	}
	before := inode(t, r.path("net.d"))
	for range 20 {
		// Repeat until the new directory has the inode number of the old one.
		r.remove("net.d")
		r.mkdir("net.d")
		if inode(t, r.path("net.d")) == before {
			break
		}
	}
	r.write("net.d/50-n.conflist", network("n", "p"))
	close(hold)
	r.eventually(func() bool { return overflows.Load() > 0 }, "overflow")
	r.delegates("n")
	r.write("net.d/50-n.conflist", network("m", "p"))
	r.delegates("m")
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(path, &st))
	return st.Ino
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
