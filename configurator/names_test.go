package configurator

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
)

// TestTypesLeadNowhere: below the vendors' directory, a plugin's type names a
// directory of programs. No type leads outside.
func TestTypesLeadNowhere(t *testing.T) {
	for _, engine := range []Engine{EngineAuto, EngineExec} {
		for name, plugin := range map[string]string{
			"ipam":           `{"type":"payload","fake":%s,"ipam":{"type":"../../evil"}}`,
			"type":           `{"type":"../../evil/bin/payload","fake":%s}`,
			"ipam of ours":   `{"type":"bridge","bridge":"names0","fake":%s,"ipam":{"type":"../../evil/bin/payload"}}`,
			"ipam, colon":    `{"type":"payload","fake":%s,"ipam":{"type":"x:../../../evil/bin:y"}}`,
			"of a neighbour": `{"type":"payload","fake":%s},{"type":"payload","ipam":{"type":"../../evil"}}`,
		} {
			t.Run(string(engine)+" "+name, func(t *testing.T) {
				h := newTestHost(t, func(c *Config) { c.Engine = engine })
				h.cfg.VendorDir = filepath.Join(h.dir, "vendor")
				require.NoError(t, fakeplugin.Install(filepath.Join(h.dir, "evil", "bin"), "payload"))
				fake, err := json.Marshal(fakeplugin.Config{Log: h.log})
				require.NoError(t, err)
				list := json.RawMessage(`{"cniVersion":"1.1.0","name":"evil","plugins":[` + strings.ReplaceAll(plugin, "%s", string(fake)) + `]}`)
				require.True(t, json.Valid(list), string(list))

				a := h.alloc("a")
				a.Conflists = []json.RawMessage{list}
				_, err = h.Setup(t.Context(), a)
				require.ErrorContains(t, err, "is not a file name")
				// What cannot have been set up needs no teardown.
				require.NoError(t, h.Teardown(t.Context(), a))
				_, err = h.GCScope(t.Context(), Scope{Name: "s", Conflists: a.Conflists})
				require.ErrorContains(t, err, "is not a file name")
				require.ErrorContains(t, h.ReadyFor(t.Context(), a), "is not a file name")
				require.Empty(t, h.commands(), "nothing was run")
			})
		}
	}
}

// TestOperationsOnMany: an ID that could lead to another file is refused by operations on many
// allocations as well.
func TestOperationsOnMany(t *testing.T) {
	h := newTestHost(t)
	for _, id := range []string{"", "..", "../a", "a/b", strings.Repeat("x", 200)} {
		_, err := h.Restore(t.Context(), id)
		require.ErrorIs(t, err, ErrInvalidAllocation, "%q", id)
		require.ErrorIs(t, h.CheckAll(t.Context(), []string{id})[id], ErrInvalidAllocation, "%q", id)
	}
}
