package flannel_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/plugintest"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) {
	os.Exit(privhost.Main(m, "/var/lib/cni"))
}

type object = map[string]any

// subnets is a file of flanneld that leaves masquerading to the delegate.
const subnets = "FLANNEL_NETWORK=10.9.0.0/16,192.168.0.0/16\nFLANNEL_SUBNET=10.9.0.1/24\n" +
	"FLANNEL_IPV6_NETWORK=fd00:9::/48\nFLANNEL_IPV6_SUBNET=fd00:9::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"

// testHost is a private host with one container.
type testHost struct {
	*testing.T
	shared  *sdk.Host
	log     *bytes.Buffer
	netns   *sandbox.Sandbox
	env     string // the file of flanneld
	dir     string // dataDir
	plugins string // the directory of binaries
	before  hostsnap.Snapshot
}

func newHost(t *testing.T) *testHost {
	t.Helper()
	privhost.Require(t, "ip", "nft")
	h := &testHost{T: t, log: &bytes.Buffer{}, dir: filepath.Join(t.TempDir(), "saved"), plugins: t.TempDir()}
	h.env = filepath.Join(t.TempDir(), "subnet.env")
	h.subnets(subnets)
	var err error
	h.shared, err = sdk.OpenHost(hclog.New(&hclog.LoggerOptions{Output: h.log}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.shared.Close()) })
	h.netns, err = sandbox.Create("box")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.netns.Destroy()) })
	t.Cleanup(h.clear)
	h.before, err = hostsnap.Take(h.options())
	require.NoError(t, err)
	return h
}

func (h *testHost) options() hostsnap.Options {
	return hostsnap.Options{Dirs: []string{h.dir}, Persistent: true}
}

// clear removes what attachments share.
func (h *testHost) clear() {
	if link, err := netlink.LinkByName("cni0"); err == nil {
		require.NoError(h, netlink.LinkDel(link))
	}
	privhost.FlushRuleset(h.T)
	require.NoError(h, os.RemoveAll("/var/lib/cni/networks"))
}

// requireNothing checks that nothing of an attachment is left, also in the directory.
func (h *testHost) requireNothing() {
	h.Helper()
	after, err := hostsnap.Take(h.options())
	require.NoError(h, err)
	require.Empty(h, hostsnap.Diff(h.before, after))
	require.Empty(h, h.files())
}

func (h *testHost) output(name string, args ...string) string {
	h.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(h, err, "%s %v: %s", name, args, out)
	return string(out)
}

// subnets replaces the file of flanneld; "" removes it.
func (h *testHost) subnets(text string) {
	if text == "" {
		require.NoError(h, os.Remove(h.env))
		return
	}
	require.NoError(h, os.WriteFile(h.env, []byte(text), 0o644))
}

// files returns the names in the directory.
func (h *testHost) files() []string {
	entries, err := os.ReadDir(h.dir)
	if err != nil {
		require.ErrorIs(h, err, os.ErrNotExist)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (h *testHost) file(id string) string { return filepath.Join(h.dir, id) }

// conf returns a configuration with more keys, which are given in pairs.
func (h *testHost) conf(pairs ...any) object {
	c := object{"cniVersion": "1.1.0", "name": "net", "type": "flannel", "subnetFile": h.env, "dataDir": h.dir}
	for pair := range slices.Chunk(pairs, 2) {
		c[pair[0].(string)] = pair[1]
	}
	return c
}

// call runs a command for a container, with the result of ADD unless it is "".
func (h *testHost) call(command, id string, conf object, result string) (string, error) {
	h.Helper()
	text, err := json.Marshal(conf)
	require.NoError(h, err)
	if result != "" {
		text = []byte(plugintest.WithPrevResult(h, string(text), result))
	}
	x := &sdk.Exec{Plugins: builtin.Plugins, Host: h.shared, Binary: &pluginexec.Exec{}}
	return plugintest.Native(h, x, "flannel", string(text), []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_NETNS=" + h.netns.Path(), "CNI_IFNAME=eth0", "CNI_PATH=" + h.plugins,
	})
}

// must is call of a command that succeeds.
func (h *testHost) must(command, id string, conf object, result string) string {
	h.Helper()
	out, err := h.call(command, id, conf, result)
	require.NoError(h, err, command)
	return out
}

// elements returns the elements of allocnet's tables.
func (h *testHost) elements() string {
	return strings.Join(strings.Fields(h.output("nft", "list", "ruleset")), " ")
}
