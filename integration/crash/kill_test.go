package crash

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/faultinject"
)

// TestKilledAtEveryPoint kills the process of each operation before everything that
// it changes, and after the last of it, before it has said so. Then what is left is
// removed, in one way or another, and nothing else is touched.
func TestKilledAtEveryPoint(t *testing.T) {
	for _, k := range campaign() {
		t.Run(k.cell.String(), func(t *testing.T) {
			h := newHost(t, k.cell)
			for _, o := range k.operations {
				t.Run(o.name, func(t *testing.T) { h.in(t).killEverywhere(&o, k.recoveries) })
			}
		})
	}
}

// killEverywhere goes on until an operation ends before the point at which it was to
// be killed, and logs all points.
func (h *host) killEverywhere(o *operation, recoveries [][]recovery) {
	h.t.Helper()
	for at := 1; !h.t.Failed(); at++ {
		for _, r := range recoveries[at%len(recoveries)] {
			points, killed := h.killAt(o, at, r)
			if !killed {
				h.t.Logf("%d points:", len(points))
				for _, p := range points {
					h.t.Log(p)
				}
				return
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

// campaign is which operations are killed where.
type campaignPart struct {
	cell       cell
	operations []operation
	recoveries [][]recovery // those of one point after those of another
}

func campaign() []campaignPart {
	two := [][]recovery{recoveries[:2]}
	turns := [][]recovery{recoveries[:1], recoveries[1:2], recoveries[2:3], recoveries[3:]}
	_ = slices.Values(turns)
	return []campaignPart{
		{cell{engine: "native", main: "bridge"}, operations, two},
		{cell{engine: "native", main: "ptp"}, operations, turns},
		{cell{engine: "native", main: "bridge", mixed: true}, operations, turns},
		{cell{engine: "native", main: "ptp", backend: "nftables"}, operations, turns},
		{cell{engine: "native", main: "bridge", backend: "iptables"}, operations, turns},
		{cell{engine: "exec", main: "bridge", backend: "iptables"}, operations, turns},
	}
}
