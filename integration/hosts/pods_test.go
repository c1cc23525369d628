package hosts

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/ociimage"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/process"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

// kubeFlannel is the network that kube-flannel v0.26 writes.
const kubeFlannel = `{"name": "cbr0", "cniVersion": "0.3.1", "plugins": [
  {"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}`

// The cgroups of a host may have no controllers, so CRI sets no limits.
const containerdConfig = `version = 2
root = "/run/lib/containerd"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + ociimage.Name + `"
  disable_cgroup = true
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "/opt/cni/bin"
  conf_dir = "/etc/cni/net.d"
`

// managed makes allocnetd lead containerd to it.
const managed = "manager { enabled = true }\n"

// TestPods runs a pod on each host, in the two ways of docs/cluster.md: through allocnetd, to
// which its manager leads containerd, and with drop-in plugins to which the reference plugin
// flannel delegates.
func TestPods(t *testing.T) {
	if short() {
		skip.LeaveTo(t, "make hosts")
	}
	privhost.RequireRoot(t, "containerd", "ctr", "runc", "busybox")
	for _, way := range []struct {
		name, settings string
		plugins        []string
	}{
		{"manager", managed, []string{"loopback"}},
		{"drop-in", "", []string{"bridge", "host-local", "portmap", "firewall", "loopback", "--daemon"}},
	} {
		t.Run(way.name, func(t *testing.T) {
			c := newCluster(t, overlay{backend: "vxlan", masq: true}) // as kube-flannel has it
			buildPlugins(t)
			build(t, "pod", programs(t), ".")
			image := filepath.Join(t.TempDir(), "image.tar")
			require.NoError(t, os.WriteFile(image, ociimage.Archive(t), 0o600))
			var runtimes []*process.Process
			placed := map[*host]*allocation{}
			for _, h := range c.hosts {
				h.follow(map[string]string{
					"/etc/allocnet/allocnetd.hcl":        way.settings,
					"/etc/cni/net.d/10-flannel.conflist": kubeFlannel,
					"/etc/containerd/config.toml":        containerdConfig,
				})
				h.ownCgroup()
				h.install(way.plugins...)
				h.run("ln", "-s", referenceFlannel(t), "/opt/cni/bin/flannel") // as kube-flannel does
				h.startDaemon()
				runtime := process.New(t, h.inside("containerd", "--log-level", "warn")...)
				runtimes = append(runtimes, runtime)
				h.startRuntime(runtime)
				h.run("ctr", "--namespace", "k8s.io", "images", "import", image)
				placed[h] = h.pod("web")
			}
			requirePeers(t, placed)
			c.killRuntime(t, placed, runtimes[1])
			requirePeers(t, placed)
			c.removePods(t, placed)
		})
	}
}

// startRuntime starts containerd and waits until CRI has a network.
func (h *host) startRuntime(containerd *process.Process) {
	h.t.Helper()
	containerd.Start()
	var out string
	eventually(h.t, "CRI of "+h.name+" has a network", func() (ready bool) {
		var err error
		out, err = h.try(h.bin+"/pod", "ready")
		return err == nil || containerd.HasEnded()
	})
	require.False(h.t, containerd.HasEnded(), out)
}

// pod runs a pod, and a server in its network namespace.
func (h *host) pod(name string) *allocation {
	h.t.Helper()
	address := strings.TrimSpace(h.run(h.bin+"/pod", "run", name, ociimage.Name))
	require.True(h.t, strings.HasPrefix(address, subnetPrefix(h.env()["FLANNEL_SUBNET"])), address)
	namespaces := strings.Fields(h.run("ls", "/run/netns"))
	require.Len(h.t, namespaces, 1)
	a := &allocation{host: h, id: namespaces[0], Address: address}
	a.serve("80")
	return a
}

// killRuntime kills containerd and allocnetd of the second host while the first one's pod asks
// its pod, and starts them again.
func (c *cluster) killRuntime(t *testing.T, placed map[*host]*allocation, containerd *process.Process) {
	h := c.hosts[1]
	l := c.load(placed[c.hosts[0]], placed[h])
	containerd.Kill()
	h.daemon.Kill()
	l.requireAnswers(t, "without containerd and allocnetd")
	h.daemon.Start()
	h.awaitDaemon()
	h.startRuntime(containerd)
	l.requireAnswers(t, "after containerd and allocnetd have started again")
	l.end()
}

// removePods removes the pods and requires that nothing of them is left on the hosts.
func (c *cluster) removePods(t *testing.T, placed map[*host]*allocation) {
	for h, a := range placed {
		h.run(h.bin+"/pod", "remove", "web")
		require.Empty(t, h.run(h.bin+"/allocnet", "ls", "-q"))
		require.Empty(t, h.run("ls", "/run/netns"))
		h.requireClean()
		for _, what := range []string{
			"nft list ruleset", "ip route", "ip neighbour",
			"find /run/allocnet /var/lib/cni/networks", "find /var/lib/cni/flannel -type f",
		} {
			out, _ := h.try("sh", "-c", what)
			require.NotContains(t, out, a.Address, what)
			require.NotContains(t, out, "/flannel/", what)
		}
	}
}
