package daemon

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
)

// managed is a host whose daemon manages the runtime's configurations, and a
// runtime that uses the first of them.
type managed struct {
	*cni
	own, ready string
}

// newManaged returns a host with the network "net". The daemon runs and waits
// for its readiness file.
func newManaged(t *testing.T) *managed {
	h := newHost(t, testbed.Native.Engine)
	d := h.newDaemon("")
	m := &managed{own: filepath.Join(h.ConfDir, "00-allocnet.conflist"), ready: filepath.Join(d.dir, "ready")}
	d.configure("manager {\n enabled = true\n readiness_file = \"" + m.ready + "\"\n}")
	m.cni = d.runtime()
	m.conf = h.ConfDir
	m.list("net", "1.1.0", testbed.Chain("bridge", testbed.Dual, "")...) // the first version with STATUS
	d.begin()
	d.told("READY=1")
	return m
}

// eventually waits until the manager has reached a state.
func (m *managed) eventually(what string, is func() bool) {
	m.h.T.Helper()
	require.Eventually(m.h.T, is, time.Minute, 2*time.Millisecond, what)
}

// delegates waits until the manager's configuration delegates to the named
// network.
func (m *managed) delegates(network string) {
	m.h.T.Helper()
	m.eventually("the own configuration delegates to "+network, func() bool {
		data, err := os.ReadFile(m.own)
		var list struct {
			Name    string
			Plugins []struct {
				Type         string
				Delegates    []string
				Capabilities map[string]bool
			}
		}
		return err == nil && json.Unmarshal(data, &list) == nil && list.Name == network && len(list.Plugins) == 1 &&
			list.Plugins[0].Type == "allocnet" && len(list.Plugins[0].Delegates) == 1 &&
			list.Plugins[0].Delegates[0] == network && list.Plugins[0].Capabilities["portMappings"]
	})
}

// asks waits until the daemon is ready or, if reason is not empty, not ready
// for that reason.
func (m *managed) asks(reason string) {
	m.h.T.Helper()
	m.eventually("ready but for "+reason, func() bool {
		err := m.client().Ready(m.h.T.Context())
		if reason == "" {
			return err == nil
		}
		return err != nil && strings.Contains(err.Error(), reason)
	})
}

// TestDaemonManager follows the manager's configuration from its creation to
// its removal, with a runtime that uses it.
func TestDaemonManager(t *testing.T) {
	m := newManaged(t)
	m.asks("readiness file")
	require.NoFileExists(t, m.own)
	require.NoError(t, os.WriteFile(m.ready, nil, 0o600))
	m.delegates("net")
	m.asks("")
	info, err := os.Stat(m.own)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	code, text := m.status("net")
	require.Zero(t, code, text)

	a, b := m.h.netns("a"), m.h.netns("b")
	testbed.Serve(t, a, "tcp", 80, "a")
	m.result("net", a, portMapping(8080, 80))
	testbed.RequireAnswer(t, m.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "a")

	require.NoError(t, os.Remove(m.own))
	m.delegates("net")
	require.NoError(t, os.WriteFile(m.own, []byte("{}"), 0o644))
	m.delegates("net")

	m.term()
	testbed.RequireAnswer(t, m.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "a")
	require.FileExists(t, m.own)
	m.result("net", b, portMapping(8081, 80))
	m.begin()
	m.told("READY=1")
	m.asks("")
	for _, netns := range []string{a, b} {
		m.ok("check", "net", netns)
		m.ok("del", "net", netns)
	}
}

// TestDaemonPrimaryBroken: while the file of the primary network is broken, its
// last valid content stays active, also for containers that never used it.
// Every interface reports the error until the file is repaired.
func TestDaemonPrimaryBroken(t *testing.T) {
	m := newManaged(t)
	require.NoError(t, os.WriteFile(m.ready, nil, 0o600))
	m.delegates("net")
	file := filepath.Join(m.h.ConfDir, "net.conflist")
	good, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, good[:len(good)/2], 0o600))
	m.eventually("the file is seen", func() bool { return strings.Contains(m.log(), "invalid JSON") })

	netns := m.h.netns("a")
	m.result("net", netns, portMapping(8080, 80))
	m.delegates("net")
	m.ok("check", "net", netns)
	code, text := m.status("net")
	require.Zero(t, code, text)
	_, skipped := m.client().Networks(t.Context())
	require.Len(t, skipped, 1)
	require.Equal(t, file, skipped[0].File)
	said := m.allocnet("networks")
	require.Contains(t, said.out+said.err, file)
	body := m.get("/readyz")
	require.Contains(t, body, file)
	said = m.allocnet("ready")
	require.Contains(t, said.out+said.err, file)

	require.NoError(t, os.WriteFile(file, good, 0o600))
	m.eventually("healed", func() bool { return strings.Contains(m.log(), "all problems are gone") })
	body = m.get("/readyz")
	require.NotContains(t, body, file)
	m.ok("del", "net", netns)
}

