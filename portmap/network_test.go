package portmap_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/portmap"
)

func networks() []portmap.Network {
	return []portmap.Network{
		{
			ReservedPorts: []portmap.Port{{Label: "ssh", Value: 22, HostIP: "10.0.0.1"}},
			DynamicPorts: []portmap.Port{
				{Label: "http", Value: 25000, To: 80, HostIP: "10.0.0.1"},
				{Label: "rtp", Value: 26000, To: -1, Range: 4, HostIP: "10.0.0.1", Protocols: []string{"udp"}},
			},
		},
		{},
		{DynamicPorts: []portmap.Port{{Label: "db", Value: 24000, HostIP: "nonsense"}}},
	}
}

func legacyPorts() []portmap.Port {
	return []portmap.Port{
		{Label: "http", Value: 25000, To: 80},
		{Label: "rtp", Value: 26000, To: -1, Range: 4, Protocols: []string{"udp"}},
		{Label: "ssh", Value: 22},
		{Label: "db", Value: 24000},
	}
}

func TestFromNetworks(t *testing.T) {
	given := networks()
	require.Equal(t, legacyPorts(), portmap.FromNetworks(given))
	require.Equal(t, networks(), given, "the networks of the caller are left alone")
	require.Empty(t, portmap.FromNetworks(nil))
	require.Empty(t, portmap.FromNetworks([]portmap.Network{{}, {}}))
}

// The two lists may be halves of one array: joining them must not write to it.
func TestFromNetworksSharedArray(t *testing.T) {
	array := []portmap.Port{{Label: "a"}, {Label: "b"}, {Label: "c"}}
	ports := portmap.FromNetworks([]portmap.Network{{DynamicPorts: array[:1], ReservedPorts: array[2:]}})
	require.Equal(t, []portmap.Port{{Label: "a"}, {Label: "c"}}, ports)
	require.Equal(t, "b", array[1].Label)
}

func TestSelect(t *testing.T) {
	own := []portmap.Port{{Label: "own", Value: 1, HostIP: "10.0.0.9"}}
	tests := []struct {
		name     string
		ports    []portmap.Port
		networks []portmap.Network
		want     []portmap.Port
	}{
		{"the list is preferred", own, networks(), own},
		{"the list alone", own, nil, own},
		{"the legacy form alone", nil, networks(), legacyPorts()},
		{"an empty list is none", []portmap.Port{}, networks(), legacyPorts()},
		{"neither", nil, nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.want, portmap.Select(tt.ports, tt.networks))
		})
	}
}
