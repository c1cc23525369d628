package main

import (
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/programs"
)

// TestLifecycle runs ADD, CHECK and DEL of one attachment through libcni: with the
// daemon, without it, and with a daemon that starts or stops in between.
func TestLifecycle(t *testing.T) {
	const up, down = true, false
	for name, running := range map[string][3]bool{
		"up": {up, up, up}, "down": {down, down, down}, "comes": {down, up, up}, "goes": {up, up, down}, "restarts": {up, down, up},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkspace(t)
			var d *daemon
			step := func(i int) {
				if d != nil && (!running[i] || i > 0) {
					d.kill()
				}
				if d = nil; running[i] {
					d = w.startDaemon()
				}
			}
			did := func(line string) {
				if d != nil {
					d.prints(line)
				}
			}
			runtime := libcni.NewCNIConfigWithCacheDir([]string{w.bin}, w.path("runtime"), nil)
			list := w.list(`"delegate":"br"`)
			rt := &libcni.RuntimeConf{
				ContainerID: "c1", NetNS: w.sandbox("c1"), IfName: "eth0", Args: [][2]string{{"K8S_POD_NAME", "web"}},
				CapabilityArgs: map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}},
			}
			step(0)
			require.NoError(t, runtime.GetStatusNetworkList(t.Context(), list))
			did("STATUS  0")
			result, err := runtime.AddNetworkList(t.Context(), list, rt)
			require.NoError(t, err)
			did("ADD c1 0")
			newest, err := types100.NewResultFromResult(result)
			require.NoError(t, err)
			require.Equal(t, "10.68.0.2/24", newest.IPs[0].Address.String())
			require.Equal(t, []string{"c1.eth0 ready"}, w.records())
			step(1)
			require.NoError(t, runtime.CheckNetworkList(t.Context(), list, rt))
			did("CHECK c1 0")
			valid := []types.GCAttachment{{ContainerID: "c1", IfName: "eth0"}}
			require.NoError(t, runtime.GCNetworkList(t.Context(), list, &libcni.GCArgs{ValidAttachments: valid}))
			did("GC  0")
			require.NoError(t, runtime.CheckNetworkList(t.Context(), list, rt))
			did("CHECK c1 0")
			step(2)
			require.NoError(t, runtime.DelNetworkList(t.Context(), list, rt))
			did("DEL c1 0")
			require.Empty(t, w.records())
		})
	}
}

// TestCnitool runs the plugin through cnitool.
func TestCnitool(t *testing.T) {
	w := newWorkspace(t)
	w.startDaemon()
	built, err := programs.Dir()
	require.NoError(t, err)
	w.write("runtime/net.conflist", string(w.list(`"delegate":"br"`).Bytes))
	netns := w.sandbox("c1")
	for _, command := range []string{"status", "add", "check", "del"} {
		c := exec.Command(filepath.Join(built, "cnitool"), command, "net", netns)
		c.Env = append(os.Environ(), "CNI_PATH="+w.bin, "NETCONFPATH="+w.path("runtime"))
		out, err := c.CombinedOutput()
		require.NoError(t, err, string(out))
		if command == "add" {
			require.Contains(t, string(out), "10.68.0.2/24")
		}
	}
	require.Empty(t, w.records())
}

var adds = fakeplugin.Behaviour{Result: json.RawMessage(
	`{"cniVersion":"1.1.0","interfaces":[{"name":"lo","sandbox":"/sandbox"}],"ips":[{"address":"127.0.0.1/8","interface":0}]}`)}

func (w *workspace) waitForCall(want ...string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		commands, err := fakeplugin.Commands(w.path("log"))
		return err == nil && strings.Join(commands, ", ") == strings.Join(want, ", ")
	}, 20*time.Second, 2*time.Millisecond)
}

// TestDaemonDiesInTheMiddle kills the daemon during an ADD: the plugin completes it.
func TestDaemonDiesInTheMiddle(t *testing.T) {
	w := newWorkspace(t)
	d := w.startDaemon()
	hangs := adds
	hangs.Hang, hangs.Only = true, 1
	conf := w.fake(map[string]fakeplugin.Behaviour{"ADD": hangs})
	netns := w.sandbox("c1")
	add := w.call("ADD", "c1", netns, conf)
	require.NoError(t, add.Start())
	w.waitForCall("one ADD")
	d.kill()
	require.NoError(t, add.Wait(), add.out.String())
	require.Contains(t, add.out.String(), "127.0.0.1/8")
	w.waitForCall("one ADD", "one DEL", "one ADD")
	require.Equal(t, []string{"c1.eth0 ready"}, w.records())
	d = w.startDaemon()
	w.ok(w.call("CHECK", "c1", netns, conf))
	d.prints("CHECK c1 0")
	w.ok(w.call("DEL", "c1", netns, conf))
	d.prints("DEL c1 0")
}

