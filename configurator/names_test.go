package configurator

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
)

// TestTypesLeadNowhere: below the vendors' directory, the type of a plugin names a
// directory whose programs are run. No type leads to another one.
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
				w := newWorld(t, func(c *Config) { c.Engine = engine })
				w.cfg.VendorDir = filepath.Join(w.dir, "vendor")
				require.NoError(t, fakeplugin.Install(filepath.Join(w.dir, "evil", "bin"), "payload"))
				fake, err := json.Marshal(fakeplugin.Config{Log: w.log})
				require.NoError(t, err)
				list := json.RawMessage(`{"cniVersion":"1.1.0","name":"evil","plugins":[` + strings.ReplaceAll(plugin, "%s", string(fake)) + `]}`)
				require.True(t, json.Valid(list), string(list))

				a := w.alloc("a")
				a.Conflists = []json.RawMessage{list}
				_, err = w.Setup(t.Context(), a)
				require.ErrorContains(t, err, "is not a file name")
				// What cannot have been set up is nothing to take down.
				require.NoError(t, w.Teardown(t.Context(), a))
				_, err = w.GCScope(t.Context(), Scope{Name: "s", Conflists: a.Conflists})
				require.ErrorContains(t, err, "is not a file name")
				require.ErrorContains(t, w.ReadyFor(t.Context(), a), "is not a file name")
				require.Empty(t, w.commands(), "nothing was run")
			})
		}
	}
}
