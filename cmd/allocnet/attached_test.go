package main

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/cmd/internal/pluginfiles"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/programs"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
	"github.com/allocnet/allocnet/sandbox"
)

const published = `{"cniVersion": "1.0.0", "name": "net", "plugins": [
	{"type": "bridge", "bridge": "brattached", "isGateway": true, "ipMasq": true,
	 "ipam": {"type": "host-local", "subnet": "10.96.0.0/24"}},
	{"type": "firewall"}, {"type": "portmap", "capabilities": {"portMappings": true}}]}`

// runtimeOf returns a runtime whose plugin directory contained the reference
// plugins, which allocnet's plugins replaced.
func runtimeOf(t *testing.T) (*pluginDir, *libcni.CNIConfig, *libcni.NetworkConfigList) {
	t.Helper()
	privhost.Require(t, "iptables", "ip6tables")
	t.Cleanup(func() {
		if link, err := netlink.LinkByName("brattached"); err == nil {
			require.NoError(t, netlink.LinkDel(link))
		}
	})
	p := newPluginDir(t)
	for _, name := range []string{"bridge", "firewall", "host-local", "portmap"} {
		reference, err := os.ReadFile(refplugins.Path(t, name))
		require.NoError(t, err)
		p.write(name, string(reference))
	}
	p.program = programs.Path(t, pluginfiles.ProgramName)
	p.run("install", "--force").ok(t)
	list, err := libcni.NetworkConfFromBytes([]byte(published))
	require.NoError(t, err)
	return p, libcni.NewCNIConfigWithCacheDir([]string{p.dir}, t.TempDir(), &pluginexec.Exec{}), list
}

// web returns a container with a host port.
func web(t *testing.T) *libcni.RuntimeConf {
	t.Helper()
	s, err := sandbox.Create("web")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Destroy()) })
	return &libcni.RuntimeConf{ContainerID: "web", NetNS: s.Path(), IfName: "eth0", CapabilityArgs: map[string]any{
		"portMappings": []map[string]any{{"hostPort": 8096, "containerPort": 80, "protocol": "tcp"}},
	}}
}

// TestUninstallKeepsWhatOthersDoNotRemove: while attachments have elements, the
// plugins that remove them stay installed.
func TestUninstallKeepsWhatOthersDoNotRemove(t *testing.T) {
	p, cni, list := runtimeOf(t)
	web := web(t)
	before, err := hostsnap.Take(hostsnap.Options{})
	require.NoError(t, err)
	_, err = cni.AddNetworkList(t.Context(), list, web)
	require.NoError(t, err)
	entries := p.entries()
	failed := p.run("uninstall", "--json").failure(t, exitFailure)
	require.Equal(t, "set-up", failed.Kind)
	require.Contains(t, failed.Error, "net/web/eth0")
	require.Contains(t, failed.Hint, "--force")
	for _, name := range []string{"bridge", "firewall", "flannel", "portmap", "ptp", "routes"} {
		require.Equal(t, "set-up", p.run("uninstall", name, "--json").failure(t, exitFailure).Kind, name)
	}
	require.Equal(t, entries, p.entries())
	p.run("uninstall", "loopback").ok(t)

	require.NoError(t, cni.DelNetworkList(t.Context(), list, web))
	p.run("uninstall").ok(t)
	after, err := hostsnap.Take(hostsnap.Options{Persistent: true})
	require.NoError(t, err)
	require.Empty(t, hostsnap.Diff(before, after))
}

// TestUninstallByForce uninstalls by force, and then removes what the reference
// plugins leave.
func TestUninstallByForce(t *testing.T) {
	p, cni, list := runtimeOf(t)
	web := web(t)
	_, err := cni.AddNetworkList(t.Context(), list, web)
	require.NoError(t, err)
	p.run("uninstall", "--force").ok(t)
	require.NoError(t, cni.DelNetworkList(t.Context(), list, web))
	require.Contains(t, strings.Join(elements(t, "web"), "\n"), "host port 8096/tcp", "the reference plugin does not know it")
	runWith("", "cleanup", "--force", "web", "--no-daemon").ok(t)
	require.Empty(t, elements(t, "web"))
}

// TestUninstallBesideRecords: elements of allocations with a record do not
// prevent an uninstall.
func TestUninstallBesideRecords(t *testing.T) {
	p, _, _ := runtimeOf(t)
	rules, err := ruleset.Open()
	require.NoError(t, err)
	defer rules.Close()
	owner := names.Owner{Network: "net", ID: "c1", IfName: "eth0"}
	require.NoError(t, rules.Add(t.Context(), &ruleset.Elements{Owner: owner, Open: []netip.Addr{netip.MustParseAddr("10.96.0.9")}}))
	store := record.Open(names.DefaultStateDir)
	require.NoError(t, store.Put(&record.Record{Version: record.Version, ID: "c1.eth0", ContainerID: "c1", Netns: "/run/netns/c1",
		Phase: record.Ready, Attachments: []record.Attachment{{Network: "net", IfName: "eth0"}}}))
	p.run("uninstall").ok(t)
	require.NoError(t, os.Remove(filepath.Join(names.DefaultStateDir, "allocs", "c1.eth0.json")))
	p.run("install", "--force").ok(t)
	p.run("uninstall").failureWith(t, exitFailure, "net/c1/eth0")
	require.NoError(t, rules.DelOwned(t.Context(), func(names.Owner) bool { return true }))
	p.run("uninstall").ok(t)
}

func elements(t *testing.T, id string) []string {
	t.Helper()
	rules, err := ruleset.Open()
	require.NoError(t, err)
	defer rules.Close()
	list, err := rules.Owned(t.Context(), func(o names.Owner) bool { return o.OfID(id) })
	require.NoError(t, err)
	return list
}
