package heal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/watch"
	"github.com/allocnet/allocnet/internal/state/record"
)

// fake is a service, a watcher and a report. It logs the calls.
type fake struct {
	mu      sync.Mutex
	log     []string
	restore []configurator.RestoreReport // answers of Restore; the last one stays
	fails   int                          // Restores that return an error first
	check   map[string]error
	changed chan struct{}
	changes []watch.Change
	records []configurator.Record // if not nil, those of List
	checks  chan struct{}         // if not nil, a CHECK lasts until it has a value
}

func newFake(answers ...configurator.RestoreReport) *fake {
	return &fake{restore: answers, check: map[string]error{}, changed: make(chan struct{}, 1)}
}

func (f *fake) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, fmt.Sprintf(format, args...))
}

func (f *fake) Restore(_ context.Context, ids ...string) (*configurator.RestoreReport, error) {
	f.note("restore %v", ids)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails > 0 {
		f.fails--
		return nil, errors.New("no")
	}
	report := f.restore[0]
	if len(f.restore) > 1 {
		f.restore = f.restore[1:]
	}
	return &report, nil
}

func (f *fake) CheckAndRepair(_ context.Context, id string) (bool, error) {
	f.note("check %s", id)
	if f.checks != nil {
		<-f.checks
	}
	f.note("checked %s", id)
	return false, f.check[id]
}

func (f *fake) List(context.Context) ([]configurator.Record, error) {
	f.note("list")
	if f.records != nil {
		return f.records, nil
	}
	return []configurator.Record{{ID: "a"}, {ID: "b"}, {ID: "taken", ContainerID: "pool-1"}, {ID: "v.eth0", ContainerID: "v"}, {ID: "v.eth1", ContainerID: "v"}}, nil
}

func (f *fake) HoldGuard(context.Context) error {
	f.note("hold the guard")
	return nil
}

func (f *fake) Changed() <-chan struct{} { return f.changed }

func (f *fake) Take() []watch.Change {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken := f.changes
	f.changes = nil
	return taken
}

func (f *fake) change(list ...watch.Change) {
	f.mu.Lock()
	f.changes = append(f.changes, list...)
	f.mu.Unlock()
	f.changed <- struct{}{}
}

func (f *fake) Healed(h client.Heal) {
	f.note("healed %s %d %s%s%s", h.Cause, h.Restored, h.Change, h.Unhealthy, h.Error)
}
func (f *fake) Compared(kinds []string) { f.note("compared %v", kinds) }
func (f *fake) Unhealthy(n int)         { f.note("unhealthy %d", n) }
func (f *fake) Unchecked(n int)         { f.note("unchecked %d", n) }

// run runs a Healer and a Checker until the test ends.
func (f *fake) run(t *testing.T, interval time.Duration) {
	service := func() Service { return f }
	c := NewChecker(CheckerOptions{Service: service, Interval: interval, Report: f, Logger: hclog.NewNullLogger()})
	h := &Healer{Service: service, Watcher: f, Checker: c, Report: f, Logger: hclog.NewNullLogger()}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = h.Run(ctx) })
	running.Go(func() { _ = c.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

// await waits until the log contains a text.
func (f *fake) await(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return f.count(text) > 0 }, 30*time.Second, time.Millisecond, "no %q", text)
}

func (f *fake) count(text string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, l := range f.log {
		if l == text {
			n++
		}
	}
	return n
}

var flush = watch.Change{Kind: watch.Rules, Object: "deletion of table ip allocnet", Process: "nft", PID: 7}

// TestHealer: a change leads to one comparison of everything, and to a CHECK of what was
// restored or could not be.
func TestHealer(t *testing.T) {
	f := newFake(configurator.RestoreReport{Restored: []string{"a"}, Failed: []string{"b"}, Unchecked: []string{"c"}})
	f.check["b"] = configurator.ErrUnhealthy
	f.run(t, 0)
	f.change(flush)
	for _, text := range []string{
		"restore []", "compared [rules]", `healed rules 1 deletion of table ip allocnet by "nft" (PID 7)`,
		"check a", "check b", "check c", "unhealthy 1", "healed drift 0 b" + configurator.ErrUnhealthy.Error(),
	} {
		f.await(t, text)
	}
	require.Equal(t, 1, f.count("restore []"))
}

