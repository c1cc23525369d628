package sdk

import (
	"context"
	"encoding/json"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"
)

// host is a plugin whose result contains the host in runtimeConfig.
type host struct {
	fake
	name string
}

func (h *host) Add(context.Context, *CmdArgs) (*types100.Result, error) {
	return &types100.Result{Interfaces: []*types100.Interface{{Name: h.name}}}, nil
}

// late is a host plugin that gets its runtimeConfig later.
type late struct{ host }

func (l *late) WithRuntime(runtime map[string]json.RawMessage) (Plugin, error) {
	with := *l
	return &with, DecodeRuntime(runtime["name"], &with.name)
}

// TestRuntimeOfAKeptPlugin: a cached plugin is parsed once, and no allocation
// gets the runtimeConfig of another one.
func TestRuntimeOfAKeptPlugin(t *testing.T) {
	for name, reads := range map[string]int{"late": 1, "early": 4} {
		t.Run(name, func(t *testing.T) {
			e, _, b := newExec(t)
			b.out = `{"cniVersion":"1.0.0"}`
			var read int
			conf := args(plain).Conf
			e.Plugins = map[string]Factory{name: func(conf []byte) (Plugin, error) {
				var c struct {
					RuntimeConfig struct{ Name string }
				}
				read++
				h := host{}
				err := json.Unmarshal(conf, &c)
				h.name = c.RuntimeConfig.Name
				if name == "late" {
					return &late{h}, err
				}
				return &h, err
			}}
			for _, want := range []string{"a", "b", "", "c"} {
				one := &CmdArgs{Conf: conf}
				if want != "" {
					one.Runtime = map[string]json.RawMessage{"name": json.RawMessage(`"` + want + `"`)}
				}
				result, err := e.Run(t.Context(), name, "ADD", one)
				require.NoError(t, err)
				require.Equal(t, want, result.Interfaces[0].Name)
			}
			require.Equal(t, reads, read)
		})
	}
}

// TestRuntimeOfABinary: a binary gets its whole configuration.
func TestRuntimeOfABinary(t *testing.T) {
	one := args(plain)
	one.Runtime = map[string]json.RawMessage{"name": json.RawMessage(`"a"`)}
	conf, err := one.stdin()
	require.NoError(t, err)
	require.JSONEq(t, `{"cniVersion":"1.0.0","runtimeConfig":{"name":"a"}}`, string(conf))
}
