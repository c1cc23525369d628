package accept

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLookOnce: what one check found whole, those of the same context take as that;
// what was missing is looked for again. A check by itself sees all.
func TestLookOnce(t *testing.T) {
	eachVariant(t, func(h *host) {
		t := h.tb
		o, once := h.opener(), LookOnce(context.Background())
		require.ErrorIs(t, o.Check(once, both, "CNI-ADMIN"), ErrShut)
		h.ensure(o, "CNI-ADMIN")
		require.NoError(t, o.Check(once, both, "CNI-ADMIN"))
		h.clear()
		require.NoError(t, o.Check(once, both, "CNI-ADMIN"))
		require.ErrorIs(t, o.Check(once, both, "OTHER"), ErrShut, "of another admin chain nothing is known")
		require.ErrorIs(t, o.Check(context.Background(), both, "CNI-ADMIN"), ErrShut)
		require.ErrorIs(t, o.Check(LookOnce(once), both, "CNI-ADMIN"), ErrShut, "each begins anew")
	})
}

func TestLookOnceForEachFamily(t *testing.T) {
	eachVariant(t, func(h *host) {
		t := h.tb
		o, once := h.opener(), LookOnce(context.Background())
		require.NoError(t, o.Ensure(once, []Family{IPv4}))
		require.NoError(t, o.Check(once, []Family{IPv4}))
		require.ErrorIs(t, o.Check(once, both), ErrShut)
	})
}
