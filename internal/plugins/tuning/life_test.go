package tuning

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/plugintest"
	"github.com/allocnet/allocnet/sandbox"
)

func (h *testHost) add(extra string) string {
	h.Helper()
	out, err := h.native("ADD", h.config(extra))
	require.NoError(h, err)
	return out
}

// TestFailedAddLeavesNothing lets the last step fail.
func TestFailedAddLeavesNothing(t *testing.T) {
	before := `, "mac": "0a:00:00:00:00:99", "promisc": true, "allmulti": true`
	for name, test := range map[string]struct{ extra, want string }{
		"attribute": {before + `, "mtu": 1, "sysctl": {"net.core.somaxconn": "77", "net.ipv4.conf.IFNAME.arp_ignore": "2"}`, "set MTU 1 of link"},
		"sysctl":    {before + `, "sysctl": {"net.core.somaxconn": "77", "net.ipv4.conf.IFNAME.arp_ignore": "x"}`, "set sysctl"},
		"backup":    {before + `, "sysctl": {"net.core.somaxconn": "77"}, "dataDir": "/proc/none"`, "backups"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			state := h.state()
			_, err := h.native("ADD", h.config(test.extra))
			require.ErrorContains(t, err, test.want)
			require.Equal(t, state, h.state())
		})
	}
}

// TestUndoInReverse: a sysctl of all interfaces is restored before that of one
// interface.
func TestUndoInReverse(t *testing.T) {
	h := newTestHost(t)
	_, err := h.native("ADD", h.config(`, "sysctl": {"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.IFNAME.disable_ipv6": "1", "net.core.somaxconn": "x"}`))
	require.ErrorContains(t, err, "somaxconn")
	require.Equal(t, "0", h.sysctl("ipv6/conf/"+testIfName+"/disable_ipv6"))
}

// TestLongMAC: a MAC that is too long is refused. The kernel would use a part
// of it.
func TestLongMAC(t *testing.T) {
	h := newTestHost(t)
	_, err := h.native("ADD", h.config(`, "mac": "0a:00:00:00:00:99:00:00"`))
	require.ErrorContains(t, err, "the MAC has 8 bytes, not 6")
}

// TestOrder: a sysctl of all interfaces also changes that of each, so the last
// one must win.
func TestOrder(t *testing.T) {
	h := newTestHost(t)
	for range 8 {
		h.add(`, "sysctl": {"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.IFNAME.disable_ipv6": "0"}`)
		require.Equal(t, "0", h.sysctl("ipv6/conf/"+testIfName+"/disable_ipv6"))
		h.add(`, "sysctl": {"net.ipv6.conf.IFNAME.disable_ipv6": "0", "net.ipv6.conf.all.disable_ipv6": "1"}`)
		require.Equal(t, "1", h.sysctl("ipv6/conf/"+testIfName+"/disable_ipv6"))
	}
}

// TestHostIsUntouched: only sysctls of the thread's namespace change.
func TestHostIsUntouched(t *testing.T) {
	h := newTestHost(t)
	value := func() string {
		data, err := os.ReadFile(sysctlRoot + "core/somaxconn")
		require.NoError(t, err)
		return string(data)
	}
	before := value()
	h.add(`, "sysctl": {"net.core.somaxconn": "77"}`)
	require.Equal(t, "77", h.sysctl("core/somaxconn"))
	require.Equal(t, before, value())
}

// TestArgsSysctlAlone uses a configuration that makes the reference plugin
// panic.
func TestArgsSysctlAlone(t *testing.T) {
	h := newTestHost(t)
	h.add(`, "args": {"cni": {"sysctl": {"net.core.somaxconn": "78"}}}`)
	require.Equal(t, "78", h.sysctl("core/somaxconn"))
}

func TestResult(t *testing.T) {
	h := newTestHost(t)
	out, err := h.native("ADD", h.configWith("1.1.0", `, "mac": "0A-00-00-00-00-99", "mtu": 1300, "prevResult": {"cniVersion": "1.1.0",
		"interfaces": [{"name": "eth0.100", "mac": "0a:00:00:00:00:01", "mtu": 1500},
			{"name": "eth0.100", "mac": "0a:00:00:00:00:02", "mtu": 1400, "sandbox": "/x"},
			{"name": "eth1", "mac": "0a:00:00:00:00:03", "sandbox": "/x"}, {"name": "eth0.100", "sandbox": "/x"}]}`))
	require.NoError(t, err)
	var result types100.Result
	require.NoError(t, json.Unmarshal([]byte(out), &result))
	require.Equal(t, []*types100.Interface{
		{Name: "eth0.100", Mac: "0a:00:00:00:00:01", Mtu: 1500},
		{Name: "eth0.100", Mac: "0a:00:00:00:00:99", Mtu: 1300, Sandbox: "/x"},
		{Name: "eth1", Mac: "0a:00:00:00:00:03", Sandbox: "/x"},
		{Name: "eth0.100", Mac: "0a:00:00:00:00:99", Sandbox: "/x"},
	}, result.Interfaces)
}

