package cleanup

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCovers(t *testing.T) {
	for config, want := range map[string]bool{
		`{"plugins":[{"type":"loopback"},{"type":"bridge","ipam":{"type":"host-local"}},{"type":"firewall"},{"type":"portmap"},{"type":"bandwidth"},{"type":"tuning"},{"type":"routes"}]}`: true,
		`{"plugins":[{"type":"ptp","ipam":{"type":"static"}}]}`:                     true,
		`{"plugins":[{"type":"bridge","ipam":{"type":"dhcp"}}]}`:                    false,
		`{"plugins":[{"type":"bridge"},{"type":"firewall","backend":"firewalld"}]}`: true,
		`{"plugins":[{"type":"bridge"},{"type":"cilium-cni"}]}`:                     false,
		`{"plugins":[{"type":"host-device"}]}`:                                      false,
		`{"plugins":[]}`:                                                            false,
		`{`:                                                                         false,
	} {
		require.Equal(t, want, Covers(Target{Attachments: []Attachment{{Config: []byte(config)}}}), config)
	}
	require.True(t, Covers(Target{ID: "x"}), "nothing was attached")
	policed := Target{Attachments: []Attachment{{Config: []byte(`{"plugins":[{"type":"ptp"},{"type":"policy"}]}`)}}}
	require.False(t, Covers(policed))
	require.True(t, Covers(policed, "policy"))
}
