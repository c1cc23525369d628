package tuning

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/plugintest"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m, filepath.Dir(allowlistFile))) }

const (
	testNetwork   = "testnet"
	testContainer = "alloc-1"
	testIfName    = "eth0.100" // dots in the name are not separators
	testVeth      = "vethtest"
	ifMAC         = "0a:00:00:00:00:02"
)

// testHost is a private host with one container.
type testHost struct {
	*testing.T
	shared      *sdk.Host
	log         *bytes.Buffer
	netns       *sandbox.Sandbox
	inside      *netlink.Handle
	closeInside func() error
}

// newTestHost creates the container and its veth like a bridge plugin.
func newTestHost(t *testing.T) *testHost {
	t.Helper()
	privhost.Require(t)
	k := rtnl.OpenHost()
	t.Cleanup(k.Close)
	h := &testHost{T: t, log: &bytes.Buffer{}}
	h.shared = &sdk.Host{Kernel: k, Log: hclog.New(&hclog.LoggerOptions{Output: h.log})}
	var err error
	h.netns, err = sandbox.Create("test")
	require.NoError(t, err)
	t.Cleanup(h.clear)
	err = h.netns.With(func(fd int) error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs:        netlink.LinkAttrs{Name: testVeth, MTU: 1400, TxQLen: 1000, Flags: net.FlagUp},
			PeerName:         testIfName,
			PeerTxQLen:       1000,
			PeerHardwareAddr: plugintest.MAC(t, ifMAC),
			PeerNamespace:    netlink.NsFd(fd),
		})
	})
	require.NoError(t, err)
	s, err := rtnl.OpenSandbox(h.netns.Path())
	require.NoError(t, err)
	h.closeInside = s.Close
	h.inside, err = s.Handle()
	require.NoError(t, err)
	return h
}

// clear removes all objects of the test.
func (h *testHost) clear() {
	require.NoError(h, h.closeInside())
	require.NoError(h, h.netns.Destroy())
	if link, err := netlink.LinkByName(testVeth); err == nil {
		if err := netlink.LinkDel(link); !errors.Is(err, unix.ENODEV) {
			require.NoError(h, err)
		}
	}
	require.NoError(h, os.RemoveAll(defaultDataDir))
	require.NoError(h, os.RemoveAll(allowlistFile))
}

// runner runs the plugin, and returns its output and the code of its error, 0 for none.
type runner func(h *testHost, command, conf string, env ...string) (stdout string, code uint)

func (h *testHost) env(command string, more []string) []string {
	return append([]string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + testContainer, "CNI_NETNS=" + h.netns.Path(),
		"CNI_IFNAME=" + testIfName, "CNI_PATH=/nowhere",
	}, more...)
}

// ours runs the native plugin.
func ours(h *testHost, command, conf string, env ...string) (string, uint) {
	out, err := h.native(command, conf, env...)
	return out, plugintest.ReportedCode(err)
}

func (h *testHost) native(command, conf string, env ...string) (string, error) {
	x := &sdk.Exec{Plugins: map[string]sdk.Factory{"tuning": New}, Host: h.shared}
	return plugintest.Native(h, x, "tuning", conf, h.env(command, env))
}

// theirs runs the reference plugin.
func theirs(h *testHost, command, conf string, env ...string) (string, uint) {
	out, err := plugintest.Reference(h, "tuning", conf, h.env(command, env))
	return out, plugintest.ReportedCode(err)
}

// config returns a configuration. extra begins with a comma.
func (h *testHost) config(extra string) string {
	return h.configWith("1.0.0", extra+fmt.Sprintf(`, "prevResult": {"cniVersion": "1.0.0", "interfaces": [
		{"name": %q, "mac": "0a:00:00:00:00:01"}, {"name": %q, "mac": %q, "sandbox": %q}],
		"ips": [{"address": "10.1.0.2/24", "interface": 1}]}`, testVeth, testIfName, ifMAC, h.netns.Path()))
}

func (h *testHost) configWith(version, extra string) string {
	return fmt.Sprintf(`{"cniVersion": %q, "name": %q, "type": "tuning"%s}`, version, testNetwork, extra)
}

// watched are the sysctls that the tests change.
var watched = []string{
	"core/somaxconn", "ipv4/conf/all/accept_redirects", "ipv4/conf/eth0.100/accept_redirects",
	"ipv4/ip_local_port_range", "ipv4/conf/eth0.100/arp_ignore", "ipv4/ip_unprivileged_port_start",
}

// state describes everything that the plugin can change, as text: in the
// container and in the backups.
func (h *testHost) state() (state []string) {
	link, err := h.inside.LinkByName(testIfName)
	require.NoError(h, err)
	a := link.Attrs()
	state = append(state, fmt.Sprintf("link mac %s mtu %d promisc %t allmulti %t qlen %d", a.HardwareAddr, a.MTU,
		a.RawFlags&unix.IFF_PROMISC != 0, a.RawFlags&unix.IFF_ALLMULTI != 0, a.TxQLen))
	for _, name := range watched {
		state = append(state, name+" = "+h.sysctl(name))
	}
	return append(state, h.backups()...)
}

func (h *testHost) sysctl(name string) (value string) {
	require.NoError(h, h.netns.Do(func() error {
		data, err := os.ReadFile(sysctlRoot + name)
		value = strings.TrimSpace(string(data))
		return err
	}))
	return value
}

// backups describes the files with their modes, without the owner, which only
// the native plugin adds.
func (h *testHost) backups() (all []string) {
	entries, err := os.ReadDir(defaultDataDir)
	if err != nil {
		require.ErrorIs(h, err, os.ErrNotExist)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(defaultDataDir, e.Name()))
		require.NoError(h, err)
		info, err := e.Info()
		require.NoError(h, err)
		text := string(data)
		if i := strings.Index(text, `"owner"`); i >= 0 {
			text = strings.TrimRight(text[:i], ", \n") + "\n}"
		}
		all = append(all, fmt.Sprintf("%s %s %s", e.Name(), info.Mode(), text))
	}
	return all
}

// allow writes the host's allowlist.
func (h *testHost) allow(text string) {
	require.NoError(h, os.WriteFile(allowlistFile, []byte(text), 0o644))
}
