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

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// spied is an engine that a test observes or replaces.
type spied struct {
	engine.Engine
	add func(context.Context, *engine.Request) ([]*types100.Result, error)
	del func(context.Context, *engine.Request) error
}

func (s *spied) Add(ctx context.Context, r *engine.Request) ([]*types100.Result, error) {
	return s.add(ctx, r)
}

func (s *spied) Del(ctx context.Context, r *engine.Request) error { return s.del(ctx, r) }

// spy replaces the engine by a spied one that calls it.
func (h *testHost) spy() *spied {
	inner := h.exec
	s := &spied{Engine: inner, add: inner.Add, del: inner.Del}
	h.exec = s
	return s
}

func goodResult(t *testing.T) *types100.Result {
	t.Helper()
	r, err := engine.ParseResult([]byte(result))
	require.NoError(t, err)
	return r
}

// TestSetupAfterACrash: what an interrupted operation left is removed first. If
// that fails, no ADD runs.
func TestSetupAfterACrash(t *testing.T) {
	for _, phase := range []record.Phase{record.Adding, record.Deleting} {
		t.Run(string(phase), func(t *testing.T) {
			h := newTestHost(t)
			h.network("net", "1.0.0", adds(behaviours{"DEL": {Code: 100, Msg: "del trouble", Only: 2}}))
			a := h.alloc("a")
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			r, err := h.store.Get("a")
			require.NoError(t, err)
			r.Phase = phase
			require.NoError(t, h.store.Put(r))
			h.commands()

			_, err = h.Setup(t.Context(), a)
			require.ErrorIs(t, err, ErrIncomplete)
			require.ErrorContains(t, err, "del trouble")
			require.NotContains(t, h.commands(), "one ADD")

			_, err = h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, []string{"one DEL", "one ADD"}, h.commands())
		})
	}
}

// TestRepairThatCannotBegin: no network is torn down if it could not be set up
// again, or if the caller has gone.
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
			h := newTestHost(t)
			h.network("net", "1.0.0", adds(c.check))
			a := h.alloc("a")
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			if c.prepare != nil {
				c.prepare(t, a)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err = h.Setup(ctx, a)
			require.ErrorIs(t, err, c.want)
			require.NotErrorIs(t, err, ErrIncomplete)
			require.NotContains(t, h.commands(), "one DEL")
			r, err := h.Get(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, PhaseReady, r.Phase)
		})
	}
}

func TestRepairWhoseDelFails(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds(behaviours{"DEL": {Code: 100, Msg: "del trouble"}}))
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	loseAddress(t, a.Netns)
	h.commands()
	_, err = h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrIncomplete)
	require.NotContains(t, h.commands(), "one ADD", "no second ADD without a DEL")
}

// TestIntentIsRecorded: during every ADD, the record contains its intent.
func TestIntentIsRecorded(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	spy := h.spy()
	var phases []Phase
	spy.add = func(ctx context.Context, r *engine.Request) ([]*types100.Result, error) {
		intent, err := h.Get(ctx, "a")
		require.NoError(t, err)
		require.Nil(t, intent.Status)
		require.Len(t, intent.Networks, 1)
		require.Len(t, intent.Ports, 1)
		require.False(t, intent.Updated.Before(intent.Created))
		phases = append(phases, intent.Phase)
		return spy.Engine.Add(ctx, r)
	}
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Value: 80, Protocols: []string{"tcp"}}}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	loseAddress(t, a.Netns)
	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, []Phase{PhaseAdding, PhaseAdding}, phases)
}

// TestReservingPorts: an operation that compares the ports of all records
// excludes others until its own record is written, and a record that cannot be
// read does not stop it.
func TestReservingPorts(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Value: 80}}
	unlock, err := h.store.LockReservations(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = h.Setup(ctx, a)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Empty(t, h.commands())
	h.requireNoRecords()
	unlock()

	corrupt := filepath.Join(h.cfg.StateDir, "allocs", "corrupt.json")
	require.NoError(t, os.WriteFile(corrupt, []byte("{"), 0o600))
	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
}

