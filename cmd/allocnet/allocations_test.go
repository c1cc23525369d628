package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

func TestLifeOfAnAllocation(t *testing.T) {
	w := newWorkspace(t)
	s := w.sandbox("web")

	status := decode[configurator.Status](t, w.run("setup", "web", "--json", "--port", "http=127.0.0.1:8080:80/tcp").ok(t))
	require.Equal(t, "eth0", status.InterfaceName)
	require.Equal(t, "10.9.0.2", status.Address)
	require.Equal(t, "fd00:9::2", status.AddressIPv6)
	mapping := portmap.Mapping{Label: "http", HostPort: 8080, ContainerPort: 80, Protocol: "tcp", HostIP: "127.0.0.1"}
	require.Equal(t, []portmap.Mapping{mapping}, status.Ports)

	require.Regexp(t, `(?m)^ID +PHASE +NETWORKS +ENGINE +ADDRESS +PORTS +AGE$\n^web +ready +front +exec +10\.9\.0\.2, fd00:9::2 +127\.0\.0\.1:8080->80/tcp +\d+s$`,
		w.run("ls").ok(t))
	list := decode[[]configurator.Record](t, w.run("ls", "--json").ok(t))
	require.Len(t, list, 1)
	require.Equal(t, "web", list[0].ID)
	record := decode[configurator.Record](t, w.run("inspect", "web", "--json").ok(t))
	require.Equal(t, "/run/netns/web", record.Netns)
	require.Equal(t, "front", record.Networks[0].Network)

	require.JSONEq(t, `{"id": "web", "healthy": true}`, w.run("check", "web", "--json").ok(t))
	require.Equal(t, "ok: web is healthy\n", w.run("check", "web").ok(t))
	require.Equal(t, "ok: web is torn down\n", w.run("teardown", "web", "--destroy").ok(t))
	require.ErrorIs(t, sandbox.Validate(s.Path()), sandbox.ErrNotExist)
	require.JSONEq(t, "[]", w.run("ls", "--json").ok(t))
	require.Equal(t, []string{"fake ADD", "fake CHECK", "fake CHECK", "fake DEL"}, w.commands())
}

func TestSetupText(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("web")
	require.Equal(t, `ok: web is set up

INTERFACE  NETWORK  ADDRESSES                  GATEWAYS  MAC
eth0       front    10.9.0.2/24, fd00:9::2/64  -         -

HOST PORT  PORT  PROTOCOL  LABEL
53         53    tcp+udp   -
`, w.run("setup", "web", "-p", "53").ok(t))
	require.Regexp(t, "^ok: web is set up already\n", w.run("setup", "web", "-p", "53").ok(t))
	text := w.run("inspect", "web").ok(t)
	require.Regexp(t, `(?m)^ID +web$\n^Phase +ready$\n^Namespace +/run/netns/web$`, text)
	require.Contains(t, text, "HOST PORT")
	w.run("teardown", "web").ok(t)
}

// TestSetupArguments checks what the plugin gets.
func TestSetupArguments(t *testing.T) {
	w := newWorkspace(t)
	s := w.sandbox("web")
	w.run("setup", "web", "--netns", s.Path(), "--network", "back", "--arg", "K=V", "--arg", "A=B", "--ip", "10.9.1.2",
		"--mac", "02:00:00:00:00:01", "--dns-server", "10.9.1.53", "--dns-search", "a,b", "--bandwidth", "egress=1k").ok(t)
	calls, err := fakeplugin.Calls(w.path("log"))
	require.NoError(t, err)
	require.Equal(t, "IgnoreUnknown=true;A=B;K=V", calls[0].Args)
	var namespace unix.Stat_t
	require.NoError(t, unix.Stat("/run/netns/web", &namespace))
	require.Equal(t, namespace.Ino, calls[0].Inode)
	config := decodeLoosely[struct{ RuntimeConfig map[string]any }](t, calls[0].Stdin)
	require.Equal(t, map[string]any{
		"ips": []any{"10.9.1.2"}, "mac": "02:00:00:00:00:01",
		"dns":       map[string]any{"servers": []any{"10.9.1.53"}, "searches": []any{"a", "b"}},
		"bandwidth": map[string]any{"egressRate": 1000., "egressBurst": 1000.},
	}, config.RuntimeConfig)
}

