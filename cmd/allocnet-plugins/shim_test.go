package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/dropin"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/sandbox"
)

// requireShim skips a test of the shim while the links lead to the program.
func requireShim(t *testing.T) {
	t.Helper()
	privhost.Require(t, "iptables", "ip6tables")
	if running == nil {
		skip.LeaveTo(t, "the process whose links lead to the shim")
	}
}

// withoutProgram returns links to a shim without the program beside it. Only the daemon
// can serve their calls. With a script, that is the program.
func withoutProgram(t *testing.T, script string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	data, err := os.ReadFile(filepath.Join(built, sdk.Shim))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, sdk.Shim), data, 0o755))
	for _, name := range []string{"bridge", "host-local", "firewall", "portmap", "loopback"} {
		require.NoError(t, os.Symlink(sdk.Shim, filepath.Join(dir, name)))
	}
	if script != "" {
		require.NoError(t, os.WriteFile(filepath.Join(dir, sdk.Program), []byte("#!/bin/sh\n"+script), 0o755))
	}
	return dir
}

// pause stops the daemon until the end of the test, or until the returned function is
// called.
func pause(t *testing.T) (resume func()) {
	t.Helper()
	require.NoError(t, running.stop())
	stopped := true
	resume = func() {
		if stopped {
			var err error
			running, err = startDaemon()
			require.NoError(t, err)
			stopped = false
		}
	}
	t.Cleanup(resume)
	return resume
}

// published is a chain with a host port.
func published(t *testing.T) *libcni.NetworkConfigList {
	return network(t, "1.1.0", object{"type": "loopback"}, bridged(t.TempDir()), aFirewall, rest[0])
}

// TestShimServes: with a daemon, the shim does not need the program.
func TestShimServes(t *testing.T) {
	requireShim(t)
	list, a, before := published(t), attachment("web", ""), snapshot(t)
	s, err := sandbox.Create("web")
	require.NoError(t, err)
	a.NetNS = s.Path()
	serveGreeting(t, s)
	cni := runtime(t, withoutProgram(t, ""))
	result, err := cni.AddNetworkList(t.Context(), list, a)
	require.NoError(t, err)
	requireAddress(t, s, result)
	requireGreeting(t)
	require.NoError(t, cni.CheckNetworkList(t.Context(), list, a))
	require.NoError(t, cni.GetStatusNetworkList(t.Context(), list))
	require.NoError(t, cni.DelNetworkList(t.Context(), list, a))
	require.NoError(t, cni.DelNetworkList(t.Context(), list, a), "again")
	require.NoError(t, cni.GCNetworkList(t.Context(), list, &libcni.GCArgs{}))
	(&handover{sandbox: s}).requireNothing(t, before)
}

// TestDaemonStopsAndStarts: the program removes what the daemon has set up, and the
// daemon what the program has.
func TestDaemonStopsAndStarts(t *testing.T) {
	requireShim(t)
	both := withoutProgram(t, "")
	require.NoError(t, os.Symlink(filepath.Join(built, sdk.Program), filepath.Join(both, sdk.Program)))
	for name, gone := range map[string]bool{"namespace": false, "no namespace": true} {
		t.Run(name, func(t *testing.T) {
			list := published(t)
			pause(t)() // a start removes exemptions from masquerading that earlier tests left
			with := snapshot(t)
			resume := pause(t)
			without := snapshot(t)
			resume()
			h := newHandover(t, list, withoutProgram(t, ""), both)
			resume = pause(t)
			handedOver(t, h, gone)
			h.requireNothing(t, without)

			h = newHandover(t, list, both, withoutProgram(t, ""))
			resume()
			handedOver(t, h, gone)
			h.requireNothing(t, with)
		})
	}
}

// handedOver runs CHECK and DEL of the plugins that take over.
func handedOver(t *testing.T, h *handover, gone bool) {
	t.Helper()
	require.NoError(t, h.new.CheckNetworkList(t.Context(), h.list, h.of))
	if gone {
		require.NoError(t, h.sandbox.Destroy())
	}
	require.NoError(t, h.new.DelNetworkList(t.Context(), h.list, h.of))
}

