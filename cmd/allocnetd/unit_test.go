package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/unit"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

const units = "../../packaging/systemd/"

// section returns the values of a section of a unit file by option.
func section(t *testing.T, name, section string) map[string][]string {
	t.Helper()
	f, err := os.Open(units + name)
	require.NoError(t, err)
	defer f.Close()
	options, err := unit.DeserializeOptions(f)
	require.NoError(t, err)
	all := map[string][]string{}
	for _, o := range options {
		if o.Section == section {
			all[o.Name] = append(all[o.Name], o.Value)
		}
	}
	return all
}

func TestServiceUnit(t *testing.T) {
	s := section(t, "allocnetd.service", "Service")
	for option, want := range map[string][]string{
		"Type":                     {"notify"},
		"ExecReload":               {"/usr/bin/allocnetd reload $MAINPID"},
		"RestartPreventExitStatus": {strconv.Itoa(exitUsage)},
		"KillMode":                 {"process"},
		"RuntimeDirectory":         {"allocnet"},
		"RuntimeDirectoryPreserve": {"yes"},
		"NoNewPrivileges":          {"yes"},
		"LimitCORE":                {"0"},
		"OOMPolicy":                {"continue"},
	} {
		require.Equal(t, want, s[option], option)
	}
	for _, bound := range []string{"MemoryMax", "LimitNOFILE"} {
		require.Regexp(t, `^[1-9][0-9]*[KMG]?$`, strings.Join(s[bound], " "), bound)
	}
	require.Contains(t, s, "WatchdogSec")
	require.Equal(t, "/run/"+s["RuntimeDirectory"][0], settings.Default().StateDir)

	// With RestartSec between them, restarts must not exceed systemd's limit on starts.
	// A restart must include the socket unit.
	u := section(t, "allocnetd.service", "Unit")
	require.Equal(t, []string{"allocnetd.socket"}, u["PartOf"])
	interval, err := strconv.Atoi(u["StartLimitIntervalSec"][0])
	require.NoError(t, err)
	wait, err := strconv.Atoi(s["RestartSec"][0])
	require.NoError(t, err)
	const burst = 5 // systemd's default
	require.LessOrEqual(t, interval, burst*wait)
}

// TestServiceUnitSharesMounts checks that no option of the unit gives the service its
// own mount namespace: network namespaces are mounts that the host must see.
func TestServiceUnitSharesMounts(t *testing.T) {
	own := strings.Fields(`
		RootDirectory RootImage RootImageOptions RootEphemeral RootHash MountAPIVFS ProtectProc ProcSubset BindPaths
		BindReadOnlyPaths MountImages ExtensionImages ExtensionDirectories ProtectSystem ProtectHome ReadWritePaths
		ReadOnlyPaths InaccessiblePaths ExecPaths NoExecPaths TemporaryFileSystem PrivateTmp PrivateDevices PrivateNetwork
		NetworkNamespacePath PrivateIPC IPCNamespacePath PrivatePIDs PrivateUsers PrivateMounts ProtectHostname
		ProtectKernelTunables ProtectKernelModules ProtectKernelLogs ProtectControlGroups MountFlags DynamicUser LogNamespace`)
	for option := range section(t, "allocnetd.service", "Service") {
		require.False(t, slices.Contains(own, option), option)
	}
}

func TestSocketUnit(t *testing.T) {
	s := section(t, "allocnetd.socket", "Socket")
	require.Equal(t, []string{settings.Default().Socket.Path}, s["ListenStream"])
	require.Equal(t, []string{settings.Default().Values()["socket.mode"]}, []string{`"` + s["SocketMode"][0] + `"`})
	require.NotContains(t, s, "Accept")
}

// TestUnitsWithSystemd verifies the units with systemd, where it is installed.
func TestUnitsWithSystemd(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	skip.Unless(t, err == nil, "systemd-analyze: %v", err)
	dir := t.TempDir()
	program, err := os.Executable() // ExecStart must name an existing program
	require.NoError(t, err)
	for _, name := range []string{"allocnetd.service", "allocnetd.socket"} {
		data, err := os.ReadFile(units + name)
		require.NoError(t, err)
		text := strings.ReplaceAll(string(data), "/usr/bin/allocnetd", program)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	out, err := exec.Command(analyze, "verify", "--man=no", filepath.Join(dir, "allocnetd.service"), filepath.Join(dir, "allocnetd.socket")).CombinedOutput()
	require.NoError(t, err, string(out))
	var about []string // other units of the host may have errors
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "allocnetd") {
			about = append(about, line)
		}
	}
	require.Empty(t, about)
}

// TestServiceUnitRights runs a daemon and plugin binaries with the capabilities of the
// unit.
func TestServiceUnitRights(t *testing.T) {
	privhost.Require(t, "setpriv", "iptables", "nft")
	bounds := []string{"-all"}
	for _, line := range section(t, "allocnetd.service", "Service")["CapabilityBoundingSet"] {
		for _, capability := range strings.Fields(line) {
			bounds = append(bounds, "+"+strings.ToLower(strings.TrimPrefix(capability, "CAP_")))
		}
	}
	for _, engine := range []string{"exec", "native"} {
		t.Run(engine, func(t *testing.T) {
			w := newWorkspace(t)
			w.prefix = []string{"setpriv", "--bounding-set=" + strings.Join(bounds, ","), "--no-new-privs"}
			w.configure(embedded, `metrics { listen = "127.0.0.1:9653" }`)
			before := snapshot(t)
			p := w.start("--engine", engine, "--plugin-dirs", filepath.Dir(refplugins.Path(t, "bridge")), "--socket-group", w.otherGroup())
			w.allocate("a1")
			w.release("a1")
			p.stop()
			require.Empty(t, hostsnap.Diff(before, snapshot(t)))
		})
	}
}