// TestSetupBesideAListener: the warning says what the host's listener loses.
func TestSetupBesideAListener(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("web")
	l, err := net.Listen("tcp4", "127.0.0.1:7400")
	require.NoError(t, err)
	defer l.Close()
	require.Regexp(t, `\n\nwarning: host port 7400/tcp: a process of the host \(user \d+\) listens on 127\.0\.0\.1:7400; [^\n]*\n$`,
		w.run("setup", "web", "-p", "7400").ok(t))
	w.run("teardown", "web").ok(t)
	require.Len(t, decode[configurator.Status](t, w.run("setup", "web", "-p", "7400", "--json").ok(t)).Warnings, 1)
}

// TestSetupWarnsOnce: a warning in the status is not logged as well.
func TestSetupWarnsOnce(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("web")
	l, err := net.Listen("tcp4", "127.0.0.1:7401")
	require.NoError(t, err)
	defer l.Close()
	for _, args := range [][]string{{"-p", "7401"}, {"-p", "7401", "--json"}} {
		got := w.run(append([]string{"setup", "web"}, args...)...)
		require.Equal(t, 1, strings.Count(got.ok(t), "listens on 127.0.0.1:7401"))
		require.Empty(t, got.errOut)
		w.run("teardown", "web").ok(t)
	}
}

// TestSetupOfANewOne: --new does not change an existing allocation.
func TestSetupOfANewOne(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("web")
	require.True(t, decode[configurator.Status](t, w.run("setup", "web", "--new", "--json").ok(t)).Created)
	failure := w.run("setup", "web", "--new", "--json").failure(t, exitFailure)
	require.Equal(t, "already-exists", failure.Kind)
	require.Contains(t, failure.Hint, "allocnet inspect web")
	require.Equal(t, []string{"fake ADD"}, w.commands())
	require.False(t, decode[configurator.Status](t, w.run("setup", "web", "--json").ok(t)).Created)
}

func TestTeardownDestroysTheRecordedNamespace(t *testing.T) {
	w := newWorkspace(t)
	s := w.sandbox("elsewhere")
	w.run("setup", "web", "--netns", s.Path()).ok(t)
	w.run("teardown", "web", "--destroy").ok(t)
	require.NoFileExists(t, s.Path())
}

func TestPluginErrorKeepsItsCode(t *testing.T) {
	w := newWorkspace(t)
	w.network("10-front", "front", map[string]fakeplugin.Behaviour{"ADD": {Code: 7, Msg: "bad subnet"}})
	w.sandbox("web")
	report := w.run("setup", "web", "--json").failure(t, exitFailure)
	require.Equal(t, uint(7), report.Code)
	require.Contains(t, report.Error, "bad subnet")
	require.Contains(t, w.run("setup", "web").errOut, "error: ")
}

func TestNotFoundAndUnhealthy(t *testing.T) {
	w := newWorkspace(t)
	for _, command := range []string{"inspect", "check"} {
		report := w.run(command, "nobody", "--json").failure(t, exitNo)
		require.Contains(t, report.Error, "allocation not found")
		require.Contains(t, report.Hint, "allocnet ls")
	}
	s := w.sandbox("web")
	w.run("setup", "web").ok(t)
	require.NoError(t, s.Do(func() error { return removeInterface("eth0") }))
	got := w.run("check", "web", "--json")
	require.Contains(t, got.failure(t, exitNo).Hint, "allocnet setup")
	require.JSONEq(t, `{"id": "web", "healthy": false}`, got.out)

	require.NoError(t, sandbox.Destroy(s.Path()))
	require.Contains(t, w.run("check", "web", "--json").failure(t, exitNo).Hint, "allocnet teardown")
	w.run("teardown", "web").ok(t)
}