// TestFailuresWithoutDaemon: the answer to a failing call is the same with and without a
// daemon.
func TestFailuresWithoutDaemon(t *testing.T) {
	requireShim(t)
	answers := func() (all []answer) {
		for i, test := range failures {
			netns := namespace(t, fmt.Sprintf("same-%d", i))
			all = append(all, call(t, links, test.plugin, test.conf, changed(test.command, links, netns, test.env)...))
			removeLinks(t)
			require.NoError(t, sandbox.Destroy(netns))
		}
		return all
	}
	with := answers()
	pause(t)
	for i, got := range answers() {
		require.Equal(t, got, with[i], failures[i].name)
	}
}

// scripted is a daemon that answers every call with a text, a string.
func scripted(t *testing.T, text *atomic.Value) (calls chan *http.Request) {
	t.Helper()
	calls = make(chan *http.Request, 100)
	l, err := net.Listen("unix", client.DefaultSocket)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if r, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				body, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(strings.NewReader(string(body)))
				calls <- r
				answer := text.Load().(string)
				_, _ = io.WriteString(conn, answer)
				if answer == hung {
					_, _ = conn.Read(make([]byte, 1)) // until the shim gives up
				}
			}
			conn.Close()
		}
	}()
	return calls
}

// always is the text of a daemon that gives one answer.
func always(text string) *atomic.Value {
	v := new(atomic.Value)
	v.Store(text)
	return v
}

const (
	hung     = "HTTP/1.1 102 Processing\r\n\r\n\r\n"
	executed = "executed %s "
	lost     = `{"cniVersion":"1.0.0","code":11,"msg":"allocnet-plugins-shim cannot go on","details":"call allocnetd: its answer is lost"}` + "\n"
	busy     = `{"cniVersion":"1.0.0","code":11,"msg":"allocnet-plugins-shim cannot go on","details":"call allocnetd: it is busy"}` + "\n"
)

// TestShimAnswers has a daemon with valid answers, with none, and with broken ones.
func TestShimAnswers(t *testing.T) {
	requireShim(t)
	pause(t)
	dir := withoutProgram(t, `printf 'executed %s ' $CNI_COMMAND; cat`)
	var text atomic.Value
	scripted(t, &text)
	run := func(command string) answer {
		return call(t, dir, "bridge", conf, changed(command, dir, "/run/netns/gone", nil)...)
	}
	whole := "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nAllocnet-Exit-Status: %d\r\n\r\n{\"a\":1}"
	for name, test := range map[string]struct {
		text     string
		add, del answer
	}{
		"result":     {fmt.Sprintf(whole, 0), answer{0, `{"a":1}`, ""}, answer{0, `{"a":1}`, ""}},
		"error":      {fmt.Sprintf(whole, 1), answer{1, `{"a":1}`, ""}, answer{1, `{"a":1}`, ""}},
		"nothing":    {"HTTP/1.1 204 No Content\r\nDate: x\r\n\r\n", answer{}, answer{}},
		"warnings":   {"HTTP/1.1 204 No Content\r\nAllocnet-Stderr: a \"b\"\r\nAllocnet-Stderr: c\r\n\r\n", answer{stderr: "a \"b\"\nc\n"}, answer{stderr: "a \"b\"\nc\n"}},
		"keepalives": {strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 9) + fmt.Sprintf(whole, 0), answer{0, `{"a":1}`, ""}, answer{0, `{"a":1}`, ""}},
		"not served": {"HTTP/1.1 421 Misdirected Request\r\n\r\n", ran("ADD"), ran("DEL")},
		"forbidden":  {"HTTP/1.1 403 Forbidden\r\n\r\n", ran("ADD"), ran("DEL")},
		"too old":    {"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", ran("ADD"), ran("DEL")},
		"busy":       {"HTTP/1.1 429 Too Many Requests\r\n\r\n", answer{1, busy, ""}, answer{1, busy, ""}},
		"waited":     {"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 504 Gateway Timeout\r\n\r\n", answer{1, busy, ""}, answer{1, busy, ""}},

		"fault":           {"HTTP/1.1 500 Internal Server Error\r\n\r\n", answer{1, lost, ""}, ran("DEL")},
		"silence":         {"", answer{1, lost, ""}, ran("DEL")},
		"keepalive only":  {"HTTP/1.1 102 Processing\r\n\r\n", answer{1, lost, ""}, ran("DEL")},
		"another server":  {"SSH-2.0-x\r\n\r\n\r\n", answer{1, lost, ""}, ran("DEL")},
		"half a header":   {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n", answer{1, lost, ""}, ran("DEL")},
		"half a body":     {strings.TrimSuffix(fmt.Sprintf(whole, 0), "}"), answer{1, lost, ""}, ran("DEL")},
		"too long a body": {fmt.Sprintf(whole, 0) + "x", answer{1, lost, ""}, ran("DEL")},
		"no length":       {"HTTP/1.1 200 OK\r\nAllocnet-Exit-Status: 0\r\n\r\nContent-Length: 0\r\n\r\n", answer{1, lost, ""}, ran("DEL")},
		"no exit status":  {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", answer{1, lost, ""}, ran("DEL")},
		"bad exit status": {fmt.Sprintf(whole, 2), answer{1, lost, ""}, ran("DEL")},
		"endless":         {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 2<<20), answer{1, lost, ""}, ran("DEL")},
	} {
		t.Run(name, func(t *testing.T) {
			text.Store(test.text)
			require.Equal(t, test.add, run("ADD"))
			require.Equal(t, test.del, run("DEL"))
		})
	}
}

