package integration

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// successors are allocations with the same host port, of which all but the first wait for it.
type successors struct {
	*host
	allocs []configurator.Allocation // from the oldest to the newest
}

// newSuccessors returns allocations whose servers answer with their IDs.
func newSuccessors(h *host, ids ...string) *successors {
	s := &successors{host: h}
	for i, id := range ids {
		a := h.Alloc(id)
		a.Ports, a.WaitForPorts = []portmap.Port{{Value: 8080, To: 80}}, i > 0
		testbed.SetSysctls(h.T, a.Netns, testbed.Quick)
		for _, protocol := range []string{"tcp", "udp"} {
			testbed.Serve(h.T, a.Netns, protocol, 80, id)
		}
		s.allocs = append(s.allocs, a)
	}
	return s
}

// require checks that clients outside reach an allocation at the host port, over both families and protocols.
func (s *successors) require(id string) {
	s.T.Helper()
	for _, at := range []string{testbed.HostPort(testhost.Host4, 8080), testbed.HostPort(testhost.Host6, 8080)} {
		for _, protocol := range []string{"tcp", "udp"} {
			testbed.RequireAnswer(s.T, s.Outside.Path(), protocol, at, id)
		}
	}
}

// requireWaiting checks for which allocations the records say that each one waits.
func (s *successors) requireWaiting(there []int) {
	s.T.Helper()
	for i, n := range there {
		r, err := s.Get(s.Context(), s.allocs[n].ID)
		require.NoError(s.T, err)
		if i == 0 {
			require.Empty(s.T, r.Waiting)
			continue
		}
		require.Len(s.T, r.Waiting, 2)
		require.Equal(s.T, s.allocs[there[0]].ID, r.Waiting[0].ID)
	}
}

// TestSuccessor: with WaitForPorts, a host port leads to the oldest allocation that has requested it, whichever of them
// is removed, also after a flush and a repair. By default, Setup returns a conflict, also if the other one waits.
func TestSuccessor(t *testing.T) {
	testbed.Each(t, append(slices.Clone(testbed.Engines), testbed.NativeTables), func(t *testing.T, w testbed.Way) {
		h := newHost(t, w.Engine)
		h.Network("net", testbed.Chain("bridge", testbed.Dual, w.Backend)...)
		testbed.SetSysctls(t, "", testbed.Quick)
		s := newSuccessors(h, "a", "b", "c")
		orders := [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
		if w != testbed.Native { // which starts programs
			orders = [][]int{{0, 1, 2}, {1, 0, 2}}
		}
		for i, order := range orders {
			for n, a := range s.allocs {
				status := h.SetUp(a)
				require.Equal(t, n > 0, len(status.Warnings) > 0, status.Warnings)
			}
			there := []int{0, 1, 2}
			sends := h.client(testbed.At(testhost.Host4.Addr(), 8080)) // always from the same port
			for step, n := range order {
				answer, err := exchange(sends)
				if err != nil { // the first datagram may be lost
					answer, err = exchange(sends)
				}
				require.NoError(t, err)
				require.Equal(t, s.allocs[there[0]].ID, strings.Fields(answer)[0])
				s.require(s.allocs[there[0]].ID)
				s.requireWaiting(there)
				for _, n := range there {
					require.NoError(t, h.CheckOnly(h.Context(), s.allocs[n]))
				}
				refused := h.Alloc(fmt.Sprintf("refused-%d-%d", i, step))
				refused.Ports = s.allocs[0].Ports
				_, err = h.Setup(h.Context(), refused)
				require.ErrorIs(t, err, portmap.ErrConflict)
				if w == testbed.Native && i%2 == step%2 {
					privhost.FlushRuleset(t)
					report, err := h.Repair(h.Context())
					require.NoError(t, err)
					require.Len(t, report.Repaired, len(there))
					s.require(s.allocs[there[0]].ID)
				}
				h.TearDown(s.allocs[n])
				there = slices.DeleteFunc(there, func(o int) bool { return o == n })
			}
			testbed.RequireRefused(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080))
		}
	})
}

// TestSuccessorAfterAFlush: an allocation that comes between a flush and the repair does not keep the host port of an
// older one, whichever is repaired first.
func TestSuccessorAfterAFlush(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	h.Network("net", testbed.Chain("bridge", testbed.Dual, "")...)
	testbed.SetSysctls(t, "", testbed.Quick)
	s := newSuccessors(h, "a", "b", "c")
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		h.SetUp(s.allocs[0])
		h.SetUp(s.allocs[1])
		privhost.FlushRuleset(t)
		h.SetUp(s.allocs[2])
		for _, n := range order {
			_, err := h.CheckAndRepair(h.Context(), s.allocs[n].ID)
			require.NoError(t, err)
		}
		s.require("a")
		for _, a := range s.allocs {
			require.NoError(t, h.CheckOnly(h.Context(), a))
		}
		h.TearDown(s.allocs[0])
		s.require("b")
		h.TearDown(s.allocs[1])
		s.require("c")
		h.TearDown(s.allocs[2])
	}
}

