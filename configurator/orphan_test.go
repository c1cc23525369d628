package configurator

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
)

// TestPluginThatDoesNotEnd: while a plugin may still run, nothing is reported
// as removed, although cleanup knows everything that such a plugin can leave.
func TestPluginThatDoesNotEnd(t *testing.T) {
	canceled := func(t *testing.T) context.Context {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return ctx
	}
	for name, c := range map[string]struct {
		command string
		phase   record.Phase
		remove  func(*testing.T, *testHost, Allocation) error
	}{
		"after a crash in ADD": {"ADD", record.Adding, func(t *testing.T, h *testHost, a Allocation) error {
			return h.Teardown(t.Context(), a)
		}},
		"by a DEL at its deadline": {"DEL", record.Ready, func(t *testing.T, h *testHost, a Allocation) error {
			h.spy().del = func(context.Context, *engine.Request) error { return context.DeadlineExceeded }
			return h.Teardown(t.Context(), a)
		}},
		"for want of time": {"ADD", record.Adding, func(t *testing.T, h *testHost, a Allocation) error {
			r, err := h.store.Get(a.ID)
			require.NoError(t, err)
			return h.removeNetworks(canceled(t), h.planOf(r))
		}},
		"by force": {"ADD", record.Adding, func(t *testing.T, h *testHost, a Allocation) error {
			_, err := h.Force(t.Context(), a)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			h.bridged("net", adds())
			a := h.alloc("a")
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			h.setPhase("a", c.phase)
			pid, release := fakeplugin.Undying(t, "CNI_COMMAND="+c.command, "CNI_CONTAINERID=a", "CNI_IFNAME=eth0", "CNI_PATH="+h.processTag)

			err = c.remove(t, h, a)
			require.ErrorIs(t, err, ErrIncomplete)
			require.ErrorIs(t, err, pluginexec.ErrAlive)
			require.ErrorContains(t, err, fmt.Sprintf("%d (sleep)", pid))
			_, err = h.Get(t.Context(), "a")
			require.NoError(t, err, "the record is kept")

			release()
			require.NoError(t, h.Teardown(t.Context(), a))
			h.requireNoRecords()
		})
	}
}
