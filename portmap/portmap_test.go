package portmap_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/portmap"
)

func TestLookup(t *testing.T) {
	mappings := []portmap.Mapping{
		{Label: "http", HostPort: 80, Protocol: "tcp"},
		{Label: "http", HostPort: 80, Protocol: "udp"},
		{HostPort: 90, Protocol: "tcp"},
		{HostPort: 91, Protocol: "tcp"},
		{Label: "dns", HostPort: 53, Protocol: "udp"},
	}
	tests := []struct {
		name, label string
		want        portmap.Mapping
		found       bool
	}{
		{"first of several", "http", mappings[0], true},
		{"last", "dns", mappings[4], true},
		{"first without label", "", mappings[2], true},
		{"absent", "https", portmap.Mapping{}, false},
		{"case matters", "HTTP", portmap.Mapping{}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, found := portmap.Lookup(mappings, tt.label)
			require.Equal(t, tt.found, found)
			require.Equal(t, tt.want, got)
		})
	}
	_, found := portmap.Lookup(nil, "")
	require.False(t, found)
}

// The JSON of a mapping is read by CNI plugins, that of a port and a network
// is written by people and schedulers.
func TestJSON(t *testing.T) {
	tests := []struct {
		name  string
		value any
		want  string
	}{
		{
			"mapping", portmap.Mapping{Label: "http", HostPort: 8080, ContainerPort: 80, Protocol: "tcp", HostIP: "10.0.0.1"},
			`{"label":"http","hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":"10.0.0.1"}`,
		},
		{
			"mapping on all addresses", portmap.Mapping{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"},
			`{"hostPort":8080,"containerPort":80,"protocol":"tcp"}`,
		},
		{
			"port", portmap.Port{Label: "http", Value: 8080, To: 80, Range: 2, HostIP: "::1", Protocols: []string{"tcp"}},
			`{"label":"http","value":8080,"to":80,"range":2,"hostIP":"::1","protocols":["tcp"]}`,
		},
		{"smallest port", portmap.Port{Value: 8080}, `{"value":8080}`},
		{
			"network", portmap.Network{DynamicPorts: []portmap.Port{{Value: 1}}, ReservedPorts: []portmap.Port{{Value: 2}}},
			`{"dynamicPorts":[{"value":1}],"reservedPorts":[{"value":2}]}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := json.Marshal(tt.value)
			require.NoError(t, err)
			require.JSONEq(t, tt.want, string(got))
		})
	}
}