// TestShimGivesUp has a daemon that stops answering.
func TestShimGivesUp(t *testing.T) {
	requireShim(t)
	pause(t)
	dir := withoutProgram(t, `printf 'executed %s ' $CNI_COMMAND; cat`)
	scripted(t, always(hung))
	for command, want := range map[string]answer{"ADD": {1, lost, ""}, "CHECK": ran("CHECK")} {
		require.Equal(t, want, call(t, dir, "bridge", conf, changed(command, dir, "/run/netns/gone", nil)...))
	}
}

// ran is the answer of the script that takes the place of the program.
func ran(command string) answer { return answer{stdout: fmt.Sprintf(executed, command) + conf} }

// TestShimExecutes has calls that the shim does not send.
func TestShimExecutes(t *testing.T) {
	requireShim(t)
	pause(t)
	dir := withoutProgram(t, `printf 'executed %s ' $CNI_COMMAND; cat`)
	run := func(stdin string, env ...string) answer {
		return call(t, dir, "bridge", stdin, changed("DEL", dir, "/run/netns/gone", env)...)
	}
	require.Equal(t, ran("DEL"), run(conf), "no daemon")
	calls := scripted(t, always("HTTP/1.1 204 No Content\r\n\r\n"))
	for name, env := range map[string]string{
		"VERSION": "CNI_COMMAND=VERSION", "no command": "CNI_COMMAND=", "a plugin of the daemon": "ALLOCNET_CALLER=allocnetd",
		"another bus": "DBUS_SYSTEM_BUS_ADDRESS=unix:path=/x", "long": "CNI_ARGS=" + strings.Repeat("a", 1025),
		"control character": "CNI_ARGS=a\r\nb", "UTF-8": "CNI_ARGS=é", "space": "CNI_ARGS= a",
	} {
		got := run(conf, env)
		require.Zero(t, got.exit, name)
		require.Contains(t, got.stdout, "executed ", name)
		require.True(t, strings.HasSuffix(got.stdout, conf), "%s: %q", name, got.stdout)
	}
	long := conf + strings.Repeat(" ", dropin.MaxConfig)
	require.Equal(t, answer{stdout: fmt.Sprintf(executed, "DEL") + long}, run(long))
	require.Empty(t, calls)

	require.Equal(t, answer{}, run(conf))
	r := <-calls
	require.Equal(t, "/cni/plugins/bridge", r.URL.Path)
}

