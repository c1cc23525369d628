package configurator

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// spied is an engine that a test looks over the shoulder of, or stands in for.
type spied struct {
	engine.Engine
	add func(context.Context, *engine.Request) ([]*types100.Result, error)
	del func(context.Context, *engine.Request) error
}

func (s *spied) Add(ctx context.Context, r *engine.Request) ([]*types100.Result, error) {
	return s.add(ctx, r)
}

func (s *spied) Del(ctx context.Context, r *engine.Request) error { return s.del(ctx, r) }

// spy puts a spied engine, which does what the real one does, in its place.
func (w *world) spy() *spied {
	inner := w.exec
	s := &spied{Engine: inner, add: inner.Add, del: inner.Del}
	w.exec = s
	return s
}

func goodResult(t *testing.T) *types100.Result {
	t.Helper()
	r, err := engine.ParseResult([]byte(result))
	require.NoError(t, err)
	return r
}

// TestSetupAfterACrash: what an interrupted operation left is taken down first,
// and as long as that fails nothing is added.
func TestSetupAfterACrash(t *testing.T) {
	for _, phase := range []record.Phase{record.Adding, record.Deleting} {
		t.Run(string(phase), func(t *testing.T) {
			w := newWorld(t)
			w.network("net", "1.0.0", adds(behaviours{"DEL": {Code: 100, Msg: "del trouble", Only: 2}}))
			a := w.alloc("a")
			_, err := w.Setup(t.Context(), a)
			require.NoError(t, err)
			r, err := w.store.Get("a")
			require.NoError(t, err)
			r.Phase = phase
			require.NoError(t, w.store.Put(r))
			w.commands()

			_, err = w.Setup(t.Context(), a)
			require.ErrorIs(t, err, ErrIncomplete)
			require.ErrorContains(t, err, "del trouble")
			require.NotContains(t, w.commands(), "one ADD")

			_, err = w.Setup(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, []string{"one DEL", "one ADD"}, w.commands())
		})
	}
}

// TestRepairThatCannotBegin: nothing of a network that was set up is taken down
// where it could not be set up again, or the caller has gone.
func TestRepairThatCannotBegin(t *testing.T) {
	for name, c := range map[string]struct {
		check   behaviours
		prepare func(*testing.T, Allocation)
		want    error
	}{
		"the context has ended": {behaviours{"CHECK": {Hang: true}}, nil, context.DeadlineExceeded},
		"the netns is gone": {nil, func(t *testing.T, a Allocation) {
			require.NoError(t, sandbox.Destroy(a.Netns))
		}, ErrInvalidAllocation},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.network("net", "1.0.0", adds(c.check))
			a := w.alloc("a")
			_, err := w.Setup(t.Context(), a)
			require.NoError(t, err)
			if c.prepare != nil {
				c.prepare(t, a)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = w.Setup(ctx, a)
			require.ErrorIs(t, err, c.want)
			require.NotErrorIs(t, err, ErrIncomplete)
			require.NotContains(t, w.commands(), "one DEL")
			r, err := w.Get(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, PhaseReady, r.Phase)
		})
	}
}

func TestRepairWhoseDelFails(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds(behaviours{"CHECK": {Code: 100, Msg: "gone"}, "DEL": {Code: 100, Msg: "del trouble"}}))
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	w.commands()
	_, err = w.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrIncomplete)
	require.NotContains(t, w.commands(), "one ADD", "no second ADD without a DEL")
}

// TestIntentIsRecorded: at any ADD, the record says that one is at work, and on
// what.
func TestIntentIsRecorded(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds(behaviours{"CHECK": {Code: 100, Msg: "gone"}}))
	spy := w.spy()
	var phases []Phase
	spy.add = func(ctx context.Context, r *engine.Request) ([]*types100.Result, error) {
		intent, err := w.Get(ctx, "a")
		require.NoError(t, err)
		require.Nil(t, intent.Status)
		require.Len(t, intent.Networks, 1)
		require.Len(t, intent.Ports, 1)
		require.False(t, intent.Updated.Before(intent.Created))
		phases = append(phases, intent.Phase)
		return spy.Engine.Add(ctx, r)
	}
	a := w.alloc("a")
	a.Ports = []portmap.Port{{Value: 80, Protocols: []string{"tcp"}}}
	for range 2 { // the second is a repair
		_, err := w.Setup(t.Context(), a)
		require.NoError(t, err)
	}
	require.Equal(t, []Phase{PhaseAdding, PhaseAdding}, phases)
}

