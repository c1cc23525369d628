package daemon

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
)

// TestSuccessor: runtimes run the ADD of a successor before the DEL of its predecessor, as Nomad does, whatever
// happens to the daemon in between, and a flush that it repairs. The predecessor keeps the host port until it goes, and
// the commands say who waits for whom.
func TestSuccessor(t *testing.T) {
	r := newCNI(t)
	netns := map[string]string{}
	for _, name := range []string{"a", "b"} {
		netns[name] = r.h.netns(name)
		testbed.SetSysctls(t, netns[name], testbed.Quick)
		testbed.Serve(t, netns[name], "tcp", 80, name)
	}
	require4and6 := func(name string) {
		t.Helper()
		for _, at := range []string{testbed.HostPort(testhost.Host4, 8080), testbed.HostPort(testhost.Host6, 8080)} {
			testbed.RequireAnswer(t, r.h.Outside.Path(), "tcp", at, name)
		}
	}
	port := portMapping(8080, 80)
	for i, m := range modes {
		names := []string{"a", "b"}
		if i%2 == 1 {
			slices.Reverse(names)
		}
		older, newer := names[0], names[1]
		m.turn(r)
		r.ok("add", "runtime", netns[older], port)
		m.turn(r)
		r.ok("add", "runtime", netns[newer], port)
		require4and6(older)
		r.ok("check", "runtime", netns[newer], port)
		require.Contains(t, r.allocnet("inspect", r.allocation(netns[newer])).out, r.allocation(netns[older]))
		m.turn(r)
		r.ok("del", "runtime", netns[older], port)
		require4and6(newer)
		r.ok("check", "runtime", netns[newer], port)
		r.ok("add", "runtime", netns[older], port)
		require4and6(newer)
		m.turn(r)
		r.ok("del", "runtime", netns[older], port)
		require4and6(newer)
		r.ok("del", "runtime", netns[newer], port)
		testbed.RequireRefused(t, r.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080))
	}

	modes[0].turn(r)
	r.ok("add", "runtime", netns["a"], port)
	r.ok("add", "runtime", netns["b"], port)
	a, b := r.allocation(netns["a"]), r.allocation(netns["b"])
	privhost.FlushRuleset(t)
	require.Eventually(t, func() bool {
		healthy := func(id string) bool { return r.h.CheckOnly(r.h.Context(), configurator.Allocation{ID: id}) == nil }
		return healthy(a) && healthy(b)
	}, time.Minute, 20*time.Millisecond)
	require4and6("a")
	for _, command := range [][]string{{"ls", "--wide"}, {"status"}, {"check", b}, {"inspect", b}, {"trace", b}} {
		require.Contains(t, r.allocnet(command...).out, a[:12], "%v", command)
	}
	r.ok("del", "runtime", netns["a"], port)
	require4and6("b")
	r.ok("del", "runtime", netns["b"], port)
}
