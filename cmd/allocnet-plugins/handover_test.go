package main

import (
	"errors"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/sandbox"
)

// layouts are changes of a chain, by the type of the plugin.
var layouts = map[string]map[string]object{
	"bridge": {},
	"ptp":    {"bridge": {"type": "ptp"}},
	"bridge, iptables": {
		"bridge": {"ipMasqBackend": "iptables"}, "portmap": {"backend": "iptables"}, "firewall": {"backend": "iptables"},
	},
	"ptp, iptables": {
		"bridge": {"type": "ptp", "ipMasqBackend": "iptables"}, "portmap": {"backend": "iptables"}, "firewall": {"backend": "iptables"},
	},
	"bridge, nftables": {"bridge": {"ipMasqBackend": "nftables"}, "portmap": {"backend": "nftables"}},
	"ptp, nftables":    {"bridge": {"type": "ptp", "ipMasqBackend": "nftables"}, "portmap": {"backend": "nftables"}},
	"options, iptables": {
		"bridge":   {"ipMasqBackend": "iptables", "macspoofchk": true},
		"portmap":  {"backend": "iptables", "masqAll": true, "markMasqBit": 7},
		"firewall": {"backend": "iptables", "ingressPolicy": "isolated"},
	},
	"options": {
		"bridge": {"macspoofchk": true, "hairpinMode": true}, "portmap": {"masqAll": true, "markMasqBit": 7},
		"firewall": {"ingressPolicy": "isolated"},
	},
}

// laidOut returns a chain with such changes.
func laidOut(t *testing.T, cniVersion string, changes map[string]object) *libcni.NetworkConfigList {
	plugins := []object{{"type": "loopback"}}
	for _, p := range append([]object{bridged(t.TempDir()), aFirewall}, rest...) {
		one := maps.Clone(p)
		if one["type"] == "tuning" {
			one["dataDir"] = t.TempDir()
		}
		maps.Copy(one, changes[p["type"].(string)])
		if one["type"] == "ptp" {
			delete(one, "bridge")
			delete(one, "isGateway")
		}
		plugins = append(plugins, one)
	}
	return network(t, cniVersion, plugins...)
}

// handover is an attachment that plugins of one directory create and those of
// another one take over.
type handover struct {
	list     *libcni.NetworkConfigList
	of       *libcni.RuntimeConf
	sandbox  *sandbox.Sandbox
	old, new *libcni.CNIConfig
}

func newHandover(t *testing.T, list *libcni.NetworkConfigList, from, to string) *handover {
	t.Helper()
	s, err := sandbox.Create("web")
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Destroy() }) // needed only after a failure
	cacheDir := t.TempDir()
	h := &handover{list, attachment("web", s.Path()), s, runtimeOn(cacheDir, from), runtimeOn(cacheDir, to)}
	quick := func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0) }
	require.NoError(t, errors.Join(quick(), s.Do(quick)))
	serveGreeting(t, s)
	_, err = h.old.AddNetworkList(t.Context(), list, h.of)
	require.NoError(t, err)
	require.NoError(t, h.old.CheckNetworkList(t.Context(), list, h.of))
	requireGreeting(t)
	return h
}

// serveGreeting starts a server behind the host port.
func serveGreeting(t *testing.T, s *sandbox.Sandbox) {
	t.Helper()
	var listener net.Listener
	require.NoError(t, s.Do(func() (err error) {
		listener, err = net.Listen("tcp", ":80")
		return err
	}))
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("hello"))
			conn.Close()
		}
	}()
}

func requireGreeting(t *testing.T) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", "127.0.0.1:8080", 10*time.Second)
	require.NoError(t, err)
	defer conn.Close()
	greeting := make([]byte, 5)
	_, err = conn.Read(greeting)
	require.NoError(t, err)
	require.Equal(t, "hello", string(greeting))
}

// requireNothing checks that nothing of an attachment is left, after its
// namespace was destroyed.
func (h *handover) requireNothing(t *testing.T, before hostsnap.Snapshot) {
	t.Helper()
	_ = h.sandbox.Destroy()
	after, err := hostsnap.Take(hostsnap.Options{Persistent: true})
	require.NoError(t, err)
	require.Empty(t, hostsnap.Diff(before, after))
	_, err = net.DialTimeout("tcp", "127.0.0.1:8080", 10*time.Second)
	require.Error(t, err)
}

