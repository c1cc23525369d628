package bench

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQuantile(t *testing.T) {
	for _, test := range []struct {
		s    samples
		q    float64
		want float64
	}{
		{samples{7}, 0.5, 7},
		{samples{3, 1, 2}, 0.5, 2},
		{samples{4, 1, 3, 2}, 0.5, 2},
		{samples{4, 1, 3, 2}, 0.95, 4},
		{samples{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}, 0.95, 19},
		{samples{2, 1}, 0, 1},
	} {
		require.Equal(t, test.want, test.s.quantile(test.q), "%v %v", test.s, test.q)
	}
	require.True(t, math.IsNaN(samples(nil).median()))
	unsorted := samples{3, 1, 2}
	unsorted.median()
	require.Equal(t, samples{3, 1, 2}, unsorted, "stays as it was measured")
}

func TestTimedCountsOnlySuccess(t *testing.T) {
	var s samples
	require.NoError(t, timed(&s, func() error { return nil }))
	failure := errors.New("no")
	require.ErrorIs(t, timed(&s, func() error { return failure }), failure)
	require.Len(t, s, 1)
}

func TestTakeTurns(t *testing.T) {
	var log string
	note := func(name string) func(int) error {
		return func(int) error { log += name; return nil }
	}
	require.NoError(t, takeTurns(t.Context(), 4, []turn{{1, note("a")}, {1, note("b")}, {3, note("c")}}))
	require.Equal(t, "abc"+"ba"+"ab"+"abc", log)

	log = ""
	failure := errors.New("no")
	err := takeTurns(t.Context(), 4, []turn{{1, note("a")}, {1, func(int) error { return failure }}})
	require.ErrorIs(t, err, failure)
	require.Equal(t, "a", log, "nothing follows an error")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, takeTurns(ended, 1, []turn{{1, note("x")}}), context.Canceled)
}

func TestAtOnce(t *testing.T) {
	slots := []*slot{{index: 0}, {index: 1}, {index: 2}, {index: 3}, {index: 4}}
	failure := errors.New("no")
	seen := make([]bool, len(slots))
	err := atOnce(2, slots, func(s *slot) error {
		seen[s.index] = true
		if s.index == 1 {
			return failure
		}
		return nil
	})
	require.ErrorIs(t, err, failure)
	require.Equal(t, []bool{true, true, true, true, true}, seen, "an error stops nobody else")
}

func TestPackets(t *testing.T) {
	require.EqualValues(t, 2+10+3+30, packets(`Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       2    0    0    0     0          0         0      100      10    0    0    0     0       0          0
 wire0:900 3 0 0 0 0 0 0 800 30 0 0 0 0 0 0
`))
}