// TestSuccessorOfOneAddress: a host port of one address waits for an older one of every address, and an older one of
// one address keeps it, while a newer one gets all other addresses.
func TestSuccessorOfOneAddress(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	h.Network("net", testbed.Chain("bridge", testbed.Dual, "")...)
	s := newSuccessors(h, "all", "one")
	s.allocs[0].WaitForPorts = true
	s.allocs[1].Ports = []portmap.Port{{Value: 8080, To: 80, HostIP: testhost.Host4.Addr().String()}}
	all, one := s.allocs[0], s.allocs[1]
	at4, at6, outside := testbed.HostPort(testhost.Host4, 8080), testbed.HostPort(testhost.Host6, 8080), h.Outside.Path()
	ask := func(four, six string) {
		t.Helper()
		for _, protocol := range []string{"tcp", "udp"} {
			testbed.RequireAnswer(t, outside, protocol, at4, four)
			if six != "" {
				testbed.RequireAnswer(t, outside, protocol, at6, six)
			}
		}
	}
	for range 2 {
		h.SetUp(all)
		h.SetUp(one)
		ask("all", "all")
		require.NoError(t, h.CheckOnly(h.Context(), one))
		privhost.FlushRuleset(t)
		_, err := h.Repair(h.Context())
		require.NoError(t, err)
		ask("all", "all")
		h.TearDown(all)
		ask("one", "")
		h.SetUp(all)
		ask("one", "all")
		privhost.FlushRuleset(t)
		_, err = h.Repair(h.Context())
		require.NoError(t, err)
		ask("one", "all")
		h.TearDown(one)
		ask("all", "all")
		h.TearDown(all)
	}
}

// TestSuccessorGetsEveryConnection: while an allocation hands its host port over, no connection is refused, and none
// reaches the successor before the predecessor goes.
func TestSuccessorGetsEveryConnection(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	h.Network("net", testbed.Chain("bridge", testbed.Dual, "")...)
	testbed.SetSysctls(t, "", testbed.Quick)
	s := newSuccessors(h, "a", "b")
	h.SetUp(s.allocs[0])
	s.require("a")
	for i := range 20 {
		old, next := s.allocs[i%2], s.allocs[1-i%2]
		old.WaitForPorts, next.WaitForPorts = false, true
		var mu sync.Mutex
		var answers []string
		var refused error
		stop := make(chan struct{})
		began := make(chan struct{}, 1)
		var clients sync.WaitGroup
		for _, at := range []string{testbed.HostPort(testhost.Host4, 8080), testbed.HostPort(testhost.Host6, 8080)} {
			clients.Go(func() {
				for {
					answer, err := testbed.Ask(testbed.Timeout, h.Outside.Path(), "tcp", at)
					mu.Lock()
					var op *net.OpError
					switch {
					case err == nil:
						answers = append(answers, strings.Fields(answer)[0])
					case errors.Is(err, unix.ECONNREFUSED) && errors.As(err, &op) && op.Op == "dial":
						refused = err
					}
					mu.Unlock()
					select {
					case began <- struct{}{}:
					default:
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			})
		}
		<-began
		h.SetUp(next)
		mu.Lock()
		require.NotContains(t, answers, next.ID)
		mu.Unlock()
		h.TearDown(old)
		s.require(next.ID)
		close(stop)
		clients.Wait()
		require.NoError(t, refused)
	}
	h.TearDown(s.allocs[0])
}

// TestSuccessorIsUpdated: an allocation that waits for a host port can be changed; a host port that the change adds does
// not wait, and one that it removes leads to no one when the older allocation goes.
func TestSuccessorIsUpdated(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	h.Network("net", testbed.Chain("bridge", testbed.Dual, "")...)
	testbed.SetSysctls(t, "", testbed.Quick)
	s := newSuccessors(h, "a", "b")
	a, b := s.allocs[0], s.allocs[1]
	outside, at := h.Outside.Path(), func(port int) string { return testbed.HostPort(testhost.Host4, port) }
	update := func(c configurator.Change) error {
		_, err := h.Update(h.Context(), b.ID, c)
		return err
	}
	more := []portmap.Port{{Value: 8090, To: 80}}
	h.SetUp(a)
	h.SetUp(b)
	require.NoError(t, update(configurator.Change{Publish: more}))
	s.require("a")
	testbed.RequireAnswer(t, outside, "tcp", at(8090), "b")
	require.NoError(t, update(configurator.Change{Unpublish: b.Ports}))
	s.require("a")
	require.ErrorIs(t, update(configurator.Change{Publish: b.Ports}), portmap.ErrConflict)
	require.NoError(t, h.CheckOnly(h.Context(), b))
	h.TearDown(a)
	testbed.RequireRefused(t, outside, "tcp", at(8080))
	require.NoError(t, update(configurator.Change{Publish: b.Ports}))
	s.require("b")
	h.TearDown(b)
}