// TestReservingPorts: who looks at the ports of all records excludes others
// until its own is written, and is not stopped by a record it cannot read.
func TestReservingPorts(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	a.Ports = []portmap.Port{{Value: 80}}
	unlock, err := w.store.LockReservations(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = w.Setup(ctx, a)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Empty(t, w.commands())
	w.requireNoRecords()
	unlock()

	corrupt := filepath.Join(w.cfg.StateDir, "allocs", "corrupt.json")
	require.NoError(t, os.WriteFile(corrupt, []byte("{"), 0o600))
	_, err = w.Setup(t.Context(), a)
	require.NoError(t, err)
}

func TestDelayAndJitter(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Retry = RetryPolicy{Attempts: 4, Delay: time.Minute, Jitter: time.Hour} })
	w.network("net", "1.0.0", adds(behaviours{"ADD": {Code: 11, Msg: "later", Only: 3}}))
	w.jitter = func(most time.Duration) time.Duration {
		require.Equal(t, time.Hour, most)
		return time.Second * time.Duration(1+len(w.slept))
	}
	_, err := w.Setup(t.Context(), w.alloc("a"))
	require.NoError(t, err)
	require.Equal(t, []time.Duration{time.Minute + time.Second, time.Minute + 2*time.Second, time.Minute + 3*time.Second}, w.slept)
}

func TestRandomJitter(t *testing.T) {
	require.Zero(t, randomJitter(0))
	require.Zero(t, randomJitter(-time.Second))
	seen := map[time.Duration]bool{}
	for range 100 {
		j := randomJitter(time.Second)
		require.True(t, j >= 0 && j < time.Second)
		seen[j] = true
	}
	require.Greater(t, len(seen), 50)
}

// TestResultsOfAnAttempt: DEL is given what its own ADD returned, in part too,
// and nothing of an earlier attempt.
func TestResultsOfAnAttempt(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Networks = []string{"a", "b"}; c.Retry.Attempts = 2 })
	w.network("a", "1.0.0", adds())
	w.network("b", "1.0.0", adds())
	spy := w.spy()
	attempts := [][]*types100.Result{{goodResult(t), nil}, {nil, nil}}
	spy.add = func(context.Context, *engine.Request) ([]*types100.Result, error) {
		results := attempts[0]
		attempts = attempts[1:]
		return results, errors.New("trouble")
	}
	var known [][2]bool
	spy.del = func(_ context.Context, r *engine.Request) error {
		known = append(known, [2]bool{r.Attachments[0].Result != nil, r.Attachments[1].Result != nil})
		return nil
	}
	_, err := w.Setup(t.Context(), w.alloc("x"))
	require.ErrorContains(t, err, "trouble")
	require.Equal(t, [][2]bool{{true, false}, {false, false}}, known)
}

func TestLoopbackIsUp(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	ns, err := sandbox.Open(a.Netns)
	require.NoError(t, err)
	defer ns.Close()
	flags := func() (f net.Flags) {
		require.NoError(t, ns.Do(func() error {
			lo, err := netlink.LinkByName("lo")
			if err == nil {
				f = lo.Attrs().Flags
			}
			return err
		}))
		return f
	}
	require.NoError(t, ns.Do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(lo)
	}))
	require.Zero(t, flags()&net.FlagUp)
	spy := w.spy()
	spy.add = func(ctx context.Context, r *engine.Request) ([]*types100.Result, error) {
		require.NotZero(t, flags()&net.FlagUp, "before the plugins run")
		return spy.Engine.Add(ctx, r)
	}
	_, err = w.Setup(t.Context(), a)
	require.NoError(t, err)
}

// TestRollBackWithinTheDeadline: an ADD that hangs is ended early enough for a
// DEL.
func TestRollBackWithinTheDeadline(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds(behaviours{"ADD": {Hang: true}}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w.now = func() time.Time { return time.Now().Add(58 * time.Second) } // of the minute, two seconds seem left
	_, err := w.Setup(ctx, w.alloc("a"))
	require.NoError(t, ctx.Err())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, ErrIncomplete)
	require.Equal(t, []string{"one ADD", "one DEL"}, w.commands())
	w.requireNoRecords()
}

// TestTimeoutOfTheConfig bounds every run of plugins, whatever the caller's
// context allows.
func TestTimeoutOfTheConfig(t *testing.T) {
	later, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for name, ctx := range map[string]context.Context{"no deadline": t.Context(), "a later deadline": later} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.Timeout = 300 * time.Millisecond })
			w.network("add", "1.0.0", adds(behaviours{"ADD": {Hang: true}}))
			w.network("check", "1.1.0", adds(behaviours{"CHECK": {Hang: true}, "DEL": {Hang: true, Only: 2}, "STATUS": {Hang: true}, "GC": {Hang: true}}))
			a := w.alloc("a")
			a.Networks = []string{"add"}
			_, err := w.Setup(ctx, a)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			w.requireNoRecords()

			a.Networks = []string{"check"}
			_, err = w.Setup(ctx, a)
			require.NoError(t, err)
			require.ErrorIs(t, w.Check(ctx, a), context.DeadlineExceeded)
			require.ErrorIs(t, w.Teardown(ctx, a), context.DeadlineExceeded)
			require.ErrorIs(t, w.ReadyFor(ctx, a), context.DeadlineExceeded)
			_, err = w.GC(ctx, []string{"a"})
			require.ErrorIs(t, err, context.DeadlineExceeded)
		})
	}
}

