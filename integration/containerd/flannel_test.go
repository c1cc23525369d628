package containerd

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/allocnet/allocnet/internal/testing/process"
)

// kubeFlannel is the network that kube-flannel v0.26 writes.
const kubeFlannel = `{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "flannel",
      "delegate": {
        "hairpinMode": true,
        "isDefaultGateway": true
      }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    }
  ]
}
`

// The subnet is one of those whose connections the tests compare.
const flannelSubnet = "10.97.0.1/24"

// flannelHost writes what kube-flannel and flanneld write on a host.
func flannelHost(t testing.TB) {
	t.Helper()
	const list, dir = "/etc/cni/net.d/10-flannel.conflist", "/run/flannel"
	require.NoError(t, os.WriteFile(list, []byte(kubeFlannel), 0o600))
	t.Cleanup(func() { require.NoError(t, os.Remove(list)) })
	require.NoError(t, os.MkdirAll(dir, 0o700))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	env := fmt.Sprintf("FLANNEL_NETWORK=10.97.0.0/16\nFLANNEL_SUBNET=%s\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n", flannelSubnet)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "subnet.env"), []byte(env), 0o600))
	t.Cleanup(func() {
		bridge, err := netlink.LinkByName("cni0")
		require.NoError(t, err)
		require.NoError(t, netlink.LinkDel(bridge))
	})
}

// TestPodsFlannel runs pods in kube-flannel's network: through allocnetd, to which the
// manager's configuration leads containerd, and with the drop-in plugins.
func TestPodsFlannel(t *testing.T) {
	requireHost(t)
	for _, s := range []setup{
		{"manager", func(t testing.TB) (string, *process.Process) {
			flannelHost(t)
			return beginManaged(t)
		}},
		{"drop-in", func(t testing.TB) (string, *process.Process) {
			flannelHost(t)
			return pluginDir(t, "--daemon"), newDaemon(t, "")
		}},
	} {
		t.Run(s.name, func(t *testing.T) {
			plugins, _ := s.begin(t)
			h := newHost(t, plugins)
			k := newKubelet(h)
			list := pods(4)
			k.all(list, k.run)
			k.all(list, k.serve)
			for _, p := range list {
				k.requireServed(p)
				status, err := k.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: p.id})
				require.NoError(t, err)
				address := netip.MustParseAddr(status.Status.Network.Ip)
				require.True(t, netip.MustParsePrefix(flannelSubnet).Contains(address), address)
			}
			k.all(list, k.stop)
			k.removeAll()
			for _, left := range []string{"/var/lib/cni/flannel/*", "/var/lib/cni/networks/cbr0/10.*"} {
				files, err := filepath.Glob(left)
				require.NoError(t, err)
				require.Empty(t, files)
			}
		})
	}
}