func TestDelWithoutTheNamespace(t *testing.T) {
	for name, env := range map[string][]string{"gone": nil, "unknown": {"CNI_NETNS="}} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			h.add(everything)
			require.Len(t, h.backups(), 1)
			require.NoError(t, sandbox.Destroy(h.netns.Path()))
			for range 2 {
				_, err := h.native("DEL", h.config(everything), env...)
				require.NoError(t, err)
				require.Empty(t, h.backups())
				require.Empty(t, h.log.String())
			}
		})
	}
}

// TestDelInAnotherNamespace: the path of the namespace leads to another container by now, whose interface has the
// same name, and the attributes that its own ADD has set.
func TestDelInAnotherNamespace(t *testing.T) {
	for name, add := range map[string]runner{"ours": ours, "the reference plugin's": theirs} {
		t.Run(name, func(t *testing.T) {
			other := newTestHost(t)
			out, code := add(other, "ADD", other.config(`, "mac": "0a:00:00:00:00:98", "mtu": 1298`))
			require.Zero(t, code, out)
			require.NoError(t, os.RemoveAll(defaultDataDir))
			state := other.state()
			h := &testHost{T: t, shared: other.shared, log: other.log, netns: emptyNamespace(t)}
			past := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "vethpast", MTU: 1400}, PeerName: testIfName}
			require.NoError(t, h.netns.With(func(fd int) error {
				past.PeerNamespace = netlink.NsFd(fd)
				return netlink.LinkAdd(past)
			}))
			defer func() { require.NoError(t, netlink.LinkDel(past)) }()
			conf := h.config(`, "mac": "0a:00:00:00:00:99", "mtu": 1299`)
			out, code = add(h, "ADD", conf)
			require.Zero(t, code, out)
			out, code = ours(h, "DEL", conf, "CNI_NETNS="+other.netns.Path())
			require.Zero(t, code, out)
			require.Equal(t, state, other.state(), "and the backup is removed")
		})
	}
}

// TestDelInANamespaceWithTheSameValues: the backup names the namespace, so equal values are no reason.
func TestDelInANamespaceWithTheSameValues(t *testing.T) {
	other := newTestHost(t)
	other.add(`, "mtu": 1299`)
	file := filepath.Join(defaultDataDir, testContainer+"_"+testIfName+".json")
	b, err := readBackup(file)
	require.NoError(t, err)
	b.Netns.Cookie++
	require.NoError(t, b.write(file))
	_, err = other.native("DEL", other.config(`, "mtu": 1299`))
	require.NoError(t, err)
	require.Contains(t, other.state()[0], "mtu 1299")
	require.Empty(t, other.backups())
}

func emptyNamespace(t *testing.T) *sandbox.Sandbox {
	t.Helper()
	s, err := sandbox.Create("past")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Destroy()) })
	return s
}

// TestDelTriesEverything uses a backup of which one part cannot be restored, an
// unreadable backup, and a missing interface.
func TestDelTriesEverything(t *testing.T) {
	file := filepath.Join(defaultDataDir, testContainer+"_"+testIfName+".json")
	for name, test := range map[string]struct{ backup, log string }{
		"bad value":  {`{"mac": "01:00:5e:00:00:01", "mtu": 1234}`, "restore MAC 01:00:5e:00:00:01"},
		"cut short":  {`{"mac": "0a:0`, ""},
		"unfinished": {"", ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			h.add(everything)
			require.NoError(t, os.WriteFile(file, []byte(test.backup), 0o600))
			require.NoError(t, os.WriteFile(file+draftSuffix, nil, 0o600))
			_, err := h.native("DEL", h.config(everything))
			require.NoError(t, err)
			require.Empty(t, h.backups())
			require.Contains(t, h.log.String(), test.log)
			if test.log != "" {
				require.Contains(t, h.state()[0], "mtu 1234")
			} else {
				require.Empty(t, h.log.String())
			}
		})
	}
	t.Run("interface gone", func(t *testing.T) {
		h := newTestHost(t)
		h.add(everything)
		link, err := netlink.LinkByName(testVeth)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkDel(link))
		_, err = h.native("DEL", h.config(everything))
		require.NoError(t, err)
		require.Empty(t, h.backups())
		require.Empty(t, h.log.String())
	})
}