// TestHealerHoldsTheGuard: another process has made it. That is no reason to compare.
func TestHealerHoldsTheGuard(t *testing.T) {
	f := newFake()
	f.run(t, 0)
	f.change(watch.Change{Kind: watch.Made, Object: "new table ip allocnet_guard", Process: "allocnet"})
	f.await(t, "hold the guard")
	require.Zero(t, f.count("restore []"))
}

// TestGuardHeldFirst: if another program may have removed the guard, it is held before anything is compared, and
// also if nothing is repaired.
func TestGuardHeldFirst(t *testing.T) {
	for kind, held := range map[watch.Kind]int{watch.Made: 1, watch.Rules: 1, watch.Lost: 1, watch.Foreign: 0, watch.Link: 0} {
		t.Run(kind.String(), func(t *testing.T) {
			f := newFake(configurator.RestoreReport{})
			if kind != watch.Made {
				f.run(t, 0)
				f.change(watch.Change{Kind: kind})
				f.await(t, "restore []")
				require.Equal(t, held, f.count("hold the guard"))
				f.mu.Lock()
				require.Equal(t, held == 1, f.log[0] == "hold the guard", f.log)
				f.mu.Unlock()
			}

			f = newFake()
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- (&Healer{Service: func() Service { return f }, Watcher: f}).RunGuard(ctx) }()
			f.change(watch.Change{Kind: kind})
			f.change()
			f.change() // waits until the second one is received, after the first one was dealt with
			cancel()
			require.ErrorIs(t, <-ended, context.Canceled)
			require.Equal(t, held, f.count("hold the guard"))
		})
	}
}

// TestHealerWaitsForACheck: a Healer does not compare while an allocation is being checked, which
// it would find busy, unless the CHECK takes long.
func TestHealerWaitsForACheck(t *testing.T) {
	f := newFake(configurator.RestoreReport{Restored: []string{"a"}}, configurator.RestoreReport{})
	f.checks = make(chan struct{})
	f.run(t, 0)
	f.change(flush)
	f.await(t, "check a")
	f.change(flush)
	f.checks <- struct{}{}
	require.Eventually(t, func() bool { return f.count("restore []") == 2 }, 30*time.Second, time.Millisecond)
	f.mu.Lock()
	require.Less(t, slices.Index(f.log, "checked a"), len(f.log)-1-slices.Index(reversed(f.log), "restore []"))
	f.restore = []configurator.RestoreReport{{Restored: []string{"b"}}, {}}
	f.mu.Unlock()
	f.change(flush)
	f.await(t, "check b")
	f.change(flush)
	require.Eventually(t, func() bool { return f.count("restore []") == 4 }, 30*time.Second, time.Millisecond, "the CHECK hangs")
	require.Zero(t, f.count("checked b"))
	f.checks <- struct{}{}
}

func reversed(list []string) []string {
	list = slices.Clone(list)
	slices.Reverse(list)
	return list
}

