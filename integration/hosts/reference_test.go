package hosts

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// referenceConf is the configuration of the plugin flannel for one attachment. It has the
// newest version that the reference plugin of CNI supports.
const referenceConf = `{"cniVersion": "0.4.0", "name": "cbr0", "type": "flannel", "delegate": {"isDefaultGateway": true}}`

// referenceFlannel returns the path of the reference plugin.
func referenceFlannel(t *testing.T) string {
	t.Helper()
	reference := filepath.Join(os.Getenv("CNI_PATH"), "flannel")
	if _, err := os.Stat(reference); err != nil {
		reference, err = filepath.Abs("../../bin/cni/flannel")
		require.NoError(t, err)
		require.FileExists(t, reference, "make plugins builds it")
	}
	return reference
}

// dropIns returns two directories of plugins with allocnet's in place of the reference ones:
// one has allocnet's flannel too, the other the reference one.
func dropIns(t *testing.T) (own, mixed string) {
	t.Helper()
	reference := referenceFlannel(t)
	build(t, "../../cmd", programs(t), "./allocnet-plugins")
	own, mixed = t.TempDir(), t.TempDir()
	for _, dir := range []string{own, mixed} {
		for _, plugin := range []string{"flannel", "bridge", "host-local"} {
			require.NoError(t, os.Symlink(filepath.Join(programs(t), "allocnet-plugins"), filepath.Join(dir, plugin)))
		}
	}
	require.NoError(t, os.Remove(filepath.Join(mixed, "flannel")))
	require.NoError(t, os.Symlink(reference, filepath.Join(mixed, "flannel")))
	return own, mixed
}

// plugin runs the plugin flannel of a directory in the host for the container one.
func (h *host) plugin(dir, command string) string {
	h.t.Helper()
	line := h.inside("env", "CNI_COMMAND="+command, "CNI_CONTAINERID=one", "CNI_NETNS=/run/netns/one",
		"CNI_IFNAME=eth0", "CNI_PATH="+dir, filepath.Join(dir, "flannel"))
	c := exec.Command(line[0], line[1:]...)
	c.Stdin = strings.NewReader(referenceConf)
	out, err := c.CombinedOutput()
	require.NoError(h.t, err, "%s: %s", command, out)
	return string(out)
}

// TestReferenceFlannel: the reference plugin flannel delegates to allocnet's bridge. Each of
// the two flannel plugins removes what the other one has added, because both keep the
// delegate's configuration in the same file.
func TestReferenceFlannel(t *testing.T) {
	c := newCluster(t, overlay{backend: "vxlan"})
	one, two := c.hosts[0], c.hosts[1]
	own, mixed := dropIns(t)
	two.prepare(embedded, "")
	two.daemon.Start()
	two.awaitDaemon()
	far := two.setup("far")
	for _, order := range []struct{ name, add, del string }{
		{"reference adds, allocnet removes", mixed, own},
		{"allocnet adds, reference removes", own, mixed},
		{"reference adds and removes", mixed, mixed},
	} {
		t.Run(order.name, func(t *testing.T) {
			one.run("ip", "netns", "add", "one")
			var result struct{ IPs []struct{ Address string } }
			require.NoError(t, json.Unmarshal([]byte(one.plugin(order.add, "ADD")), &result))
			a := &allocation{host: one, id: "one", Address: strings.TrimSuffix(result.IPs[0].Address, "/24")}
			require.True(t, strings.HasPrefix(a.Address, subnetPrefix(one.env()["FLANNEL_SUBNET"])), a.Address)
			a.serve("80")
			requireReach(t, far, a)
			requireReach(t, a, far)
			require.Equal(t, "one\n", one.run("ls", "/var/lib/cni/flannel"))
			for range 2 { // the second one finds nothing
				one.plugin(order.del, "DEL")
				require.Empty(t, one.run("ls", "/var/lib/cni/flannel"))
				require.NotContains(t, one.run("ip", "-n", "one", "link"), "eth0")
				require.NotContains(t, one.run("ls", "/var/lib/cni/networks/cbr0"), a.Address)
				require.NotContains(t, one.run("nft", "list", "ruleset"), a.Address)
			}
			one.run("ip", "netns", "del", "one")
		})
	}
	two.requireClean()
}
