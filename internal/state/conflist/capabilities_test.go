package conflist

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWithoutCapabilities(t *testing.T) {
	n, err := Parse([]byte(`{"cniVersion":"1.0.0","name":"n","big":9007199254740993,"plugins":[
		{"type":"a","capabilities":{"ips":true,"mac":true}},
		{"type":"b"},
		{"type":"c","capabilities":{"portMappings":true,"bandwidth":true,"ips":false}}]}`))
	require.NoError(t, err)
	less, err := n.WithoutCapabilities("ips", "portMappings")
	require.NoError(t, err)
	require.Equal(t, []string{"bandwidth", "mac"}, less.Capabilities())
	require.Equal(t, []string{"a", "b", "c"}, less.PluginTypes())
	require.Contains(t, string(less.Bytes), "9007199254740993", "what is not a capability stays as it was")
	require.Equal(t, []string{"bandwidth", "ips", "mac", "portMappings"}, n.Capabilities(), "the network itself stays as it was")
}
