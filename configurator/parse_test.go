package configurator

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/conflist"
)

// TestParsedOnce: an operation parses a configuration at most once, and not at
// all if the directory still has the same content.
func TestParsedOnce(t *testing.T) {
	for _, e := range []Engine{EngineExec, EngineNative} {
		t.Run(string(e), func(t *testing.T) {
			h := bridgedWithForeign(t, e, "")
			parsed := func(operation func() error) int64 {
				t.Helper()
				before := conflist.Made()
				require.NoError(t, operation())
				return conflist.Made() - before
			}
			first := h.alloc("first")
			require.NoError(t, h.confs.Load())
			a := h.alloc("a")
			setup := func(a Allocation) func() error {
				return func() error { _, err := h.Setup(t.Context(), a); return err }
			}
			require.Zero(t, parsed(setup(first)), "the directory has parsed it")
			require.Zero(t, parsed(func() error { return h.Teardown(t.Context(), first) }))
			require.Zero(t, parsed(setup(a)))
			require.Zero(t, parsed(setup(a)), "CHECK")
			require.Zero(t, parsed(func() error { return h.Check(t.Context(), a) }))
			require.Zero(t, parsed(func() error { _, err := h.Repair(t.Context()); return err }))
			require.Zero(t, parsed(func() error { _, err := h.List(t.Context()); return err }))
			require.Zero(t, parsed(func() error { return h.Teardown(t.Context(), a) }))

			own := h.alloc("own")
			own.Networks = nil
			own.Conflists = []json.RawMessage{json.RawMessage(h.read("net.conflist"))}
			require.EqualValues(t, 1, parsed(setup(own)))
			require.LessOrEqual(t, parsed(setup(own)), int64(2), "the request and the record")
			require.LessOrEqual(t, parsed(func() error { return h.Check(t.Context(), own) }), int64(1))
			require.Zero(t, parsed(func() error { _, err := h.List(t.Context()); return err }))
			require.LessOrEqual(t, parsed(func() error { return h.Teardown(t.Context(), own) }), int64(1))
		})
	}
}