func TestDelayAndJitter(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.Retry = RetryPolicy{Attempts: 4, Delay: time.Minute, Jitter: time.Hour} })
	h.network("net", "1.0.0", adds(behaviours{"ADD": {Code: 11, Msg: "later", Only: 3}}))
	h.jitter = func(most time.Duration) time.Duration {
		require.Equal(t, time.Hour, most)
		return time.Second * time.Duration(1+len(h.slept))
	}
	_, err := h.Setup(t.Context(), h.alloc("a"))
	require.NoError(t, err)
	require.Equal(t, []time.Duration{time.Minute + time.Second, time.Minute + 2*time.Second, time.Minute + 3*time.Second}, h.slept)
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

// TestResultsOfAnAttempt: DEL is given the results of its own ADD, also
// incomplete ones, and none of an earlier attempt.
func TestResultsOfAnAttempt(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.Networks = []string{"a", "b"}; c.Retry.Attempts = 2 })
	h.network("a", "1.0.0", adds())
	h.network("b", "1.0.0", adds())
	spy := h.spy()
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
	_, err := h.Setup(t.Context(), h.alloc("x"))
	require.ErrorContains(t, err, "trouble")
	require.Equal(t, [][2]bool{{true, false}, {false, false}}, known)
}

func TestLoopbackIsUp(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
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
	spy := h.spy()
	spy.add = func(ctx context.Context, r *engine.Request) ([]*types100.Result, error) {
		require.NotZero(t, flags()&net.FlagUp, "before the plugins run")
		return spy.Engine.Add(ctx, r)
	}
	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
}

// TestRollBackWithinTheDeadline: an ADD that hangs is stopped early enough for
// a DEL.
func TestRollBackWithinTheDeadline(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds(behaviours{"ADD": {Hang: true}}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	h.now = func() time.Time { return time.Now().Add(58 * time.Second) } // two seconds of the minute seem to be left
	_, err := h.Setup(ctx, h.alloc("a"))
	require.NoError(t, ctx.Err())
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, ErrIncomplete)
	require.Equal(t, []string{"one ADD", "one DEL"}, h.commands())
	h.requireNoRecords()
}

// deadlines is an engine whose operations fail with context.DeadlineExceeded at once and note their deadlines.
type deadlines struct {
	engine.Engine
	of map[string]time.Time // by operation; GC with its network
}

func (d deadlines) expire(ctx context.Context, operation string) error {
	deadline, ok := ctx.Deadline()
	if !ok {
		return errors.New(operation + " has no deadline")
	}
	d.of[operation] = deadline
	return context.DeadlineExceeded
}

func (d deadlines) Add(ctx context.Context, _ *engine.Request) ([]*types100.Result, error) {
	return nil, d.expire(ctx, "ADD")
}

func (d deadlines) Check(ctx context.Context, _ *engine.Request) error {
	return d.expire(ctx, "CHECK")
}

func (d deadlines) Del(ctx context.Context, _ *engine.Request) error {
	return d.expire(ctx, "DEL")
}

func (d deadlines) Status(ctx context.Context, _ []string, _ *conflist.Network) error {
	return d.expire(ctx, "STATUS")
}

func (d deadlines) GC(ctx context.Context, _ []string, n *conflist.Network, _ []types.GCAttachment) error {
	return d.expire(ctx, "GC "+n.Name)
}

// TestTimeoutOfTheConfig: Config.Timeout bounds every run of plugins, also if
// the caller's context has a later deadline.
func TestTimeoutOfTheConfig(t *testing.T) {
	later, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	for name, ctx := range map[string]context.Context{"no deadline": t.Context(), "a later deadline": later} {
		t.Run(name, func(t *testing.T) {
			const timeout = 7 * time.Second
			h := newTestHost(t, func(c *Config) { c.Timeout = timeout })
			h.network("net", "1.1.0", adds())
			a := h.alloc("a")
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			d := deadlines{h.exec, map[string]time.Time{}}
			h.exec = d
			require.ErrorIs(t, h.Check(ctx, a), context.DeadlineExceeded)
			require.ErrorIs(t, h.ReadyFor(ctx, a), context.DeadlineExceeded)
			_, err = h.GC(ctx, []string{"a"})
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.ErrorIs(t, h.Teardown(ctx, a), context.DeadlineExceeded)
			_, err = h.Setup(ctx, h.alloc("b"))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			for _, operation := range []string{"ADD", "CHECK", "DEL", "STATUS", "GC net"} {
				require.Contains(t, d.of, operation)
				require.Less(t, time.Until(d.of[operation]), timeout, operation)
			}
		})
	}
}

