package conflist

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReclaimedDirs(t *testing.T) {
	for name, test := range map[string]struct {
		plugins string
		want    []string
	}{
		"not requested": {`{"type": "bridge", "ipam": {"type": "host-local", "dataDir": "/a"}}`, nil},
		"off":           {`{"type": "bridge", "ipam": {"type": "host-local", "dataDir": "/a", "reclaimOnBoot": false}}`, nil},
		"another IPAM":  {`{"type": "bridge", "ipam": {"type": "dhcp", "reclaimOnBoot": true}}`, nil},
		"no IPAM":       {`{"type": "loopback"}`, nil},
		"requested":     {`{"type": "bridge", "ipam": {"type": "host-local", "dataDir": "/a", "reclaimOnBoot": true}}`, []string{"/a"}},
		"the default":   {`{"type": "bridge", "ipam": {"type": "host-local", "reclaimOnBoot": true}}`, []string{""}},
		"two plugins": {`{"type": "bridge", "ipam": {"type": "host-local", "dataDir": "/a", "reclaimOnBoot": true}},
			{"type": "ptp", "ipam": {"type": "host-local", "dataDir": "/b", "reclaimOnBoot": true}},
			{"type": "ptp", "ipam": {"type": "host-local", "dataDir": "/a", "reclaimOnBoot": true}}`, []string{"/a", "/b"}},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := Parse(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "n", "plugins": [%s]}`, test.plugins))
			require.NoError(t, err)
			require.Equal(t, test.want, n.ReclaimedDirs())
			require.Equal(t, test.want, n.ReclaimedDirs())
		})
	}
	n, err := Embedded(EmbeddedOptions{StateDir: "/s"})
	require.NoError(t, err)
	require.Equal(t, []string{"/s/leases"}, n.ReclaimedDirs(), "the embedded network always does")
}