// container calls libcni like a runtime that uses the first file of the
// directory and looks for it again before every call.
func (m *managed) container(call func(*libcni.CNIConfig, *libcni.NetworkConfigList, *libcni.RuntimeConf) error, id, netns string) error {
	m.h.T.Helper()
	list, err := libcni.NetworkConfFromFile(m.own)
	require.NoError(m.h.T, err)
	c := libcni.NewCNIConfigWithCacheDir([]string{m.bin, testbed.PluginDir}, filepath.Join(m.dir, "cache"), nil)
	return call(c, list, &libcni.RuntimeConf{ContainerID: id, NetNS: netns, IfName: "eth0"})
}

func (m *managed) add(id, netns string) error {
	return m.container(func(c *libcni.CNIConfig, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) error {
		_, err := c.AddNetworkList(m.h.T.Context(), list, rt)
		return err
	}, id, netns)
}

func (m *managed) del(id, netns string) error {
	return m.container(func(c *libcni.CNIConfig, list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) error {
		return c.DelNetworkList(m.h.T.Context(), list, rt)
	}, id, netns)
}

// collect runs GC for a runtime without containers.
func (m *managed) collect() error {
	return m.container(func(c *libcni.CNIConfig, list *libcni.NetworkConfigList, _ *libcni.RuntimeConf) error {
		return c.GCNetworkList(m.h.T.Context(), list, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}})
	}, "", "")
}

// TestDaemonPrimaryGoes: if the file of the primary network is removed, the
// manager delegates to another network only if that is valid. Existing
// allocations stay, and DEL and GC find them, whichever network is the primary
// one by then.
func TestDaemonPrimaryGoes(t *testing.T) {
	m := newManaged(t)
	require.NoError(t, os.WriteFile(m.ready, nil, 0o600))
	m.delegates("net")
	a, b, c := m.h.netns("a"), m.h.netns("b"), m.h.netns("c")
	testbed.Serve(t, a, "tcp", 80, "a")
	require.NoError(t, m.add("a", a))
	require.NoError(t, m.add("b", b))
	file := filepath.Join(m.h.ConfDir, "net.conflist")
	require.NoError(t, os.Rename(file, file+".away"))
	m.asks(`primary network "net" is gone`)
	m.delegates("net")
	code, text := m.status("net")
	require.Equal(t, uint(50), code, text)
	require.Contains(t, text, `"net" is gone`)
	requireCode(t, 11, m.add("c", c))
	testbed.RequireAnswer(t, "", "tcp", "10.99.0.2:80", "a")

	m.list("other", "1.1.0", testbed.Chain("ptp", testbed.Families{V4: "10.97.0.0/24"}, "")...)
	m.delegates("other")
	m.asks("")
	require.NoError(t, m.add("c", c))
	testbed.RequireAnswer(t, "", "tcp", "10.99.0.2:80", "a")
	require.Equal(t, []string{"a.eth0 ready", "b.eth0 ready", "c.eth0 ready"}, m.h.phases())
	require.NoError(t, m.del("a", a))
	require.Equal(t, []string{"b.eth0 ready", "c.eth0 ready"}, m.h.phases())
	require.NoError(t, os.Rename(file+".away", file))
	m.delegates("net")
	require.NoError(t, m.del("c", c))
	require.Equal(t, []string{"b.eth0 ready"}, m.h.phases())
	require.NoError(t, os.Remove(file))
	m.delegates("other")
	m.asks("")
	require.NoError(t, m.collect())
	require.Empty(t, m.h.phases())
}

// refused requires an ADD to fail before it has changed anything.
func (m *managed) refused(netns string) {
	m.h.T.Helper()
	_, err := m.plugin("ADD", "refused", netns, m.pluginConfig(map[string]any{"delegate": "net"}))
	requireCode(m.h.T, 11, err)
}

// TestDaemonReadinessFile: without the readiness file, every ADD is refused,
// and existing allocations keep working.
func TestDaemonReadinessFile(t *testing.T) {
	m := newManaged(t)
	require.NoError(t, os.WriteFile(m.ready, nil, 0o600))
	m.delegates("net")
	m.asks("")
	netns, other := m.h.netns("a"), m.h.netns("b")
	testbed.Serve(t, netns, "tcp", 80, "a")
	m.result("net", netns, portMapping(8080, 80))
	require.NoError(t, os.Remove(m.ready))
	m.asks("readiness file")
	not := m.allocnet("ready", "--json")
	require.Equal(t, 3, not.exit)
	require.Contains(t, not.err, `"kind":"not-ready"`)
	for _, mode := range awayAndUp {
		mode.turn(m.cni)
		code, text := m.status("net")
		require.Equal(t, uint(50), code, text)
		m.refused(other)
		m.ok("check", "net", netns)
		testbed.RequireAnswer(t, m.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "a")
		m.delegates("net")
	}
	modes[0].turn(m.cni)
	require.NoError(t, os.WriteFile(m.ready, nil, 0o600))
	m.asks("")
	code, text := m.status("net")
	require.Zero(t, code, text)
	m.result("net", other, portMapping(8081, 80))
	m.ok("del", "net", netns)
	m.ok("del", "net", other)
}