// TestDaemonHangs stops the daemon before it reads the request. When it continues, the
// client has disconnected, so it does not begin the request.
func TestDaemonHangs(t *testing.T) {
	w := newWorkspace(t)
	d := w.startDaemon()
	d.stop()
	conf := w.plugin(`"delegate":"br"`)
	netns := w.sandbox("c1")
	e := w.refused(w.call("ADD", "c1", netns, conf))
	require.Equal(t, cni.CodeTryAgainLater, e.Code)
	require.Equal(t, "allocnetd does not answer", e.Msg)
	require.Equal(t, cni.CodeNotAvailable, w.refused(w.call("STATUS", "", "", conf)).Code)
	w.ok(w.call("DEL", "c1", netns, conf))
	require.Empty(t, w.records())
	d.resume()
	for range 3 {
		d.handled()
	}
	require.Empty(t, w.records())
	w.ok(w.call("STATUS", "", "", conf))
}

// TestDaemonHangsWithTheAllocation stops the daemon while it holds the allocation's
// lock: a DEL fails with an error. It succeeds once the daemon continues or is killed.
func TestDaemonHangsWithTheAllocation(t *testing.T) {
	w := newWorkspace(t)
	d := w.startDaemon()
	hangs := adds
	hangs.Hang, hangs.Only = true, 1
	conf := w.fake(map[string]fakeplugin.Behaviour{"ADD": hangs})
	netns := w.sandbox("c1")
	add := w.call("ADD", "c1", netns, conf)
	require.NoError(t, add.Start())
	w.waitForCall("one ADD")
	d.stop()
	require.Error(t, add.Wait())
	require.Contains(t, add.out.String(), `"code":11`)
	require.Equal(t, cni.CodeTryAgainLater, w.refused(w.call("DEL", "c1", netns, conf)).Code)
	require.Equal(t, []string{"c1.eth0 adding"}, w.records())
	d.kill()
	w.ok(w.call("DEL", "c1", netns, conf))
	require.Empty(t, w.records())
}

// TestRuntimeGivesUp ends the plugin during an ADD: the ADD is undone, with the daemon
// and without.
func TestRuntimeGivesUp(t *testing.T) {
	for name, up := range map[string]bool{"up": true, "down": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorkspace(t)
			if up {
				w.startDaemon()
			}
			hangs := adds
			hangs.Hang = true
			add := w.call("ADD", "c1", w.sandbox("c1"), w.fake(map[string]fakeplugin.Behaviour{"ADD": hangs}))
			require.NoError(t, add.Start())
			w.waitForCall("one ADD")
			require.NoError(t, add.Process.Signal(os.Interrupt))
			require.Error(t, add.Wait())
			require.Eventually(t, func() bool { return len(w.records()) == 0 }, 20*time.Second, 5*time.Millisecond)
			w.waitForCall("one ADD", "one DEL")
		})
	}
}

// TestNothingLeaks checks that the daemon gets seven variables and the configuration.
func TestNothingLeaks(t *testing.T) {
	w := newWorkspace(t)
	l, err := net.Listen("unix", w.path("sock"))
	require.NoError(t, err)
	bodies := make(chan string, 1)
	s := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		head, _ := json.Marshal(r.Header)
		body, _ := io.ReadAll(r.Body)
		bodies <- string(head) + string(body)
		_, _ = io.WriteString(rw, `{"error":{"cniVersion":"1.1.0","code":123,"msg":"as it is","details":"d"}}`)
	})}
	go func() { _ = s.Serve(l) }()
	defer s.Close()
	conf := w.plugin(`"delegate":"br"`)
	e := w.refused(w.call("ADD", "c1", "/netns", conf))
	require.Equal(t, &cni.Error{CNIVersion: "1.1.0", Code: 123, Msg: "as it is", Details: "d"}, e)
	body := <-bodies
	require.NotContains(t, body, secret)
	require.NotContains(t, body, `"PATH"`)
	_, request, _ := strings.Cut(body, "}")
	var got map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(request), &got))
	var env map[string]string
	require.NoError(t, json.Unmarshal(got["env"], &env))
	maps.DeleteFunc(env, func(_, value string) bool { return value == "" })
	require.Equal(t, map[string]string{"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": "/netns", "CNI_IFNAME": "eth0", "CNI_PATH": w.bin}, env)
	require.JSONEq(t, conf, string(got["config"]))
}