// TestDelOfABadConfiguration restores the changes of an ADD with another
// configuration.
func TestDelOfABadConfiguration(t *testing.T) {
	h := newTestHost(t)
	before := h.state()[0]
	h.add(everything)
	_, err := h.native("DEL", h.configWith("1.0.0", `, "sysctl": {"x": "1", "x": "2"}, "mac": "x", "prevResult": {"cniVersion": "9"}`), "CNI_ARGS=X")
	require.NoError(t, err)
	require.Equal(t, before, h.state()[0])
	require.Empty(t, h.backups())
}

func TestDelSaysWhatItCannotRemove(t *testing.T) {
	h := newTestHost(t)
	file := filepath.Join(defaultDataDir, testContainer+"_"+testIfName+".json")
	require.NoError(t, os.MkdirAll(filepath.Join(file+draftSuffix, "x"), 0o700))
	_, err := h.native("DEL", h.config(""))
	require.ErrorIs(t, err, unix.ENOTEMPTY)
}

// TestCheckFinds changes one thing at a time.
func TestCheckFinds(t *testing.T) {
	link := func(h *testHost) netlink.Link {
		l, err := h.inside.LinkByName(testIfName)
		require.NoError(h, err)
		return l
	}
	sysctl := func(name, value string) func(h *testHost) error {
		return func(h *testHost) error {
			return h.netns.Do(func() error { return os.WriteFile(sysctlRoot+name, []byte(value), 0) })
		}
	}
	for name, test := range map[string]struct {
		extra string
		harm  func(h *testHost) error
		want  string
	}{
		"nothing":  {everything, func(*testHost) error { return nil }, ""},
		"mac":      {everything, func(h *testHost) error { return h.inside.LinkSetHardwareAddr(link(h), plugintest.MAC(h.T, ifMAC)) }, "the MAC is"},
		"mtu":      {everything, func(h *testHost) error { return h.inside.LinkSetMTU(link(h), 1400) }, "the MTU is 1400, not 1300"},
		"promisc":  {everything, func(h *testHost) error { return h.inside.SetPromiscOff(link(h)) }, "promisc is false"},
		"promisc+": {"", func(h *testHost) error { return h.inside.SetPromiscOn(link(h)) }, "promisc is true"},
		"allmulti": {everything, func(h *testHost) error { return h.inside.LinkSetAllmulticastOff(link(h)) }, "allmulti is false"},
		"txQLen":   {everything, func(h *testHost) error { return h.inside.LinkSetTxQLen(link(h), 21) }, "txQLen is 21, not 20"},
		"sysctl":   {everything, sysctl("core/somaxconn", "78"), `sysctl "net.core.somaxconn" is "78", not "77"`},
		"others":   {`, "mtu": 1300`, sysctl("core/somaxconn", "78"), ""},
		"link":     {"", func(h *testHost) error { return h.inside.LinkDel(link(h)) }, "find link"},
		"a range of two, which the kernel separates by a tab": {`, "sysctl": {"net.ipv4.ip_local_port_range": "2000 3000"}`, func(*testHost) error { return nil }, ""},
		"a command, which cannot be read":                     {`, "sysctl": {"net.ipv4.route.flush": "1"}`, func(*testHost) error { return nil }, ""},
		"an upper-case MAC":                                   {`, "mac": "0A:00:00:00:00:AB"`, func(*testHost) error { return nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			result := h.add(test.extra)
			require.NoError(t, test.harm(h))
			_, err := h.native("CHECK", plugintest.WithPrevResult(t, h.config(test.extra), result))
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
			var coded *types.Error
			require.ErrorAs(t, err, &coded, "a finding has a code")
		})
	}
}

// TestCheckBesideAListener: a packet capture on the interface is not a finding
// of CHECK.
func TestCheckBesideAListener(t *testing.T) {
	h := newTestHost(t)
	result := h.add("")
	link, err := h.inside.LinkByName(testIfName)
	require.NoError(t, err)
	socket := -1
	require.NoError(t, h.netns.Do(func() (err error) {
		socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
		return err
	}))
	defer unix.Close(socket)
	require.NoError(t, unix.SetsockoptPacketMreq(socket, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
		&unix.PacketMreq{Ifindex: int32(link.Attrs().Index), Type: unix.PACKET_MR_PROMISC}))
	link, err = h.inside.LinkByName(testIfName)
	require.NoError(t, err)
	require.NotZero(t, link.Attrs().Promisc)
	_, err = h.native("CHECK", plugintest.WithPrevResult(t, h.config(""), result))
	require.NoError(t, err)
}

