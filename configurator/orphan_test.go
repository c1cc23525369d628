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

// TestPluginThatDoesNotEnd: beside one that may go on at any time nothing is
// reported as removed, though cleanup knows all that its like can leave.
func TestPluginThatDoesNotEnd(t *testing.T) {
	canceled := func(t *testing.T) context.Context {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return ctx
	}
	for name, c := range map[string]struct {
		command string
		phase   record.Phase
		remove  func(*testing.T, *world, Allocation) error
	}{
		"after a crash in ADD": {"ADD", record.Adding, func(t *testing.T, w *world, a Allocation) error {
			return w.Teardown(t.Context(), a)
		}},
		"by a DEL at its deadline": {"DEL", record.Ready, func(t *testing.T, w *world, a Allocation) error {
			w.spy().del = func(context.Context, *engine.Request) error { return context.DeadlineExceeded }
			return w.Teardown(t.Context(), a)
		}},
		"for want of time": {"ADD", record.Adding, func(t *testing.T, w *world, a Allocation) error {
			r, err := w.store.Get(a.ID)
			require.NoError(t, err)
			return w.detach(canceled(t), w.planOf(r))
		}},
		"by force": {"ADD", record.Adding, func(t *testing.T, w *world, a Allocation) error {
			_, err := w.Force(t.Context(), a)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.bridged("net", adds())
			a := w.alloc("a")
			_, err := w.Setup(t.Context(), a)
			require.NoError(t, err)
			w.setPhase("a", c.phase)
			pid, release := fakeplugin.Undying(t, "CNI_COMMAND="+c.command, "CNI_CONTAINERID=a", "CNI_PATH="+w.processTag)

			err = c.remove(t, w, a)
			require.ErrorIs(t, err, ErrIncomplete)
			require.ErrorIs(t, err, pluginexec.ErrAlive)
			require.ErrorContains(t, err, fmt.Sprintf("%d (sleep)", pid))
			_, err = w.Get(t.Context(), "a")
			require.NoError(t, err, "the record is kept")

			release()
			require.NoError(t, w.Teardown(t.Context(), a))
			w.requireNoRecords()
		})
	}
}