// TestChangedRoutes: a route of another program leads to a comparison only if its destination is an
// address of an allocation, or the network of one. The records are listed for a share of the time.
func TestChangedRoutes(t *testing.T) {
	f := newFake(configurator.RestoreReport{Failed: []string{"a"}})
	of := func(id string, addresses ...string) (r configurator.Record) {
		r.ID, r.Status = id, &configurator.Status{Interfaces: []configurator.Interface{{Name: "eth0"}}}
		for _, a := range addresses {
			r.Status.Interfaces[0].Addresses = append(r.Status.Interfaces[0].Addresses, configurator.Address{Address: a})
		}
		return r
	}
	f.records = []configurator.Record{{ID: "none"}, of("a", "10.9.0.2/24", "fd09::2/64"), of("b", "invalid")}
	f.run(t, 0)
	to := func(destinations ...string) watch.Change {
		c := watch.Change{Kind: watch.Destination}
		for _, d := range destinations {
			c.Destinations = append(c.Destinations, netip.MustParsePrefix(d))
		}
		return c
	}
	f.change(to("10.9.0.3/32", "10.9.0.0/16", "0.0.0.0/0"))
	f.await(t, "list")
	f.change(to("10.9.0.2/31"))
	require.Eventually(t, func() bool { return f.count("list") == 2 }, 30*time.Second, time.Millisecond)
	require.Zero(t, f.count("restore []"))
	for i, d := range []string{"10.9.0.2/32", "10.9.0.0/24", "fd09::2/128", "fd09::/64"} {
		f.change(to("192.0.2.0/24", d))
		require.Eventually(t, func() bool { return f.count("restore []") == i+1 && f.count("check a") == i+1 }, 30*time.Second, time.Millisecond, d)
	}
	f.change(watch.Change{Kind: watch.Destination})
	require.Eventually(t, func() bool { return f.count("restore []") == 5 }, 30*time.Second, time.Millisecond, "any")
	require.Equal(t, 5, f.count("compared [route]"))

	r := routes{next: time.Now()}
	require.True(t, r.add([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}))
	require.False(t, r.due(r.next.Add(-1)))
	require.True(t, r.due(r.next))
	require.False(t, r.add(make([]netip.Prefix, maxRoutes)), "too many")
	require.False(t, r.due(r.next))
}

// TestHealerChecksOthersOnlyIfNeeded: CHECK of rules outside of allocnet's tables runs
// programs, and a change of a link does not concern them.
func TestHealerChecksOthersOnlyIfNeeded(t *testing.T) {
	f := newFake(configurator.RestoreReport{Restored: []string{"a"}, Unchecked: []string{"c"}})
	f.run(t, 0)
	f.change(watch.Change{Kind: watch.Address, Object: "x"})
	f.await(t, "check a")
	f.change(watch.Change{Kind: watch.Veth, Owners: []names.Owner{{ID: "v", IfName: "eth0"}}})
	f.await(t, "check v")
	f.await(t, "check v.eth0")
	require.Zero(t, f.count("check c"))
	require.Equal(t, 1, f.count("restore []"), "nothing is compared for a veth")
}

// TestDeletedVeth: the owner of a veth names the container. The allocations of that are checked,
// with one listing of the records for many veths.
func TestDeletedVeth(t *testing.T) {
	f := newFake()
	f.run(t, 0)
	var owners []names.Owner
	for _, id := range []string{"pool-1", "v", "a", "gone"} {
		owners = append(owners, names.Owner{ID: id, IfName: "eth0"})
	}
	f.change(watch.Change{Kind: watch.Veth, Owners: owners})
	for _, id := range []string{"taken", "v.eth0", "v.eth1", "a", "gone"} {
		f.await(t, "check "+id)
	}
	f.await(t, "check pool-1") // which has slots checked
	require.Zero(t, f.count("check b"))
	require.LessOrEqual(t, f.count("list"), 2)
}

// TestListingsTakeAShare: the records are not listed again before the share of the time has passed.
func TestListingsTakeAShare(t *testing.T) {
	f := newFake()
	c := NewChecker(CheckerOptions{Service: func() Service { return f }, Report: f, Logger: hclog.NewNullLogger()})
	now := time.Now().Add(time.Minute)
	c.LaterContainer("pool-1")
	c.listing = now.Add(time.Second)
	require.Empty(t, c.takeWaiting(now))
	due := c.takeWaiting(now.Add(time.Second))
	require.Len(t, due, 1)
	c.listing = time.Time{}
	c.resume(t.Context(), due)
	require.Equal(t, []string{"pool-1", "taken"}, c.queue)
	require.False(t, c.listing.IsZero())
}

