package main

import (
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
)

// TestTraffic sends to one of two allocations. Both engines have the same counters, and
// so has an allocation with a prepared network namespace.
func TestTraffic(t *testing.T) {
	for name, settings := range map[string]string{
		"native": `engine = "native"`,
		"exec":   `engine = "exec"`,
		"pool":   `pool "net" { size = 2 }`,
	} {
		t.Run(name, func(t *testing.T) {
			privhost.Require(t, "iptables")
			w := newWorkspace(t)
			w.write("conf/net.conflist", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "bridge": "traffic0", "isGateway": true,
				"ipam": {"type": "host-local", "dataDir": %q, "subnet": "10.78.0.0/24"}}]}`, w.path("leases")))
			w.configure(settings)
			p := w.start("--plugin-dirs", filepath.Dir(refplugins.Path(t, "bridge")))
			defer deleteLink(t, "traffic0")
			var target *configurator.Status
			for _, id := range []string{"quiet", "target"} {
				var err error
				target, err = w.client().Setup(background(), configurator.Allocation{ID: id, OwnNetns: true})
				require.NoError(t, err)
			}
			c, err := net.Dial("udp", net.JoinHostPort(target.Address, "9"))
			require.NoError(t, err)
			defer c.Close()
			const sent = 5000 // at least: a write can fail with the answer to another one
			for range 10 {
				_, _ = c.Write(make([]byte, sent/5))
			}
			var got *client.HostTraffic
			require.Eventually(t, func() bool {
				got, err = w.client().HostTraffic(background())
				require.NoError(t, err)
				require.Empty(t, got.Problems)
				require.Len(t, got.Allocations, 2)
				require.Len(t, got.Allocations[1].Interfaces, 1)
				return got.Allocations[1].Interfaces[0].Received.Bytes >= sent
			}, time.Minute, time.Millisecond)
			require.Equal(t, "target", got.Allocations[1].ID)
			require.Equal(t, "net eth0", got.Allocations[1].Interfaces[0].Network+" "+got.Allocations[1].Interfaces[0].Interface)
			require.GreaterOrEqual(t, got.Allocations[1].Interfaces[0].Received.Packets, uint64(5))
			require.Less(t, got.Allocations[0].Interfaces[0].Received.Bytes, uint64(sent))
			for _, id := range []string{"quiet", "target"} {
				require.NoError(t, w.client().Teardown(background(), configurator.Allocation{ID: id, OwnNetns: true, Wait: true}))
			}
			p.stop()
		})
	}
}

func deleteLink(t *testing.T, name string) {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	require.NoError(t, err)
}