func TestGC(t *testing.T) {
	h := newTestHost(t)
	require.NoError(t, os.MkdirAll(filepath.Join(defaultDataDir, "dir.json"), 0o700))
	owner := func(network, id string) string {
		return fmt.Sprintf(`{"mtu": 1, "owner": %q}`, names.Owner{Network: network, ID: id, IfName: "eth0"})
	}
	for name, content := range map[string]string{
		"live_eth0.json": owner(testNetwork, "live"), "dead_eth0.json": owner(testNetwork, "dead"),
		"dead_eth0.json.tmp": owner(testNetwork, "dead"), "dead_eth1.json": owner("other", "dead"),
		"dead_eth2.json": `{"mtu": 1}`, "dead_eth3.json": `{"mtu`, "dead_eth0.txt": owner(testNetwork, "dead"),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(defaultDataDir, name), []byte(content), 0o600))
	}
	conf := h.configWith("1.1.0", `, "cni.dev/valid-attachments": [{"containerID": "live", "ifname": "eth0"}]`)
	for range 2 {
		_, err := h.native("GC", conf)
		require.NoError(t, err)
		entries, err := os.ReadDir(defaultDataDir)
		require.NoError(t, err)
		var left []string
		for _, e := range entries {
			left = append(left, e.Name())
		}
		require.Equal(t, "dead_eth0.txt dead_eth1.json dead_eth2.json dead_eth3.json dir.json live_eth0.json", strings.Join(left, " "))
	}
	_, err := h.native("STATUS", conf)
	require.NoError(t, err)
}

// TestGCOfOwnBackups: GC removes the backups of an ADD, and succeeds without a
// directory.
func TestGCOfOwnBackups(t *testing.T) {
	h := newTestHost(t)
	h.add(everything)
	attachment := fmt.Sprintf(`[{"containerID": %q, "ifname": %q}]`, testContainer, testIfName)
	_, err := h.native("GC", h.configWith("1.1.0", `, "cni.dev/valid-attachments": `+attachment))
	require.NoError(t, err)
	require.Len(t, h.backups(), 1)
	for range 2 {
		_, err = h.native("GC", h.configWith("1.1.0", `, "cni.dev/valid-attachments": []`))
		require.NoError(t, err)
		require.Empty(t, h.backups())
		require.NoError(t, os.RemoveAll(defaultDataDir))
	}
}

// TestBackupIsReplacedAsAWhole: the previous backup stays complete until the
// new one is.
func TestBackupIsReplacedAsAWhole(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.json")
	require.NoError(t, os.WriteFile(file, []byte("before"), 0o600))
	require.NoError(t, os.Link(file, file+"-link"))
	require.NoError(t, (&backup{attributes: attributes{MTU: 1400}}).write(file))
	kept, err := os.ReadFile(file + "-link")
	require.NoError(t, err)
	require.Equal(t, "before", string(kept), "written in place")
	b, err := readBackup(file)
	require.NoError(t, err)
	require.Equal(t, &backup{attributes: attributes{MTU: 1400}}, b)
	_, err = os.Stat(file + draftSuffix)
	require.True(t, errors.Is(err, os.ErrNotExist))
}

// TestBackupsOfSimilarNames: attachments whose container IDs and interfaces have the same text together have
// backups of their own. Those of the reference plugin and of earlier versions are found.
func TestBackupsOfSimilarNames(t *testing.T) {
	p := &tuning{}
	p.Name, p.DataDir = "net", t.TempDir()
	one, other := &sdk.CmdArgs{ContainerID: "a", IfName: "b_c"}, &sdk.CmdArgs{ContainerID: "a_b", IfName: "c"}
	mac := func(c *sdk.CmdArgs) string {
		_, b, err := p.find(c)
		require.NoError(t, err)
		if b == nil {
			return ""
		}
		return b.MAC
	}
	put := func(file, owner, mac string) {
		b := &backup{Owner: owner}
		b.MAC = mac
		require.NoError(t, b.write(file))
	}
	put(filepath.Join(p.DataDir, "a_b_c.json"), "", "of the reference plugin")
	require.Equal(t, "of the reference plugin", mac(one))
	require.Equal(t, "of the reference plugin", mac(other))
	put(filepath.Join(p.DataDir, "a_b_c.json"), one.Owner("net").String(), "of an earlier version")
	require.Equal(t, "of an earlier version", mac(one))
	put(p.backupFile(other), other.Owner("net").String(), "other")
	require.Empty(t, mac(one))
	put(p.backupFile(one), one.Owner("net").String(), "one")
	require.Equal(t, "one", mac(one))
	require.Equal(t, "other", mac(other))
}
