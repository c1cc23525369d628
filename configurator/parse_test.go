package configurator

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/conflist"
)

// TestParsedOnce: an operation parses a configuration once at most, and not at all where
// the directory still has it.
func TestParsedOnce(t *testing.T) {
	for _, e := range []Engine{EngineExec, EngineNative} {
		t.Run(string(e), func(t *testing.T) {
			w := bridgedWithForeign(t, e, "")
			parsed := func(operation func() error) int64 {
				t.Helper()
				before := conflist.Made()
				require.NoError(t, operation())
				return conflist.Made() - before
			}
			first := w.alloc("first")
			require.NoError(t, w.confs.Load())
			a := w.alloc("a")
			setup := func(a Allocation) func() error {
				return func() error { _, err := w.Setup(t.Context(), a); return err }
			}
			require.Zero(t, parsed(setup(first)), "the directory has parsed it")
			require.Zero(t, parsed(func() error { return w.Teardown(t.Context(), first) }))
			require.Zero(t, parsed(setup(a)))
			require.Zero(t, parsed(setup(a)), "CHECK")
			require.Zero(t, parsed(func() error { return w.Check(t.Context(), a) }))
			require.Zero(t, parsed(func() error { _, err := w.Repair(t.Context()); return err }))
			require.Zero(t, parsed(func() error { _, err := w.List(t.Context()); return err }))
			require.Zero(t, parsed(func() error { return w.Teardown(t.Context(), a) }))

			own := w.alloc("own")
			own.Networks = nil
			own.Conflists = []json.RawMessage{json.RawMessage(w.read("net.conflist"))}
			require.EqualValues(t, 1, parsed(setup(own)))
			require.LessOrEqual(t, parsed(setup(own)), int64(2), "the request and the record")
			require.LessOrEqual(t, parsed(func() error { return w.Check(t.Context(), own) }), int64(1))
			require.Zero(t, parsed(func() error { _, err := w.List(t.Context()); return err }))
			require.LessOrEqual(t, parsed(func() error { return w.Teardown(t.Context(), own) }), int64(1))
		})
	}
}
