package configurator

import (
	"os"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
)

// TestExhaustedBinary: host-local says so in its text alone.
func TestExhaustedBinary(t *testing.T) {
	w := newWorld(t)
	text := "failed to allocate for range 0: no IP addresses available in range set: 10.0.0.1-10.0.0.2"
	w.network("net", "1.0.0", map[string]fakeplugin.Behaviour{"ADD": {Code: 999, Msg: text}})
	_, err := w.Setup(t.Context(), w.alloc("a"))
	require.ErrorIs(t, err, ErrExhausted)
	var said *types.Error
	require.ErrorAs(t, err, &said)
	require.Equal(t, text, said.Msg)
}

func TestStateDirError(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(w.cfg.StateDir, 0o777))
	b := w.alloc("b")
	_, setupErr := w.Setup(t.Context(), b)
	_, auditErr := w.Audit(t.Context(), a)
	for name, err := range map[string]error{
		"Setup": setupErr, "Check": w.Check(t.Context(), a), "Teardown": w.Teardown(t.Context(), a), "Audit": auditErr, "Ready": w.Ready(t.Context()),
	} {
		require.ErrorIs(t, err, ErrStateDir, name)
		var fault *StateDirError
		require.ErrorAs(t, err, &fault, name)
		require.Equal(t, w.cfg.StateDir, fault.Dir, name)
		require.ErrorContains(t, err, "can be written by others", name)
	}
	require.NoError(t, os.Chmod(w.cfg.StateDir, 0o700))
	require.NoError(t, w.Teardown(t.Context(), a))
	_, err = w.Get(t.Context(), "a")
	require.NotErrorIs(t, err, ErrStateDir, "that there is no record is no fault")
}

// TestClose gives back the sockets; what comes after it opens them again.
func TestClose(t *testing.T) {
	w, _ := nativeWorld(t, "1.0.0")
	require.NoError(t, w.Close(), "nothing is open")
	open := func() int {
		files, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(files)
	}
	a := w.alloc("a")
	before := 0 // until what a process opens once is open
	for range 3 {
		_, err := w.Setup(t.Context(), a)
		require.NoError(t, err)
		require.NoError(t, w.Teardown(t.Context(), Allocation{ID: "a"}))
		used := open()
		require.NoError(t, w.Close())
		require.Less(t, open(), used)
		if before > 0 {
			require.LessOrEqual(t, open(), before)
		}
		require.NoError(t, w.Close(), "again")
		before = open()
	}
}
