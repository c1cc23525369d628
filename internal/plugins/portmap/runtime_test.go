package portmap

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// TestWithRuntime: mappings that are passed later are validated as well, and do
// not change the shared plugin.
func TestWithRuntime(t *testing.T) {
	for _, mappings := range []string{
		`[{"hostPort":8080,"containerPort":80,"protocol":"TCP","hostIP":"::ffff:192.0.2.1"}]`,
		`[{"hostPort":0}]`, `[]`, `null`, `[{"hostPort":"x"}]`, ``,
	} {
		for _, rest := range []string{`"snat":false`, `"markMasqBit":40`} {
			runtime := map[string]json.RawMessage{}
			all := "{" + rest
			if mappings != "" {
				runtime["portMappings"] = json.RawMessage(mappings)
				all += `,"runtimeConfig":{"portMappings":` + mappings + `}`
			}
			want, wantErr := New([]byte(all + "}"))
			bare, err := New([]byte("{" + rest + "}"))
			require.NoError(t, err)
			before := *bare.(*portmap)
			got, err := bare.(sdk.RuntimeConfigured).WithRuntime(runtime)
			require.Equal(t, fmt.Sprint(wantErr), fmt.Sprint(err))
			require.Equal(t, before, *bare.(*portmap))
			wanted, given := want.(*portmap), got.(*portmap)
			require.Equal(t, wanted.mappings, given.mappings, all)
			require.Equal(t, fmt.Sprint(wanted.invalid), fmt.Sprint(given.invalid), all)
			require.Equal(t, wanted.snat, given.snat)
		}
	}
}