// TestFirstAddOfANetworkGoesAlone until one has succeeded; the first one with
// ports does so again.
func TestFirstAddOfANetworkGoesAlone(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Retry.Attempts = 1 })
	w.network("net", "1.0.0", adds(behaviours{"ADD": {Code: 7, Msg: "no", Only: 1}}))
	var alone []bool
	spy := w.spy()
	spy.add = func(ctx context.Context, r *engine.Request) ([]*types100.Result, error) {
		another, cancel := context.WithCancel(t.Context())
		defer time.AfterFunc(20*time.Millisecond, cancel).Stop()
		done, err := w.store.First(another, "unheard-of")
		if err == nil {
			done(false)
		}
		alone = append(alone, err != nil)
		return spy.Engine.Add(ctx, r)
	}
	setup := func(a Allocation) error { _, err := w.Setup(t.Context(), a); return err }
	a, b, c, d := w.alloc("a"), w.alloc("b"), w.alloc("c"), w.alloc("d")
	c.Ports, d.Ports = []portmap.Port{{Value: 80}}, []portmap.Port{{Value: 81}}
	require.Error(t, setup(a))
	require.NoError(t, setup(a))
	require.NoError(t, setup(b))
	require.NoError(t, setup(c))
	require.NoError(t, setup(d))
	require.Equal(t, []bool{true, true, false, true, false}, alone)
}

// TestFullBetweenIntentAndResult: an ADD whose result cannot be recorded is
// rolled back, for nobody could take it away later as it was made.
func TestFullBetweenIntentAndResult(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Retry.Attempts = 1 })
	// A result that does not fit into the page that the intent has begun.
	long := strings.TrimSuffix(strings.TrimSpace(result), "}") + `,"dns":{"domain":"` + strings.Repeat("x", 5000) + `"}}`
	w.network("net", "1.0.0", adds(behaviours{"ADD": {Result: json.RawMessage(long)}}))
	state := "/run/full-between"
	require.NoError(t, os.MkdirAll(state, 0o700))
	require.NoError(t, unix.Mount("tmpfs", state, "tmpfs", 0, "size=64k,mode=700"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(state, unix.MNT_DETACH)) })
	w.cfg.StateDir = state
	w.Configurator = newConfigurator(t, w.cfg)
	spy := w.spy()
	spy.add = func(ctx context.Context, r *engine.Request) ([]*types100.Result, error) {
		results, err := spy.Engine.Add(ctx, r)
		filler, fillErr := os.Create(filepath.Join(state, "filler"))
		for fillErr == nil {
			_, fillErr = filler.Write(make([]byte, 4096))
		}
		require.ErrorIs(t, fillErr, unix.ENOSPC)
		require.NoError(t, filler.Close())
		return results, err
	}
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NotErrorIs(t, err, ErrIncomplete)
	require.Equal(t, []string{"one ADD", "one DEL"}, w.commands())
	require.Contains(t, string(w.calls()[1].Stdin), "127.0.0.1", "DEL has the result all the same")
	w.requireNoRecords()

	require.NoError(t, os.Remove(filepath.Join(state, "filler")))
	spy.add = spy.Engine.Add
	_, err = w.Setup(t.Context(), a)
	require.NoError(t, err)
}

// TestOperationsOfOneAllocationWait: none works on an allocation that another
// one has locked.
func TestOperationsOfOneAllocationWait(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	w.commands()
	unlock, err := w.store.Lock(t.Context(), "a")
	require.NoError(t, err)
	for name, operate := range map[string]func(context.Context) error{
		"Setup":    func(ctx context.Context) error { _, err := w.Setup(ctx, a); return err },
		"Check":    func(ctx context.Context) error { return w.Check(ctx, a) },
		"Teardown": func(ctx context.Context) error { return w.Teardown(ctx, a) },
		"Audit":    func(ctx context.Context) error { _, err := w.Audit(ctx, a); return err },
		"Force":    func(ctx context.Context) error { _, err := w.Force(ctx, a); return err },
		"GC":       func(ctx context.Context) error { _, err := w.GC(ctx, nil); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		require.ErrorIs(t, operate(ctx), context.DeadlineExceeded, name)
		cancel()
		require.Empty(t, w.commands(), name)
	}
	unlock()
	r, err := w.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, PhaseReady, r.Phase)
}

// TestErrorsOfAllAttempts: the first cause comes first, and none is said twice.
func TestErrorsOfAllAttempts(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	causes := []error{errors.New("first cause"), errors.New("second cause"), errors.New("first cause")}
	left := causes
	w.spy().add = func(context.Context, *engine.Request) ([]*types100.Result, error) {
		err := left[0]
		left = left[1:]
		return []*types100.Result{nil}, err
	}
	_, err := w.Setup(t.Context(), w.alloc("a"))
	require.EqualError(t, err, "first cause\nsecond cause")
	require.ErrorIs(t, err, causes[0])
	require.ErrorIs(t, err, causes[1])
}