// TestHealerRetries: an error of a comparison, and allocations that were busy, are tried
// again. What that restores is published as by the first try.
func TestHealerRetries(t *testing.T) {
	f := newFake(configurator.RestoreReport{Busy: []string{"a"}}, configurator.RestoreReport{Busy: []string{"a"}}, configurator.RestoreReport{Restored: []string{"a"}})
	f.fails = 1
	f.run(t, 0)
	f.change(flush)
	f.await(t, `healed rules 0 deletion of table ip allocnet by "nft" (PID 7)no`)
	f.await(t, "check a")
	f.await(t, `healed rules 1 deletion of table ip allocnet by "nft" (PID 7)`)
	require.Equal(t, 2, f.count("restore []"))
	require.Equal(t, 2, f.count("restore [a]"))
}

// TestCheckerGoesThroughAll: without any notification, every allocation is compared and
// checked, again and again.
func TestCheckerGoesThroughAll(t *testing.T) {
	f := newFake(configurator.RestoreReport{Restored: []string{"b"}})
	f.run(t, time.Millisecond)
	f.await(t, "healed drift 1 found by the comparison in the background")
	require.Eventually(t, func() bool { return f.count("check a") > 1 && f.count("check b") > 1 }, 30*time.Second, time.Millisecond)
}

// TestUnhealthy: an allocation counts as unhealthy until a CHECK finds that it is healthy
// or gone; one that could not be checked stays what it was.
func TestUnhealthy(t *testing.T) {
	f := newFake()
	c := NewChecker(CheckerOptions{Service: func() Service { return f }, Report: f, Logger: hclog.NewNullLogger()})
	for _, step := range []struct {
		err  error
		want int
	}{
		{nil, 0}, {configurator.ErrUnhealthy, 1}, {configurator.ErrUnhealthy, 1}, {configurator.ErrNotChecked, 1}, {nil, 0},
		{configurator.ErrUnhealthy, 1}, {configurator.ErrNotFound, 0},
	} {
		f.check["a"] = step.err
		c.check(t.Context(), "a")
		require.Len(t, c.unhealthy, step.want)
		again := errors.Is(step.err, configurator.ErrUnhealthy) || errors.Is(step.err, configurator.ErrNotChecked)
		require.Equal(t, again, len(c.waiting) == 1, "whether it is checked again: %v", step.err)
		clear(c.waiting)
	}
	require.Equal(t, 2, f.count("healed drift 0 a"+configurator.ErrUnhealthy.Error()))
}

// TestUnchecked: an allocation counts as unchecked while its CHECK cannot be completed, unless it is known to be
// unhealthy. What was found is kept.
func TestUnchecked(t *testing.T) {
	f := newFake()
	c := NewChecker(CheckerOptions{Service: func() Service { return f }, Report: f, Logger: hclog.NewNullLogger()})
	check := func(id string, err error) {
		f.check[id] = err
		c.check(t.Context(), id)
	}
	check("a", configurator.ErrNotChecked)
	c.NotChecked("b")
	require.Contains(t, c.waiting, task{id: "b"})
	require.Equal(t, 1, f.count("unchecked 1"))
	require.Equal(t, 1, f.count("unchecked 2"))
	check("a", fmt.Errorf("%w: the route is missing", configurator.ErrUnhealthy))
	require.Equal(t, 2, f.count("unchecked 1"))
	check("a", configurator.ErrNotChecked)
	found, unhealthy := c.Damage("a")
	require.True(t, unhealthy)
	require.Contains(t, found, "the route is missing")
	c.Found("b", nil)
	require.Equal(t, 1, f.count("unchecked 0"))
	_, unhealthy = c.Damage("b")
	require.False(t, unhealthy)
}

// TestUnfinishedChange: an allocation whose change a request could not finish is checked soon.
func TestUnfinishedChange(t *testing.T) {
	c := NewChecker(CheckerOptions{Report: newFake()})
	began := time.Now()
	c.Found("a", fmt.Errorf("detach: %w", record.Unfinished(errors.New("no"))))
	require.False(t, c.HasUnhealthy())
	require.Empty(t, c.takeWaiting(began))
	require.Contains(t, c.takeWaiting(time.Now().Add(firstUnhealthy)), task{id: "a"})
}

