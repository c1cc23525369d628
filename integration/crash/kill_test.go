package crash

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/faultinject"
)

// TestKilledAtEveryPoint kills the process of each operation before everything that
// it changes, and after the last of it, before it has said so. Then what is left is
// removed, in one way or another, and nothing else is touched.
func TestKilledAtEveryPoint(t *testing.T) {
	eachPart(t, campaign(someParts(), groups...), func(t *testing.T, p part) {
		h := newHost(t, p.cell)
		kinds := map[faultinject.Kind]bool{}
		for _, o := range operations {
			if !p.has(o.name) {
				continue
			}
			t.Run(o.name, func(t *testing.T) {
				for _, point := range h.in(t).killEverywhere(&o) {
					kinds[point.Kind] = true
				}
			})
		}
		require.Subset(t, slices.Collect(maps.Keys(kinds)), p.cell.kinds(), "what there is to change was seen to change")
	})
}

// kinds are what the operations of a cell change at least.
func (c cell) kinds() []faultinject.Kind {
	switch {
	case c.engine == configurator.EngineExec:
		return []faultinject.Kind{faultinject.File, faultinject.Subprocess, faultinject.Conntrack}
	case c.backend != "", c.mixed:
		return []faultinject.Kind{faultinject.File, faultinject.Route, faultinject.Sysctl, faultinject.Subprocess, faultinject.Conntrack}
	}
	return []faultinject.Kind{faultinject.File, faultinject.Route, faultinject.Sysctl, faultinject.NFTables, faultinject.Conntrack}
}

// killEverywhere goes on until an operation ends before the point at which it was to
// be killed, and returns all points. After each point follows another recovery than
// after the one before; for make stress all of them do, one after the other.
func (h *host) killEverywhere(o *operation) []faultinject.Point {
	h.t.Helper()
	first, several := seed(h.t), 1
	if stress() {
		several = len(recoveries)
	}
	for at := 1; ; at++ {
		for i := range several {
			points, killed := h.killAt(o, at, recoveries[(first+at+i)%len(recoveries)])
			if !killed {
				h.t.Logf("%d points:", len(points))
				for _, p := range points {
					h.t.Log(p)
				}
				return points
			}
		}
	}
}

// killAt kills an operation at one of its points, if it has as many, recovers, and
// returns the points that there were.
func (h *host) killAt(o *operation, at int, r recovery) (points []faultinject.Point, killed bool) {
	h.t.Helper()
	if o.prepare != nil {
		o.prepare(h)
	}
	ended := start(h.t, h.request(o.request), o.killing(at))
	points = ended.Points()
	defer func() {
		if h.t.Failed() {
			h.t.Logf("%s was killed at point %d (%v), then %s", o.name, at, points[len(points)-1], r.name)
		}
	}()
	if !ended.Killed() {
		require.Empty(h.t, ended.answer.Error, "%s", ended.stderr)
	}
	h.restart()
	if o.heals != nil {
		o.heals(h)
	}
	r.do(h)
	ended.requireGone(h.t)
	h.requireNothing()
	return points, ended.Killed()
}
