package bench

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBareTakes: both take prepared namespaces again and again, measure each, and leave
// nothing.
func TestBareTakes(t *testing.T) {
	e := testEnvironment(t)
	slots := testSlots(t, e, 2)
	for _, kind := range []string{"bridge", "ptp"} {
		f, err := newBaseline(t.Context(), e.newNetwork("bare", kind, false))
		require.NoError(t, err)
		bare, err := newBareTaker(f)
		require.NoError(t, err)
		calls, err := newBareCalls(bare)
		require.NoError(t, err)
		before := hostState(t)
		for _, taker := range []*bareTaker{bare, calls.bareTaker} {
			var took samples
			for range 2 {
				require.NoError(t, taker.block(t.Context(), slots, &took))
			}
			require.Len(t, took, 4)
			require.Equal(t, before, hostState(t))
			entries, err := os.ReadDir(taker.dir)
			require.NoError(t, err)
			for _, entry := range entries {
				require.Equal(t, "lock", entry.Name())
			}
		}
		require.NoError(t, errors.Join(calls.close(), f.close(t.Context())))
	}
}
