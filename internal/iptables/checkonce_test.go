package iptables

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCheckOnce: checks with the same context do not repeat what one of them
// found complete, but search again for what was missing. A separate check reads
// everything.
func TestCheckOnce(t *testing.T) {
	eachVariant(t, func(h *host) {
		t := h.tb
		o, once := h.acceptRule(), CheckOnce(context.Background())
		require.ErrorIs(t, o.Check(once, both, "CNI-ADMIN"), ErrMissing)
		h.ensure(o, "CNI-ADMIN")
		require.NoError(t, o.Check(once, both, "CNI-ADMIN"))
		h.clear()
		require.NoError(t, o.Check(once, both, "CNI-ADMIN"))
		require.ErrorIs(t, o.Check(once, both, "OTHER"), ErrMissing, "of another admin chain nothing is known")
		require.ErrorIs(t, o.Check(context.Background(), both, "CNI-ADMIN"), ErrMissing)
		require.ErrorIs(t, o.Check(CheckOnce(once), both, "CNI-ADMIN"), ErrMissing, "each begins anew")
	})
}

func TestCheckOnceForEachFamily(t *testing.T) {
	eachVariant(t, func(h *host) {
		t := h.tb
		o, once := h.acceptRule(), CheckOnce(context.Background())
		require.NoError(t, o.Ensure(once, []Family{IPv4}))
		require.NoError(t, o.Check(once, []Family{IPv4}))
		require.ErrorIs(t, o.Check(once, both), ErrMissing)
	})
}
