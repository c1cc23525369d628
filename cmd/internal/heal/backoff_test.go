package heal

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestBackoff: the first repairs in a row are made at once, the next ones ever later, up
// to a minute. After a calm time, a row begins again.
func TestBackoff(t *testing.T) {
	b, now := &backoff{}, time.Unix(1000, 0)
	var waits []time.Duration
	for range 12 {
		waits = append(waits, b.due(now).Sub(now))
		now = b.due(now)
		b.note(now, true)
	}
	s := time.Second
	require.Equal(t, []time.Duration{0, 0, 0, s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 60 * s, 60 * s, 60 * s}, waits)

	now = now.Add(2*longestWait + 1)
	require.Equal(t, now, b.due(now))
	require.False(t, b.note(now, true), "a new row")
	require.Equal(t, now, b.due(now))
	require.False(t, b.note(now, true))
	require.True(t, b.note(now, true))
}

// TestBackoffOfIdleComparisons: comparisons that find nothing are spaced, but do not
// delay a repair for long.
func TestBackoffOfIdleComparisons(t *testing.T) {
	b, now := &backoff{}, time.Unix(1000, 0)
	for range 100 {
		require.False(t, b.note(now, false))
		require.Equal(t, idleWait, b.due(now).Sub(now))
		now = b.due(now)
	}
	require.False(t, b.note(now, true))
	require.Equal(t, now, b.due(now))
}