func TestPortConflict(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("a")
	w.sandbox("b")
	w.run("setup", "a", "--port", "80").ok(t)
	report := w.run("setup", "b", "--port", "80", "--json").failure(t, exitFailure)
	require.Equal(t, "choose another host port, or free it: `allocnet unpublish a PORT` or `allocnet teardown a`", report.Hint)
}

// TestUnserved: ports that no plugin publishes are refused, or not shown as published.
func TestUnserved(t *testing.T) {
	w := newWorkspace(t)
	text, err := os.ReadFile(w.path("conf/10-front.conflist"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(w.path("conf/10-front.conflist"), []byte(strings.Replace(string(text), `"portMappings":true`, `"portMappings":false`, 1)), 0o600))
	w.sandbox("web")
	w.sandbox("db")
	report := w.run("setup", "web", "--port", "9000:80/tcp", "--json").failure(t, exitUsage)
	require.Equal(t, "unserved", report.Kind)
	require.Contains(t, report.Error, `no plugin of network "front" declares portMappings`)
	require.Contains(t, report.Hint, "--allow-unserved")
	require.Empty(t, w.commands())
	without := w.run("setup", "web", "--port", "9000:80/tcp", "--allow-unserved")
	require.Contains(t, without.ok(t), "not served: portMappings\n")
	require.Empty(t, without.errOut)
	w.run("setup", "db").ok(t)
	require.Regexp(t, `(?m)^ID +PHASE +NETWORKS +ENGINE +ADDRESS +PORTS +AGE +NOT SERVED$\n^db .* - +\d+s +-$\n^web .* - +\d+s +portMappings$`, w.run("ls").ok(t))
	inspected := w.run("inspect", "web").ok(t)
	require.Contains(t, inspected, "not served: portMappings\n")
	require.NotContains(t, inspected, "HOST PORT")
	require.Equal(t, "ok: web is healthy\n\nnot served: portMappings\n", w.run("check", "web").ok(t))
	require.JSONEq(t, `{"id": "web", "healthy": true, "unserved": ["portMappings"]}`, w.run("check", "web", "--json").ok(t))
	w.run("teardown", "web").ok(t)
	w.run("teardown", "db").ok(t)
}

func TestLsShowsWhatCanBeRead(t *testing.T) {
	w := newWorkspace(t)
	w.sandbox("web")
	w.run("setup", "web").ok(t)
	records, err := filepath.Glob(w.path("state/*/web*"))
	require.NoError(t, err)
	require.Len(t, records, 1)
	broken := filepath.Join(filepath.Dir(records[0]), "broken"+filepath.Ext(records[0]))
	require.NoError(t, os.WriteFile(broken, []byte("{"), 0o600))

	got := w.run("ls", "--json")
	report := got.failure(t, exitFailure)
	require.Equal(t, 1, strings.Count(report.Error, `record of allocation "broken"`), report.Error)
	require.Equal(t, "unreadable-record", report.Kind)
	require.Contains(t, report.Hint, "if the owner or the mode of "+broken+" is wrong, correct it (chown root, chmod go-w); if it is damaged, `allocnet teardown broken --netns PATH`")
	for _, args := range [][]string{{"gc", "--live", "web"}, {"gc", "--live", "web,broken"}, {"gc", "--live", "web", "--dry-run"}} {
		report = w.run(append(args, "--json")...).failure(t, exitFailure)
		require.Equal(t, 1, strings.Count(report.Error, `record of allocation "broken"`), report.Error)
		require.Contains(t, report.Hint, broken)
	}
	require.Len(t, decode[[]configurator.Record](t, got.out), 1)

	w.run("teardown", "web").ok(t)
	got = w.run("ls")
	require.Equal(t, exitFailure, got.code)
	require.Empty(t, got.out, "no table of nothing")
}

func TestLsOfNothing(t *testing.T) {
	got := newWorkspace(t).run("ls")
	require.Empty(t, got.ok(t))
	require.Contains(t, got.errOut, "nothing is set up")
}

func removeInterface(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkDel(link)
}

func decodeLoosely[T any](t *testing.T, data []byte) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal(data, &v))
	return v
}