// TestNoProgramBeside runs the shim without allocnet-cni in its directory: the error
// names the missing program. allocnet-cni itself works without the shim.
func TestNoProgramBeside(t *testing.T) {
	w := newWorkspace(t)
	path := filepath.Join(w.bin, "allocnet")
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, data, 0o755))
	conf := w.plugin(`"delegate":"br"`)
	if plugin == "allocnet-cni-shim" {
		for _, command := range []string{"ADD", "DEL"} {
			e := w.refused(w.call(command, "c1", "/netns", conf))
			require.Equal(t, cni.CodeTryAgainLater, e.Code)
			require.Contains(t, e.Details, "run allocnet-cni in the directory of this program: install it there: No such file")
		}
		return
	}
	w.ok(w.call("ADD", "c1", w.sandbox("c1"), conf))
	require.Equal(t, []string{"c1.eth0 ready"}, w.records())
	w.ok(w.call("DEL", "c1", "", conf))
	require.Empty(t, w.records())
}

// TestNeitherDaemonNorFallback checks that the error names both causes.
func TestNeitherDaemonNorFallback(t *testing.T) {
	w := newWorkspace(t)
	w.write("broken.hcl", "engine = 1")
	conf := strings.Replace(w.plugin(`"delegate":"br"`), "allocnetd.hcl", "broken.hcl", 1)
	for _, command := range []string{"ADD", "DEL"} {
		e := w.refused(w.call(command, "c1", "/netns", conf))
		require.Equal(t, cni.CodeInternal, e.Code)
		require.Contains(t, e.Msg, "broken.hcl")
		require.Contains(t, e.Details, "connect to "+w.path("sock")+": allocnetd is not reachable: ")
	}
}

// TestBadInput is refused with or without a daemon. The error does not repeat it.
func TestBadInput(t *testing.T) {
	w := newWorkspace(t)
	w.write("broken.hcl", "engine = \""+secret)
	for _, test := range []struct {
		name, command, conf string
		code                uint
		text                string
	}{
		{"unknown command", "add", w.plugin(`"delegate":"br"`), 4, "unknown CNI_COMMAND"},
		{"not UTF-8", "ADD\xff", "{}", 4, "CNI_COMMAND is not UTF-8"},
		{"nothing", "ADD", "", 6, "cannot be read"},
		{"cut short", "ADD", `{"cniVersion":"1.0.0","secret":"` + secret, 6, "not one JSON object"},
		{"two", "ADD", `{} {"secret":"` + secret + `"}`, 6, "not one JSON object"},
		{"a list", "DEL", `["` + secret + `"]`, 6, "cannot be read"},
		{"huge", "ADD", `"` + strings.Repeat("x", cni.MaxConfig) + `"`, 7, "longer than"},
		{"huge environment", "ADD", w.plugin(`"delegate":"br"`), 4, "KEY=VALUE"},
		{"relative socket", "ADD", `{"socket":"x"}`, 7, `"socket" must be`},
		{"long socket", "ADD", `{"socket":"/` + strings.Repeat("x", 107) + `"}`, 7, `"socket" must be`},
		{"socket is no text", "ADD", `{"socket":7}`, 7, `"socket" must be`},
		{"no idle timeout", "ADD", `{"idleTimeout":"1ms"}`, 7, `at least "1s"`},
		{"another idle timeout", "ADD", `{"idleTimeout":"` + secret + `"}`, 7, `"idleTimeout" must be`},
		{"the idle timeout's former name", "ADD", `{"patience":"1ms"}`, 7, `"patience" must be`},
		{"socket is null", "ADD", `{"socket":null}`, 7, `"socket" must be`},
		{"unknown key", "ADD", w.plugin(`"delegate":"br","secret":"` + secret + `"`), 7, "secret (line"},
		{"no settings", "ADD", strings.Replace(w.plugin(`"delegate":"br"`), "allocnetd.hcl", "none.hcl", 1), 999, "none.hcl"},
		{"broken settings", "ADD", strings.Replace(w.plugin(`"delegate":"br"`), "allocnetd.hcl", "broken.hcl", 1), 999, "broken.hcl"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := w.call(test.command, "c1", "/netns", test.conf)
			if test.name == "huge environment" {
				c.Env = append(c.Env, "CNI_ARGS="+strings.Repeat("x", 100<<10))
			}
			e := (&workspace{t: t}).refused(c)
			require.Equal(t, test.code, e.Code)
			require.Contains(t, e.Msg+e.Details, test.text)
			require.Less(t, len(e.Msg+e.Details), 4096)
		})
	}
}