// TestFoundByARequest: an allocation that a request has found unhealthy counts, and is checked once
// after five seconds, until a request or a CHECK finds it healthy.
func TestFoundByARequest(t *testing.T) {
	f := newFake()
	c := NewChecker(CheckerOptions{Service: func() Service { return f }, Report: f, Logger: hclog.NewNullLogger()})
	gone := fmt.Errorf("%w: %w", configurator.ErrUnhealthy, configurator.ErrInvalidAllocation)
	for _, err := range []error{nil, configurator.ErrNotChecked, configurator.ErrNotFound, gone, context.Canceled} {
		c.Found("a", err)
		require.Empty(t, f.log, err)
		require.Empty(t, c.waiting, err)
	}
	for range 2 {
		before := time.Now()
		c.Found("a", configurator.ErrUnhealthy)
		due := c.waiting[task{id: "a"}].at
		require.WithinRange(t, due, before.Add(firstUnhealthy), time.Now().Add(firstUnhealthy))
		c.Found("a", configurator.ErrUnhealthy)
		require.Equal(t, due, c.waiting[task{id: "a"}].at, "found again")
		require.Equal(t, firstUnhealthy, c.waits["a"])
		require.Equal(t, []string{"unhealthy 1", "healed drift 0 a" + configurator.ErrUnhealthy.Error()}, f.log)
		c.Found("a", nil)
		require.Empty(t, c.unhealthy)
		require.Equal(t, "unhealthy 0", f.log[2])
		f.log = nil
		clear(c.waiting)
	}
	c.Found("a", configurator.ErrUnhealthy)
	c.check(t.Context(), "a")
	require.Empty(t, c.unhealthy)
}

// TestCheckedAgain: an allocation that is not healthy waits for one CHECK, however often it was
// checked, and waits longer each time.
func TestCheckedAgain(t *testing.T) {
	for _, cause := range []error{configurator.ErrUnhealthy, configurator.ErrNotChecked} {
		f := newFake()
		f.check["a"] = cause
		c := NewChecker(CheckerOptions{Service: func() Service { return f }, Report: f, Logger: hclog.NewNullLogger()})
		due := func() time.Time { return c.waiting[task{id: "a"}].at }
		for _, wait := range []time.Duration{firstUnhealthy, 2 * firstUnhealthy, 4 * firstUnhealthy} {
			clear(c.waiting)
			before := time.Now()
			c.check(t.Context(), "a")
			require.WithinRange(t, due(), before.Add(wait), time.Now().Add(wait), cause)
		}
		first := due()
		c.check(t.Context(), "a")
		require.Equal(t, first, due())
		c.after(laterTime, "a")
		require.True(t, due().Before(first))
		require.Len(t, c.waiting, 1)
		for range 10 {
			c.check(t.Context(), "a")
			clear(c.waiting)
		}
		require.Equal(t, lastUnhealthy, c.waits["a"])
		f.check["a"] = nil
		c.check(t.Context(), "a")
		require.Empty(t, c.waits)
	}
}

// TestCheckerIsBounded: what waits for a CHECK does not grow for ever.
func TestCheckerIsBounded(t *testing.T) {
	c := NewChecker(CheckerOptions{})
	for i := range maxQueue + 10 {
		c.LaterContainer(fmt.Sprint(i))
		c.after(laterTime, "a")
		c.Retry(&client.Heal{}, "b")
	}
	require.Len(t, c.waiting, maxQueue)
}

// TestFailedRepairIsLogged: the error of the first repair that fails is logged, also if a request has
// found the allocation unhealthy before.
func TestFailedRepairIsLogged(t *testing.T) {
	f := newFake()
	var logged bytes.Buffer
	c := NewChecker(CheckerOptions{Service: func() Service { return f }, Report: f, Logger: hclog.New(&hclog.LoggerOptions{Output: &logged})})
	c.Found("a", configurator.ErrUnhealthy)
	require.Empty(t, logged.String())
	f.check["a"] = errors.New("no memory for the repair")
	for range 2 {
		c.check(t.Context(), "a")
		require.Equal(t, 1, strings.Count(logged.String(), "no memory for the repair"))
	}
	require.Equal(t, 1, f.count("healed drift 0 a"+configurator.ErrUnhealthy.Error()), "one event")
}
