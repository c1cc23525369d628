package crash

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/faultinject"
)

// TestKilledAtEveryPoint kills the process of each operation before every
// change, and after the last change, before its answer, or at some of these
// points: see distance. Then a recovery removes what is left, and nothing else
// is changed.
func TestKilledAtEveryPoint(t *testing.T) {
	eachPart(t, campaign(someParts(), append([][]string{{inBackground}}, groups...)...), func(t *testing.T, p part) {
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

// kinds are the kinds of changes that the operations of a cell cause at least.
func (c cell) kinds() []faultinject.Kind {
	switch {
	case c.engine == configurator.EngineExec:
		return []faultinject.Kind{faultinject.File, faultinject.Subprocess, faultinject.Conntrack}
	case c.backend != "", c.mixed:
		return []faultinject.Kind{faultinject.File, faultinject.Route, faultinject.Sysctl, faultinject.Subprocess, faultinject.Conntrack}
	}
	return []faultinject.Kind{faultinject.File, faultinject.Route, faultinject.Sysctl, faultinject.NFTables, faultinject.Conntrack}
}

// killEverywhere kills an operation at its points in turn, until it ends before
// the next one, and returns all points. The recoveries alternate
// from point to point. For make stress, every recovery runs after every point.
func (h *host) killEverywhere(o *operation) []faultinject.Point {
	h.t.Helper()
	first, several := seed(h.t), 1
	if stress() {
		several = len(recoveries)
	}
	for at := 1; ; at += distance() {
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

// killAt kills an operation at one of its points and recovers. It returns the
// points so far, and whether the operation has that many.
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