// TestFirstAddOfANetworkGoesAlone: ADDs of a network run one at a time until
// one has succeeded. The same applies to the first ADD with ports.
func TestFirstAddOfANetworkGoesAlone(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.Retry.Attempts = 1 })
	h.network("net", "1.0.0", adds(behaviours{"ADD": {Code: 7, Msg: "no", Only: 1}}))
	var alone []bool
	spy := h.spy()
	spy.add = func(ctx context.Context, r *engine.Request) ([]*types100.Result, error) {
		another, cancel := context.WithCancel(t.Context())
		defer time.AfterFunc(20*time.Millisecond, cancel).Stop()
		done, err := h.store.First(another, "unheard-of")
		if err == nil {
			done(false)
		}
		alone = append(alone, err != nil)
		return spy.Engine.Add(ctx, r)
	}
	setup := func(a Allocation) error { _, err := h.Setup(t.Context(), a); return err }
	a, b, c, d := h.alloc("a"), h.alloc("b"), h.alloc("c"), h.alloc("d")
	c.Ports, d.Ports = []portmap.Port{{Value: 80}}, []portmap.Port{{Value: 81}}
	require.Error(t, setup(a))
	require.NoError(t, setup(a))
	require.NoError(t, setup(b))
	require.NoError(t, setup(c))
	require.NoError(t, setup(d))
	require.Equal(t, []bool{true, true, false, true, false}, alone)
}

// TestFullBetweenIntentAndResult: an ADD whose result cannot be recorded is
// rolled back, because a later DEL would lack the result.
func TestFullBetweenIntentAndResult(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.Retry.Attempts = 1 })
	// A result that does not fit into the page of the intent.
	long := strings.TrimSuffix(strings.TrimSpace(result), "}") + `,"dns":{"domain":"` + strings.Repeat("x", 5000) + `"}}`
	h.network("net", "1.0.0", adds(behaviours{"ADD": {Result: json.RawMessage(long)}}))
	state := "/run/full-between"
	require.NoError(t, os.MkdirAll(state, 0o700))
	require.NoError(t, unix.Mount("tmpfs", state, "tmpfs", 0, "size=64k,mode=700"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(state, unix.MNT_DETACH)) })
	h.cfg.StateDir = state
	h.Configurator = newConfigurator(t, h.cfg)
	spy := h.spy()
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
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NotErrorIs(t, err, ErrIncomplete)
	require.Equal(t, []string{"one ADD", "one DEL"}, h.commands())
	require.Contains(t, string(h.calls()[1].Stdin), "127.0.0.1", "DEL has the result all the same")
	h.requireNoRecords()

	require.NoError(t, os.Remove(filepath.Join(state, "filler")))
	spy.add = spy.Engine.Add
	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
}

// TestOperationsOfOneAllocationWait: no operation works on an allocation that
// another operation has locked.
func TestOperationsOfOneAllocationWait(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.commands()
	unlock, err := h.store.Lock(t.Context(), "a")
	require.NoError(t, err)
	for name, operate := range map[string]func(context.Context) error{
		"Setup":    func(ctx context.Context) error { _, err := h.Setup(ctx, a); return err },
		"Check":    func(ctx context.Context) error { return h.Check(ctx, a) },
		"Teardown": func(ctx context.Context) error { return h.Teardown(ctx, a) },
		"Audit":    func(ctx context.Context) error { _, err := h.Audit(ctx, a); return err },
		"Force":    func(ctx context.Context) error { _, err := h.Force(ctx, a); return err },
		"GC":       func(ctx context.Context) error { _, err := h.GC(ctx, nil); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		require.ErrorIs(t, operate(ctx), context.DeadlineExceeded, name)
		cancel()
		require.Empty(t, h.commands(), name)
	}
	unlock()
	r, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, PhaseReady, r.Phase)
}

// TestErrorsOfAllAttempts: the first cause comes first, and no error is
// repeated.
func TestErrorsOfAllAttempts(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	causes := []error{errors.New("first cause"), errors.New("second cause"), errors.New("first cause")}
	left := causes
	h.spy().add = func(context.Context, *engine.Request) ([]*types100.Result, error) {
		err := left[0]
		left = left[1:]
		return []*types100.Result{nil}, err
	}
	_, err := h.Setup(t.Context(), h.alloc("a"))
	require.EqualError(t, err, "first cause\nsecond cause")
	require.ErrorIs(t, err, causes[0])
	require.ErrorIs(t, err, causes[1])
}
