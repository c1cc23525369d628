package configurator

import (
	"os"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
)

// TestExhaustedBinary: host-local reports exhaustion only in its error text.
func TestExhaustedBinary(t *testing.T) {
	h := newTestHost(t)
	text := "failed to allocate for range 0: no IP addresses available in range set: 10.0.0.1-10.0.0.2"
	h.network("net", "1.0.0", map[string]fakeplugin.Behaviour{"ADD": {Code: 999, Msg: text}})
	_, err := h.Setup(t.Context(), h.alloc("a"))
	require.ErrorIs(t, err, ErrExhausted)
	var said *types.Error
	require.ErrorAs(t, err, &said)
	require.Equal(t, text, said.Msg)
}

func TestStateDirError(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(h.cfg.StateDir, 0o777))
	b := h.alloc("b")
	_, setupErr := h.Setup(t.Context(), b)
	_, auditErr := h.Audit(t.Context(), a)
	for name, err := range map[string]error{
		"Setup": setupErr, "Check": h.Check(t.Context(), a), "Teardown": h.Teardown(t.Context(), a), "Audit": auditErr, "Ready": h.Ready(t.Context()),
	} {
		require.ErrorIs(t, err, ErrStateDir, name)
		var fault *StateDirError
		require.ErrorAs(t, err, &fault, name)
		require.Equal(t, h.cfg.StateDir, fault.Dir, name)
		require.ErrorContains(t, err, "can be written by others", name)
	}
	require.NoError(t, os.Chmod(h.cfg.StateDir, 0o700))
	require.NoError(t, h.Teardown(t.Context(), a))
	_, err = h.Get(t.Context(), "a")
	require.NotErrorIs(t, err, ErrStateDir, "that there is no record is no fault")
}

// TestClose: Close closes the sockets, and later operations open them again.
func TestClose(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0")
	require.NoError(t, h.Close(), "nothing is open")
	open := func() int {
		files, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(files)
	}
	a := h.alloc("a")
	before := 0 // until everything is open that a process opens once
	for range 3 {
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a"}))
		used := open()
		require.NoError(t, h.Close())
		require.Less(t, open(), used)
		if before > 0 {
			require.LessOrEqual(t, open(), before)
		}
		require.NoError(t, h.Close(), "again")
		before = open()
	}
}