// TestSettingsOfOthers checks that a file that other users can write is not read, and
// that unrelated variables with the prefix ALLOCNETD_ are ignored.
func TestSettingsOfOthers(t *testing.T) {
	w := newWorkspace(t)
	t.Setenv("ALLOCNETD_NOPE", "1")
	t.Setenv("ALLOCNETD_PORT_80_TCP", "tcp://10.0.0.1:80")
	conf := w.plugin(`"delegate":"br"`)
	netns := w.sandbox("c1")
	w.ok(w.call("ADD", "c1", netns, conf))
	require.NoError(t, os.Chmod(w.path("allocnetd.hcl"), 0o666))
	for _, command := range []string{"ADD", "DEL"} {
		require.Contains(t, w.refused(w.call(command, "c1", netns, conf)).Msg, "can be written by other users")
	}
	require.NoError(t, os.Chmod(w.path("allocnetd.hcl"), 0o644))
	w.ok(w.call("DEL", "c1", netns, conf))
	require.Empty(t, w.records())
}

// TestSettingsBesideTheSocket checks that the active settings beside the socket win over
// the file and the environment, unless they cannot be read.
func TestSettingsBesideTheSocket(t *testing.T) {
	w := newWorkspace(t)
	s, err := settings.Source{File: w.path("allocnetd.hcl")}.Load()
	require.NoError(t, err)
	file := settings.ActiveFile(w.path("sock"))
	require.NoError(t, s.Write(file))
	w.write("broken.hcl", "engine = 1")
	t.Setenv("ALLOCNETD_STATE_DIR", w.path("another"))
	conf := strings.Replace(w.plugin(`"delegate":"br"`), "allocnetd.hcl", "broken.hcl", 1)
	netns := w.sandbox("c1")
	w.ok(w.call("ADD", "c1", netns, conf))
	require.NoFileExists(t, w.path("another"))
	for _, text := range []string{"", "{", `{"engine":["x"]}`} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		require.Contains(t, w.refused(w.call("DEL", "c1", netns, conf)).Msg, "broken.hcl")
	}
	require.NoError(t, s.Write(file))
	w.ok(w.call("DEL", "c1", netns, conf))
	require.Empty(t, w.records())
}

// TestBelowItself runs the plugin as a plugin of the daemon or of itself: it does
// nothing.
func TestBelowItself(t *testing.T) {
	w := newWorkspace(t)
	w.startDaemon()
	t.Setenv(pluginexec.CallerVariable, "allocnetd")
	conf := w.plugin(`"delegate":"br"`)
	netns := w.sandbox("c1")
	for _, command := range []string{"ADD", "CHECK", "STATUS"} {
		e := w.refused(w.call(command, "c1", netns, conf))
		require.Equal(t, cni.CodeInvalidConfig, e.Code)
		require.Equal(t, "allocnet-cni was called as a plugin of allocnetd", e.Msg)
	}
	require.Empty(t, w.ok(w.call("DEL", "c1", netns, conf)))
	require.Empty(t, w.ok(w.call("GC", "c1", netns, conf)))
	require.Contains(t, w.ok(w.call("VERSION", "c1", netns, conf)), "1.1.0")
	require.Empty(t, w.records())
}

// TestVersion needs neither a daemon nor a configuration. Without a command the program
// prints its name and versions, as the reference plugins do.
func TestVersion(t *testing.T) {
	w := newWorkspace(t)
	about := w.call("", "", "", "")
	about.Stderr = about.Stdout
	said := w.ok(about)
	require.Equal(t, "CNI allocnet plugin "+sdk.ReferenceVersion+"\nof allocnet, compatible with the reference plugins of that release\n"+
		"CNI protocol versions supported: 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0\n", said)
	for stdin, version := range map[string]string{`{"cniVersion":"0.4.0"}`: "0.4.0", ``: "1.1.0", `x`: "1.1.0"} {
		require.JSONEq(t, `{"cniVersion":"`+version+`","supportedVersions":["0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}`, w.ok(w.call("VERSION", "", "", stdin)))
	}
}

// FuzzReadOptions checks that accepted options are usable.
func FuzzReadOptions(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.0.0","socket":"/s","idleTimeout":"5s"}`))
	f.Add([]byte(`{"socket":"/","idleTimeout":7}`))
	f.Fuzz(func(t *testing.T, config []byte) {
		o, err := readOptions(config)
		if err != nil {
			var e *cni.Error
			require.ErrorAs(t, err, &e)
			require.NotZero(t, e.Code)
			return
		}
		require.True(t, filepath.IsAbs(o.socket))
		require.LessOrEqual(t, len(o.socket), maxSocket)
		require.GreaterOrEqual(t, o.idle, minIdle)
		require.True(t, json.Valid(config))
	})
}
