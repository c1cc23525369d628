package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/retry"
)

// openPool makes a pool that lasts as long as the test.
func openPool(t *testing.T, options PoolOptions) *Pool {
	t.Helper()
	p, err := NewPool(options)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// takeFrom takes a sandbox that lasts as long as the test.
func takeFrom(t *testing.T, p *Pool, name string) *Sandbox {
	t.Helper()
	s, err := p.Take(t.Context(), name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Destroy()) })
	return s
}

func awaitReady(t *testing.T, p *Pool, want int) {
	t.Helper()
	require.Eventually(t, func() bool { return p.Ready() == want }, 10*time.Second, time.Millisecond)
}

// neverFills prevents a pool from creating sandboxes after NewPool.
const neverFills = time.Hour

func TestPoolTake(t *testing.T) {
	needKernel(t)
	p := openPool(t, PoolOptions{Size: 2, Interval: neverFills})
	require.Equal(t, 1, p.Ready())
	seen := map[Identity]string{}
	for _, name := range []string{"ready", "beyond", "further beyond"} {
		s := takeFrom(t, p, name)
		require.Zero(t, p.Ready())
		require.Equal(t, DefaultDir+"/"+name, s.Path())
		require.NoError(t, Validate(s.Path()))
		require.NoError(t, s.Do(func() error {
			links, err := retry.List(netlink.LinkList)
			require.NoError(t, err)
			require.Len(t, links, 1)
			require.NotZero(t, links[0].Attrs().Flags&net.FlagUp, "loopback is up")
			return nil
		}))
		id, err := identify(s.file)
		require.NoError(t, err)
		require.Empty(t, seen[id], "a namespace of its own")
		seen[id] = name
		named, err := Open(s.Path())
		require.NoError(t, err)
		namedID, err := identify(named.file)
		require.NoError(t, errors.Join(err, named.Close()))
		require.Equal(t, id, namedID, "the path is that of the descriptor")
	}
	require.NoError(t, p.Close())
	require.NoError(t, Validate(DefaultDir+"/ready"), "what was taken remains")
	requireAllAtHome(t)
}

// TestPoolReadyIsNowhere: only descriptors keep prepared sandboxes alive, so a
// crash leaves nothing.
func TestPoolReadyIsNowhere(t *testing.T) {
	needKernel(t)
	before := snapshot(t)
	p := openPool(t, PoolOptions{Dir: "/run/pool", Size: 3})
	awaitReady(t, p, 3)
	require.Empty(t, hostsnap.Diff(before, snapshot(t)))
	require.NoDirExists(t, "/run/pool")
}

func TestPoolRefills(t *testing.T) {
	needKernel(t)
	p := openPool(t, PoolOptions{Size: 2})
	for i := range 5 {
		awaitReady(t, p, 2)
		takeFrom(t, p, fmt.Sprint("c", i))
	}
	awaitReady(t, p, 2)
	requireAllAtHome(t)
}

func TestPoolOfNothing(t *testing.T) {
	needKernel(t)
	p := openPool(t, PoolOptions{})
	takeFrom(t, p, "c1")
	require.Zero(t, p.Ready())
}

func TestPoolOptions(t *testing.T) {
	for _, options := range []PoolOptions{{Size: -1}, {Interval: -1}} {
		_, err := NewPool(options)
		require.ErrorContains(t, err, "make sandbox pool: negative size")
	}
}

// TestPoolKeepsWhatIsNotTaken: Take fails in every possible way, and the pool
// keeps its sandboxes.
func TestPoolKeepsWhatIsNotTaken(t *testing.T) {
	needKernel(t)
	old := create(t, "exists")
	want, err := identify(old.file)
	require.NoError(t, err)
	p := openPool(t, PoolOptions{Size: 1, Interval: neverFills})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	unmountable := openPool(t, PoolOptions{Size: 1, Interval: neverFills})
	require.NoError(t, unmountable.ready[0].Close())
	for _, test := range []struct {
		title string
		pool  *Pool
		ctx   context.Context
		name  string
		want  error
	}{
		{"exists", p, t.Context(), "exists", ErrExist},
		{"no name", p, t.Context(), "../c1", ErrInvalidName},
		{"ended", p, ended, "c1", context.Canceled},
		{"no mount", unmountable, t.Context(), "c1", ErrNotExist},
	} {
		t.Run(test.title, func(t *testing.T) {
			before := snapshot(t)
			_, err := test.pool.Take(test.ctx, test.name)
			require.ErrorIs(t, err, test.want)
			require.ErrorContains(t, err, "sandbox")
			require.Equal(t, 1, test.pool.Ready())
			require.Empty(t, hostsnap.Diff(before, snapshot(t)))
		})
	}
	unmountable.ready = nil
	again, err := Open(old.Path())
	require.NoError(t, err)
	got, err := identify(again.file)
	require.NoError(t, errors.Join(err, again.Close()))
	require.Equal(t, want, got, "the one that was there stays")
}