func snapshot(t *testing.T) hostsnap.Snapshot {
	t.Helper()
	privhost.Require(t, "iptables", "ip6tables", "nft")
	taken, err := hostsnap.Take(hostsnap.Options{})
	require.NoError(t, err)
	return taken
}

// TestTakeOver: allocnet's plugins accept attachments of the reference plugins
// as healthy. The attachments keep working, and allocnet's DEL removes them,
// with every backend, and also without the namespace.
func TestTakeOver(t *testing.T) {
	for i, name := range slices.Sorted(maps.Keys(layouts)) {
		changes := layouts[name]
		t.Run(name, func(t *testing.T) {
			skip.InTurn(t, i, 8)
			takeOver(t, "1.1.0", changes)
			takeOverGone(t, changes, "")
		})
	}
	t.Run("old version", func(t *testing.T) { takeOver(t, "0.4.0", layouts["bridge"]) })
	t.Run("namespace named", func(t *testing.T) { takeOverGone(t, layouts["bridge"], "/run/netns/web") })
}

func takeOver(t *testing.T, cniVersion string, changes map[string]object) {
	before := snapshot(t)
	h := newHandover(t, laidOut(t, cniVersion, changes), reference, links)
	require.NoError(t, h.new.CheckNetworkList(t.Context(), h.list, h.of))
	require.NoError(t, h.new.DelNetworkList(t.Context(), h.list, h.of))
	require.NoError(t, h.new.DelNetworkList(t.Context(), h.list, h.of), "again")
	h.requireNothing(t, before)
}

// takeOverGone runs DEL with the path of a namespace that was unmounted, while
// a process keeps the namespace.
func takeOverGone(t *testing.T, changes map[string]object, netns string) {
	before := snapshot(t)
	h := newHandover(t, laidOut(t, "1.0.0", changes), reference, links)
	require.NoError(t, h.sandbox.Destroy())
	h.of.NetNS = netns
	require.NoError(t, h.new.DelNetworkList(t.Context(), h.list, h.of))
	h.requireNothing(t, before)
}

// TestTakeOverOfTheDamaged: CHECK reports what is missing in the reference
// plugins' layout.
func TestTakeOverOfTheDamaged(t *testing.T) {
	for what, damage := range map[string]struct{ command, finding string }{
		"host port": {"iptables -t nat -F CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-DNAT"},
		"accept":    {"ip6tables -D CNI-FORWARD -s fd00:9::2/128 -j ACCEPT", "CNI-FORWARD -s fd00:9::2/128"},
	} {
		t.Run(what, func(t *testing.T) {
			before := snapshot(t)
			h := newHandover(t, laidOut(t, "1.0.0", nil), reference, links)
			args := strings.Fields(damage.command)
			out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
			require.NoError(t, err, string(out))
			require.ErrorContains(t, h.new.CheckNetworkList(t.Context(), h.list, h.of), damage.finding)
			require.NoError(t, h.new.DelNetworkList(t.Context(), h.list, h.of))
			h.requireNothing(t, before)
		})
	}
}

// TestHandBack: the reference plugins accept and remove attachments that
// allocnet's plugins made with a named backend. They leave the elements of the
// source guard, which they do not know. A DEL of allocnet's plugins removes them.
func TestHandBack(t *testing.T) {
	for i, name := range slices.Sorted(maps.Keys(layouts)) {
		if !strings.Contains(name, "tables") {
			continue // see TestUninstallKeepsWhatOthersDoNotRemove of the command allocnet
		}
		changes := layouts[name]
		t.Run(name, func(t *testing.T) {
			skip.InTurn(t, i, 2)
			changes := maps.Clone(changes)
			changes["firewall"] = merged(object{"backend": "iptables"}, changes["firewall"])
			before := snapshot(t)
			h := newHandover(t, laidOut(t, "1.0.0", changes), links, reference)
			require.NoError(t, h.new.CheckNetworkList(t.Context(), h.list, h.of))
			require.NoError(t, h.new.DelNetworkList(t.Context(), h.list, h.of))
			require.NoError(t, h.sandbox.Destroy())
			after, err := hostsnap.Take(hostsnap.Options{Persistent: true})
			require.NoError(t, err)
			for line := range strings.Lines(hostsnap.Diff(before, after)) {
				require.Regexp(t, `^\+nft (set|element) bridge allocnet port_`, line)
			}
			require.NoError(t, h.old.DelNetworkList(t.Context(), h.list, h.of))
			h.requireNothing(t, before)
		})
	}
}
