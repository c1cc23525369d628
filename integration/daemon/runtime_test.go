package daemon

import (
	"encoding/json"
	"os"
	"testing"

	gocni "github.com/containerd/go-cni"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/nomad"
)

// goCNI returns a go-cni instance, as containerd, nerdctl and Nomad use it, for
// a list of the runtime.
func (r *cni) goCNI(list []byte) gocni.CNI {
	r.h.T.Helper()
	c, err := gocni.New(gocni.WithPluginDir([]string{r.bin, testbed.PluginDir}), gocni.WithConfListBytes(list))
	require.NoError(r.h.T, err)
	return c
}

// TestDaemonPrimaryUnusable: an unusable primary network does not delay the use
// of other networks, as a missing readiness file does.
func TestDaemonPrimaryUnusable(t *testing.T) {
	m := newManaged(t)
	m.configure("manager {\n enabled = true\n primary = \"net\"\n readiness_file = \"" + m.ready + "\"\n}")
	m.list("net", "1.1.0", map[string]any{"type": "missing"})
	m.list("back", "1.1.0", testbed.Chain("bridge", testbed.Dual, "")...)
	require.NoError(t, os.WriteFile(m.ready, nil, 0o600))
	m.restart()
	m.asks(`"missing"`)
	config := func(key string, value any) []byte {
		return m.pluginConfig(map[string]any{key: value})
	}
	back, inline := config("delegate", "back"), config("plugins", testbed.Chain("ptp", testbed.Families{V4: "10.97.0.0/24"}, ""))
	a, b := m.h.netns("a"), m.h.netns("b")
	call := func(command, id, netns string, config []byte) error {
		_, err := m.plugin(command, id, netns, config)
		return err
	}
	waiting := [][]byte{config("delegate", "net"), config("delegates", []string{"back", "net"}), m.pluginConfig(nil)}
	for _, config := range waiting {
		require.Contains(t, requireCode(t, 11, call("ADD", "a", a, config)).Error(), `"missing"`)
		requireCode(t, 50, call("STATUS", "", "", config))
	}
	for _, config := range [][]byte{back, inline} {
		require.NoError(t, call("STATUS", "", "", config))
	}
	require.NoError(t, call("ADD", "a", a, back))
	require.NoError(t, call("ADD", "b", b, inline))
	require.NoError(t, os.Remove(m.ready))
	m.asks("readiness file")
	for _, config := range append(waiting, back, inline) {
		require.Contains(t, requireCode(t, 11, call("ADD", "c", a, config)).Error(), "readiness file")
	}
	require.NoError(t, call("DEL", "a", a, back))
	require.NoError(t, call("DEL", "b", b, inline))
}

// linksOf returns the names of the host's links of a type.
func linksOf(t testing.TB, kind string) (names []string) {
	t.Helper()
	links, err := retry.List(netlink.LinkList)
	require.NoError(t, err)
	for _, l := range links {
		if l.Type() == kind {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

// TestDaemonGoCNI uses every option of go-cni, in its own format.
func TestDaemonGoCNI(t *testing.T) {
	r := newCNI(t)
	declared := map[string]bool{"portMappings": true, "bandwidth": true, "dns": true, "ipRanges": true}
	plugins := testbed.Chain("bridge", testbed.Dual, "")
	plugins[1]["ipam"] = map[string]any{"type": "host-local", "routes": []any{map[string]any{"dst": "0.0.0.0/0"}}}
	plugins[1]["capabilities"] = map[string]bool{"dns": true, "ipRanges": true}
	r.h.Network("net", append(plugins, map[string]any{"type": "bandwidth", "capabilities": map[string]bool{"bandwidth": true}})...)
	ours := r.ours("delegate", "net")
	ours["capabilities"] = declared
	list, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "runtime", "plugins": []any{ours}})
	require.NoError(t, err)
	c := r.goCNI(list)
	opts := []gocni.NamespaceOpts{
		gocni.WithCapabilityPortMap([]gocni.PortMapping{
			{HostPort: 8080, ContainerPort: 80, Protocol: "TCP"}, {HostPort: 8081, ContainerPort: 81, Protocol: "udp", HostIP: testhost.Host4.Addr().String()},
		}),
		gocni.WithCapabilityBandWidth(gocni.BandWidth{IngressRate: 8_000_000, IngressBurst: 8_000_000, EgressRate: 8_000_000, EgressBurst: 8_000_000}),
		gocni.WithCapabilityDNS(gocni.DNS{Servers: []string{"10.0.0.53"}, Searches: []string{"example.org"}}),
		gocni.WithCapabilityIPRanges([]gocni.IPRanges{{Subnet: "10.95.0.0/24", RangeStart: "10.95.0.50"}, {Subnet: "fd00:95::/64"}}),
		gocni.WithLabels(map[string]string{"NOMAD_ALLOC_ID": "4cf0a37d", "NOMAD_JOB_ID": "web"}),
		gocni.WithArgs("IgnoreUnknown", "1"),
	}
	for _, mode := range awayAndUp {
		mode.turn(r)
		id := "go" + mode.name
		netns := r.h.netns(id)
		testbed.Serve(t, netns, "tcp", 80, id)
		result, err := c.Setup(t.Context(), id, netns, opts...)
		require.NoError(t, err)
		var addresses []string
		for _, ip := range result.Interfaces["eth0"].IPConfigs {
			addresses = append(addresses, ip.IP.String())
		}
		require.Len(t, addresses, 2)
		require.Contains(t, addresses[0], "10.95.0.5")
		require.Contains(t, addresses[1], "fd00:95::")
		require.NotEmpty(t, linksOf(t, "ifb"), "egress is bounded")
		testbed.RequireAnswer(t, r.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), id)
		record, err := r.h.Get(t.Context(), id+".eth0")
		require.NoError(t, err)
		require.Len(t, record.Ports, 2)
		group, is := nomad.GroupOf(record)
		require.True(t, is)
		require.Equal(t, []any{"4cf0a37d", "web", []nomad.AllocatedPort{{Value: 8080, To: 80}, {Value: 8081, To: 81, HostIP: testhost.Host4.Addr().String()}}},
			[]any{group.AllocID, group.JobID, group.Ports})
		require.NoError(t, c.Check(t.Context(), id, netns, opts...))
		require.NoError(t, c.Remove(t.Context(), id, netns, opts...))
		require.Empty(t, r.h.phases())
		require.Empty(t, linksOf(t, "ifb"))
		testbed.RequireRefused(t, r.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080))
	}
}