// TestPoolClose: Close destroys the prepared sandboxes before it returns.
func TestPoolClose(t *testing.T) {
	needKernel(t)
	before, _ := resources(t)
	p := openPool(t, PoolOptions{Size: 3})
	awaitReady(t, p, 3)
	full, _ := resources(t)
	require.Equal(t, before+3, full)
	require.NoError(t, p.Close())
	after, _ := resources(t)
	require.Equal(t, before, after)

	straggler, err := unnamed()
	require.NoError(t, err)
	p.put(straggler)
	require.Zero(t, p.Ready())
	require.ErrorIs(t, straggler.Close(), os.ErrClosed, "what comes too late goes, too")
}

func TestPoolClosed(t *testing.T) {
	needKernel(t)
	create(t, "keep") // makes the directory
	p := openPool(t, PoolOptions{Size: 2})
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	require.Zero(t, p.Ready())
	_, err := p.Take(t.Context(), "c1")
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorContains(t, err, `take sandbox "/run/netns/c1": `)
	require.NoFileExists(t, "/run/netns/c1")
}

// TestPoolErrors: all namespaces but the first cannot be created.
func TestPoolErrors(t *testing.T) {
	needKernel(t)
	broken := errors.New("broken")
	var made atomic.Int32
	unshare := steps[0]
	steps[0] = func(path string) error {
		if made.Add(1) > 1 {
			return broken
		}
		return unshare(path)
	}
	t.Cleanup(func() { steps[0] = unshare })
	reported := make(chan error, 1)
	p := openPool(t, PoolOptions{Size: 2, OnError: func(err error) {
		select {
		case reported <- err:
		default:
		}
	}})
	err := <-reported
	require.ErrorIs(t, err, broken)
	require.EqualError(t, err, "fill sandbox pool: make namespace: broken")
	takeFrom(t, p, "c1")
	_, err = p.Take(t.Context(), "c2")
	require.ErrorIs(t, err, broken)
	require.NoFileExists(t, "/run/netns/c2")
	_, err = NewPool(PoolOptions{Size: 1})
	require.ErrorIs(t, err, broken)
	requireAllAtHome(t)
}

// TestPoolNoLeak takes from many goroutines concurrently, also while the pool
// is closed.
func TestPoolNoLeak(t *testing.T) {
	needKernel(t)
	create(t, "keep") // makes the directory
	cycle := func(rounds int) {
		p, err := NewPool(PoolOptions{Size: 4})
		require.NoError(t, err)
		var wait sync.WaitGroup
		for worker := range 8 {
			wait.Go(func() {
				for range rounds {
					s, err := p.Take(t.Context(), fmt.Sprint("c", worker))
					if err == nil {
						err = errors.Join(Validate(s.Path()), s.Destroy())
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wait.Wait()
		wait.Go(func() {
			s, err := p.Take(t.Context(), "late")
			if err == nil {
				err = s.Destroy()
			}
			if err != nil && !errors.Is(err, os.ErrClosed) {
				t.Error(err)
			}
		})
		require.NoError(t, p.Close())
		wait.Wait()
	}
	cycle(2) // The runtime keeps the threads that it needed once.
	descriptors, threads := resources(t)
	cycle(25)
	descriptorsAfter, threadsAfter := resources(t)
	require.Equal(t, descriptors, descriptorsAfter)
	// The runtime may start some more of its own under load; a leak would be 200.
	require.LessOrEqual(t, threadsAfter, threads+50, "200 sandboxes must not cost a thread each")
	require.Equal(t, 1, strings.Count(snapshot(t).String(), "nsfs"))
	requireAllAtHome(t)
}
