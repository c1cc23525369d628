package packaging

import (
	"encoding/json"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// installed lists all files outside of the package database and caches.
const installed = `find /etc /opt /usr /run/allocnet -xdev 2>/dev/null | grep -v -e /etc/ld.so.cache -e __pycache__ | sort`

// packageFile returns the package of a release for this host.
func packageFile(dist, version string) string {
	return filepath.Join(dist, "allocnet_"+version+"-1_"+runtime.GOARCH+".deb")
}

// TestDeb installs the package under systemd, upgrades it over running
// allocations, removes it, installs it again, and purges it.
func TestDeb(t *testing.T) {
	requirePackageTest(t)
	dist, err := built()
	require.NoError(t, err)
	next, err := builtNext()
	require.NoError(t, err)
	m := boot(t)
	before := m.shell(installed)
	first, second := m.put(packageFile(dist, testVersion)), m.put(packageFile(next, nextVersion))

	m.run("dpkg", "-i", first)
	requireInstalled(m, testVersion)
	requireGroup(m)
	a := startAllocations(m)
	m.run("sed", "-i", `s/#level = "info"/level = "debug"/`, "/etc/allocnet/allocnetd.hcl")
	pid := m.run("systemctl", "show", "-P", "MainPID", "allocnetd.service")

	m.run("dpkg", "-i", second)
	require.NotEqual(t, pid, m.run("systemctl", "show", "-P", "MainPID", "allocnetd.service"))
	requireVersion(m, nextVersion)
	require.Contains(t, m.run("cat", "/etc/allocnet/allocnetd.hcl"), `level = "debug"`)
	require.Contains(t, m.run("dpkg", "-V", "allocnet"), "c /etc/allocnet/allocnetd.hcl", "only the settings differ")
	a.requireKept()
	m.run("allocnet", "check", "web")
	requirePage(m)

	// What the administrator stopped is not started by an upgrade.
	m.run("systemctl", "stop", "allocnetd.service", "allocnetd.socket")
	m.run("dpkg", "-i", second)
	require.Contains(t, m.try("systemctl", "is-active", "allocnetd.service"), "inactive")

	requireRemoved(m, a)
	m.run("dpkg", "-i", first) // a downgrade of what is not there any more
	requireVersion(m, testVersion)
	a.requireKept()
	m.run("allocnet", "teardown", "web", "--destroy")
	m.run("allocnet", "teardown", "own", "--destroy")
	m.shell(`CNI_COMMAND=DEL CNI_CONTAINERID=c1 CNI_IFNAME=eth0 CNI_NETNS=/run/netns/c1 CNI_PATH=/opt/cni/bin /opt/cni/bin/allocnet <<'END'
` + throughPlugin + `
END
ip netns delete c1`)
	m.run("allocnet", "cleanup", "--audit")
	require.Equal(t, "[]", m.run("allocnet", "ls", "--json"))

	m.run("dpkg", "--purge", "allocnet")
	m.shell("rm /etc/cni/net.d/10-bridged.conflist; mkdir -p /opt/cni /etc/cni /usr/lib/cni; find /opt/cni /etc/cni /usr/lib/cni -mindepth 1 -type d -empty -delete")
	// Debian keeps the groups of packages, because files may belong to them.
	known := map[string]bool{"/etc/group-": true, "/etc/gshadow-": true}
	for file := range strings.SplitSeq(before, "\n") {
		known[file] = true
	}
	for file := range strings.SplitSeq(m.shell(installed), "\n") {
		require.True(t, known[file], "%s is left", file)
	}
}

// requireInstalled checks that what the package installs works.
func requireInstalled(m *machine, version string) {
	m.t.Helper()
	require.Empty(m.t, m.run("dpkg", "-V", "allocnet"))
	require.Equal(m.t, "active\nactive", m.run("systemctl", "is-active", "allocnetd.socket", "allocnetd.service"))
	require.Equal(m.t, "enabled\nenabled", m.run("systemctl", "is-enabled", "allocnetd.socket", "allocnetd.service"))
	requireVersion(m, version)
	m.run("allocnetd", "validate", "/etc/allocnet/allocnetd.hcl")
	for _, page := range []string{"allocnet", "allocnet-setup", "allocnetd", "allocnet-plugins-shim"} {
		require.Contains(m.t, m.run("man", "-P", "cat", page), "NAME")
	}
	for _, link := range []string{"/opt/cni/bin/allocnet", "/usr/lib/cni/allocnet"} {
		require.Contains(m.t, m.shell(`echo '{"cniVersion":"1.1.0"}' | CNI_COMMAND=VERSION `+link), "supportedVersions")
	}
	m.run("bash", "-n", "/usr/share/bash-completion/completions/allocnet")
}

// requireVersion checks the versions that command line and daemon report.
func requireVersion(m *machine, version string) {
	m.t.Helper()
	for _, program := range []string{"allocnet", "allocnetd"} {
		var v struct{ Version string }
		require.NoError(m.t, json.Unmarshal([]byte(m.run(program, "version", "--json")), &v))
		require.Equal(m.t, "v"+version, v.Version, program)
	}
	require.Equal(m.t, "v"+version, m.shell(`allocnet status --json | jq -r .daemon.version`), "of the running daemon")
	require.Equal(m.t, "0", m.shell(`allocnet status --json | jq .doctor.errors`), "the rights of the unit suffice for the checks")
	exe := m.shell(`readlink /proc/$(systemctl show -P MainPID allocnetd.service)/exe`)
	require.Equal(m.t, "/usr/bin/allocnetd", exe, "and not a deleted file")
}

// requireGroup checks that the members of the package's group, and only they
// and root, reach the daemon.
func requireGroup(m *machine) {
	m.t.Helper()
	require.Equal(m.t, "root allocnet 660", m.run("stat", "-c", "%U %G %a", "/run/allocnet/allocnetd.sock"))
	m.run("setpriv", "--reuid", "nobody", "--regid", "allocnet", "--clear-groups", "allocnet", "ls")
	require.Contains(m.t, m.try("setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "allocnet", "ls"), "exit status 1")
}

// requirePage checks that the daemon serves the page, and has everything to fill it, with
// the restrictions of the unit.
func requirePage(m *machine) {
	m.t.Helper()
	m.run("sed", "-i", `s/#ui = ""/ui = "127.0.0.1:9654"/`, "/etc/allocnet/allocnetd.hcl")
	m.run("systemctl", "restart", "allocnetd.service")
	page, token, _ := strings.Cut(m.run("cat", "/run/allocnet/allocnetd.sock.url"), "/#token=")
	require.Contains(m.t, m.run("curl", "-sf", page), "<title>")
	ask := func(path string) string {
		return m.run("curl", "-sf", "-H", "Authorization: Bearer "+token, page+"/api/"+path)
	}
	for _, part := range []string{"state", "status", "leases", "latencies", "history", "doctor"} {
		require.True(m.t, json.Valid([]byte(ask(part))), part)
	}
	require.Contains(m.t, ask("state"), `"web"`)
}

// throughPlugin is a configuration with which a runtime calls the plugin.
const throughPlugin = `{"cniVersion": "1.1.0", "name": "runtime", "type": "allocnet"}`

// allocations are those that run while the package changes.
type allocations struct {
	m       *machine
	open    *conversation
	records string
	leases  string
	links   string
}

const (
	listRecords = `allocnet ls --json | jq -S 'map(del(.age))'`
	listLeases  = `cd / && find /run/cni/networks /run/allocnet/leases -type f | sort | while read -r f; do echo "$f $(tr -d '\r' <"$f" | tr '\n' ' ')"; done`
	// A process owns the table held, which ends with it.
	listLinks = `ip -o -d address show; for n in web own c1; do ip netns exec $n ip -o address show; ip netns exec $n ip route; done; nft list tables | grep -v _held`
)

// startAllocations sets up allocations by the command line and by a runtime's
// plugin call, with the conflist of the package, and a connection to one.
func startAllocations(m *machine) *allocations {
	m.t.Helper()
	m.shell(`mkdir -p /etc/cni/net.d; cp /usr/share/doc/allocnet/conflists/10-bridged.conflist /etc/cni/net.d/`)
	m.run("allocnet", "setup", "web", "--create", "--network", "bridged", "--port", "8080:80/tcp")
	m.run("allocnet", "setup", "own", "--create", "--network", "allocnet", "--port", "8081:81/tcp")
	m.shell("ip netns add c1; CNI_COMMAND=ADD CNI_CONTAINERID=c1 CNI_IFNAME=eth0 CNI_NETNS=/run/netns/c1 CNI_PATH=/opt/cni/bin /opt/cni/bin/allocnet <<'END'\n" + throughPlugin + "\nEND")
	m.run("systemd-run", "--quiet", "--collect", "--unit=web", "-p", "NetworkNamespacePath=/run/netns/web", "-E", helperMode+"=1", "-p", "Restart=on-failure", "helper", "serve", ":80")
	m.shell(`until ip netns exec web ss -Hltn | grep -q :80; do :; done`)
	a := &allocations{m: m, open: m.connect("127.0.0.1:8080")}
	a.open.say("before")
	a.records, a.leases, a.links = m.shell(listRecords), m.shell(listLeases), m.shell(listLinks)
	require.Contains(m.t, a.records, `"web"`)
	require.Contains(m.t, a.records, `"own"`)
	require.Equal(m.t, 6, strings.Count(a.leases, "eth0"), a.leases)
	return a
}

// requireKept checks that the allocations are as they were, with connections
// that were open.
func (a *allocations) requireKept() {
	a.m.t.Helper()
	a.requireNetworks()
	require.Equal(a.m.t, a.records, a.m.shell(listRecords))
}

func (a *allocations) requireNetworks() {
	a.m.t.Helper()
	a.open.say("kept")
	a.m.connect("127.0.0.1:8080").say("new")
	require.Equal(a.m.t, a.leases, a.m.shell(listLeases))
	require.Equal(a.m.t, a.links, a.m.shell(listLinks))
}

// requireRemoved removes the package, which is refused as long as its drop-in
// plugins are in use, and checks that allocations and settings stay.
func requireRemoved(m *machine, a *allocations) {
	m.t.Helper()
	m.run("allocnet", "plugins", "install", "/opt/cni/bin", "bridge")
	require.Contains(m.t, m.try("dpkg", "-r", "allocnet"), "still in use as plugins: /opt/cni/bin/bridge")
	m.run("allocnet", "version")
	m.run("allocnet", "plugins", "uninstall", "/opt/cni/bin")
	m.run("systemctl", "start", "allocnetd.socket", "allocnetd.service")
	m.run("dpkg", "-r", "allocnet")
	require.Contains(m.t, m.try("systemctl", "is-active", "allocnetd.service"), "inactive")
	require.Empty(m.t, m.shell("find /usr /opt -xdev -name '*allocnet*' ! -path '/usr/local/*' ! -path '*/packaging*' -path '*bin*'"))
	require.Contains(m.t, m.run("cat", "/etc/allocnet/allocnetd.hcl"), `level = "debug"`)
	a.requireNetworks()
}
