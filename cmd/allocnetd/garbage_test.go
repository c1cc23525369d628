package main

import (
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTuneGarbage: GOGC, which Go's runtime reads, takes precedence.
func TestTuneGarbage(t *testing.T) {
	const before = 50
	defer debug.SetGCPercent(debug.SetGCPercent(before))
	tuneGarbage([]string{"PATH=/bin", "GOGC=50"})
	require.Equal(t, before, debug.SetGCPercent(before))
	tuneGarbage([]string{"PATH=/bin"})
	require.Equal(t, garbagePercent, debug.SetGCPercent(before))
}
