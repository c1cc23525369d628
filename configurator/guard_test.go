package configurator

import (
	"fmt"
	"os/exec"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
)

// heldGuard returns the number that the kernel gave to the held guard of bridges, 0 if there is
// none. A table that is made again gets another one.
func heldGuard(t *testing.T) (handle int) {
	t.Helper()
	out, err := exec.Command("nft", "-a", "list", "table", "bridge", names.HeldGuardTable).Output()
	if err != nil {
		return 0
	}
	// Not as JSON: nft 1.0.6 uses freed memory when it shows the flags of a table with an owner.
	_, err = fmt.Sscanf(string(out), "table bridge "+names.HeldGuardTable+" { # handle %d", &handle)
	require.NoError(t, err, "%s", out)
	return handle
}

// TestReplacedConfigurator: a Configurator that is replaced is collected, with its sockets. The
// guard that it holds stays, without a moment in which it is missing, also if the new one has
// done nothing yet.
func TestReplacedConfigurator(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0")
	require.NoError(t, h.Close())
	a := h.alloc("a")
	cfg := h.cfg
	cfg.Network = "" // Networks contains it
	replace := func(closed bool) weak.Pointer[Configurator] {
		c, err := New(cfg)
		require.NoError(t, err)
		_, err = c.Setup(t.Context(), a)
		require.NoError(t, err)
		_, err = c.Recover(t.Context())
		require.NoError(t, err)
		_, err = c.Repair(t.Context())
		require.NoError(t, err)
		previous := h.Configurator
		h.Configurator = h.restarted()
		require.NoError(t, previous.Close())
		if closed {
			require.NoError(t, c.Close())
		}
		return weak.Make(c)
	}
	before := replace(false)
	held := heldGuard(t)
	require.NotZero(t, held)
	require.Eventually(t, func() bool { runtime.GC(); return before.Value() == nil }, 10*time.Second, 10*time.Millisecond)
	require.Equal(t, held, heldGuard(t), "after the collection")
	replace(true)
	require.Equal(t, held, heldGuard(t), "after Close")
	a.Wait = true
	require.NoError(t, h.Teardown(t.Context(), a))
	require.NoError(t, h.Close())
}
