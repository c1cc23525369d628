package redact

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTexts(t *testing.T) {
	for _, tt := range []struct{ text, objects, configurations string }{
		{"plain", "plain", "plain"},
		{`a {"b":1} c`, "a {...} c", `a {"b":1} c`},
		{`netplugin: {"cniVersion":"1.0.0","password":"x","a":{}}: unknown`, "netplugin: {...}: unknown", "netplugin: {...}: unknown"},
		{`quoted "{\"cniVersion\":\"1.0.0\"}" twice {}.`, `quoted "{...}.`, `quoted "{...}.`},
		{`cut off: {"cniVersion":"1.0.0","password":"x`, "cut off: {...}", "cut off: {...}"},
		{"turned } cniVersion {secret", "turned } cniVersion {...}", "turned } cniVersion {...}"},
		{"a cniVersion alone", "a cniVersion alone", "a cniVersion alone"},
	} {
		require.Equal(t, tt.objects, Objects(tt.text))
		require.Equal(t, tt.configurations, Configurations(tt.text))
	}
}