// TestShimRequest: the call has all that the daemon needs.
func TestShimRequest(t *testing.T) {
	requireShim(t)
	pause(t)
	dir, netns := withoutProgram(t, ""), namespace(t, "asked")
	calls := scripted(t, always("HTTP/1.1 204 No Content\r\n\r\n"))
	stdin := " {\"a\":\"\\u00e9é\"}\n" + strings.Repeat(" ", dropin.MaxConfig-100)
	require.Equal(t, answer{}, call(t, dir, "host-local", stdin, changed("ADD", "/a:/b", netns, []string{`CNI_ARGS=A="b c";D=\e`})...))
	r := <-calls
	for field, want := range map[string]string{
		dropin.HeaderCommand: "ADD", dropin.HeaderContainerID: "c1", dropin.HeaderNetns: netns, dropin.HeaderIfName: "eth0",
		dropin.HeaderArgs: `A="b c";D=\e`, dropin.HeaderPath: "/a:/b", dropin.HeaderHost: dropin.HostID(), dropin.HeaderNetnsID: dropin.FileID(netns),
	} {
		require.Equal(t, []string{want}, r.Header.Values(field), field)
	}
	require.NotEmpty(t, r.Header.Get(dropin.HeaderNetnsID))
	body, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.Equal(t, stdin, string(body))
	require.Equal(t, []string{"POST", "/cni/plugins/host-local"}, []string{r.Method, r.URL.Path})

	// The name of the plugin is that of the executed file.
	c := exec.Command(filepath.Join(dir, "portmap"))
	c.Args[0], c.Env, c.Stdin = "bridge", []string{"CNI_COMMAND=DEL"}, strings.NewReader("{}")
	require.NoError(t, c.Run())
	r = <-calls
	require.Equal(t, "/cni/plugins/portmap", r.URL.Path)
	require.Empty(t, r.Header.Get(dropin.HeaderNetnsID))
}

// TestCallerElsewhere: a caller with another network namespace, mount namespace or root
// directory gets its own plugin, not the daemon's.
func TestCallerElsewhere(t *testing.T) {
	requireShim(t)
	dir, netns, dataDir := withoutProgram(t, "cat >/dev/null; echo executed"), namespace(t, "caller"), t.TempDir()
	local := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"n","ipam":{"type":"host-local","subnet":"10.9.0.0/24","dataDir":%q}}`, dataDir)
	for name, enter := range map[string][]string{
		"network namespace": {"unshare", "--net"}, "mount namespace": {"unshare", "--mount"}, "root directory": otherRoot(t),
	} {
		t.Run(name, func(t *testing.T) {
			plugin := filepath.Join(dir, "host-local")
			c := exec.Command(enter[0], append(enter[1:], plugin)...)
			c.Env = append(changed("ADD", dir, netns, nil), "PATH="+os.Getenv("PATH"))
			c.Stdin = strings.NewReader(local)
			out, err := c.CombinedOutput()
			require.NoError(t, err, string(out))
			require.Equal(t, "executed\n", string(out))
		})
	}
	_, err := os.Stat(filepath.Join(dataDir, "n"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	got := call(t, dir, "host-local", local, changed("ADD", dir, netns, nil)...)
	require.True(t, json.Valid([]byte(got.stdout)), "%+v", got)
	require.FileExists(t, filepath.Join(dataDir, "n", "10.9.0.2"))
}

// otherRoot returns a command that runs another one with another root directory, in
// which the same files are mounted.
func otherRoot(t *testing.T) []string {
	t.Helper()
	root := t.TempDir()
	t.Cleanup(func() { require.NoError(t, exec.Command("umount", "-R", root).Run()) })
	script := fmt.Sprintf(`mount -t tmpfs root %[1]s
for name in /*; do
	if test -L $name; then cp -d $name %[1]s/
	elif test -d $name; then mkdir %[1]s$name && mount --rbind $name %[1]s$name && mount --make-rslave %[1]s$name
	fi
done
exec chroot %[1]s "$@"`, root)
	return []string{"sh", "-c", script, "sh"}
}
