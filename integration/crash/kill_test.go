package crash

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/faultinject"
)

// operation is one of the configurator's, from a state in which it has work.
type operation struct {
	name    string
	request string
	prepare func(h *host)
}

var operations = []operation{
	{"setup", "setup", func(*host) {}},
	{"setup again", "setup", func(h *host) {
		h.mustSetUp(h.a)
		h.unplug()
	}},
	{"teardown", "teardown", func(h *host) { h.mustSetUp(h.a) }},
}

// unplug deletes the allocation's link, which nothing but another ADD can restore.
func (h *host) unplug() {
	h.t.Helper()
	s := h.open()
	defer s.Close()
	require.NoError(h.t, s.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	}))
}

// recovery is what happens after a crash.
type recovery struct {
	name string
	do   func(h *host)
}

var recoveries = []recovery{
	{"recover and teardown", func(h *host) {
		_, err := h.Recover(h.ctx())
		require.NoError(h.t, err)
		require.NoError(h.t, h.Teardown(h.ctx(), h.a))
	}},
	{"gc", func(h *host) {
		_, err := h.GC(h.ctx(), []string{h.bystander.ID})
		require.NoError(h.t, err)
	}},
	{"teardown", func(h *host) { require.NoError(h.t, h.Teardown(h.ctx(), h.a)) }},
	{"setup and teardown", func(h *host) {
		h.mustSetUp(h.a)
		h.requireReachable(h.a)
		require.NoError(h.t, h.Teardown(h.ctx(), h.a))
	}},
}

// TestKilledAtEveryPoint kills the process of each operation before everything that
// it changes, and after the last of it. What is left is removed then, in each way,
// and nothing else is touched.
func TestKilledAtEveryPoint(t *testing.T) {
	for _, c := range []cell{{engine: "native", main: "bridge"}} {
		t.Run(c.String(), func(t *testing.T) {
			h := newHost(t, c)
			for _, o := range operations {
				t.Run(o.name, func(t *testing.T) {
					h := h.in(t)
					h.killEverywhere(o, recoveries)
				})
			}
		})
	}
}

func (h *host) killEverywhere(o operation, recoveries []recovery) {
	h.t.Helper()
	for at := 1; ; at++ {
		for _, r := range recoveries {
			began := time.Now()
			points := h.killAt(o, at, r)
			if h.t.Failed() {
				return
			}
			h.t.Logf("%d: %v %s", at, points[len(points)-1], time.Since(began))
			if len(points) < at {
				return
			}
		}
	}
}

// killAt kills an operation at one of its points, if it has as many, recovers, and
// returns the points that there were.
func (h *host) killAt(o operation, at int, r recovery) []faultinject.Point {
	h.t.Helper()
	o.prepare(h)
	began := time.Now()
	defer func() { h.t.Logf("rest %s", time.Since(began)) }()
	ended := start(h.t, h.request(o.request), func(n int, _ faultinject.Point) faultinject.Verdict {
		return faultinject.Verdict{Kill: n == at}
	})
	h.t.Logf("ran %s", time.Since(began))
	began = time.Now()
	points := ended.Points()
	last := fmt.Sprintf("%s, killed at point %d: %v; then %s", o.name, at, points[len(points)-1], r.name)
	if !ended.Killed() {
		require.Empty(h.t, ended.answer.Error, "%s", ended.stderr)
	}
	h.restart()
	h.t.Run(last, func(t *testing.T) {
		h := h.in(t)
		r.do(h)
		h.t.Logf("recovered %s", time.Since(began))
		began = time.Now()
		ended.requireGone(t)
		h.t.Logf("gone %s", time.Since(began))
		began = time.Now()
		h.requireNothing()
	})
	return points
}
