package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/cmd/internal/server/settings"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/programs"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) {
	if file := os.Getenv(daemonOf); file != "" {
		fmt.Fprintln(os.Stderr, serveDaemon(file))
		os.Exit(1)
	}
	os.Exit(privhost.Main(twice{m}))
}

// plugin is the name of the program under test.
var plugin string

// twice runs all tests with each of the two programs as the plugin; with -short only with the usual one.
type twice struct{ *testing.M }

func (t twice) Run() (code int) {
	flag.Parse()
	for _, plugin = range []string{"allocnet-cni", "allocnet-cni-shim"} {
		if testing.Short() && plugin == "allocnet-cni" {
			continue
		}
		fmt.Println("as", plugin)
		code = max(code, t.M.Run())
	}
	return code
}

// secret is part of every configuration and of the environment.
const secret = "hunter2"

// workspace is a host with the plugin installed, the bridged network "br" and a fake
// plugin "one". When the test ends, the host must be as it was before.
type workspace struct {
	t        *testing.T
	dir, bin string
}

func newWorkspace(t *testing.T) *workspace {
	t.Helper()
	privhost.Require(t)
	built, err := programs.Dir()
	require.NoError(t, err)
	w := &workspace{t: t, dir: t.TempDir()}
	w.bin = w.path("bin")
	require.NoError(t, fakeplugin.Install(w.bin, "one"))
	require.NoError(t, os.Symlink(filepath.Join(built, plugin), filepath.Join(w.bin, "allocnet")))
	w.write("conf/br.conflist", `{"cniVersion":"1.1.0","name":"br","plugins":[{"type":"bridge","bridge":"brproc","isGateway":true,
		"ipam":{"type":"host-local","dataDir":"`+w.path("leases")+`","subnet":"10.68.0.0/24"}},{"type":"portmap","capabilities":{"portMappings":true}}]}`)
	w.write("allocnetd.hcl", `
		conf_dir    = "`+w.path("conf")+`"
		plugin_dirs = ["`+w.bin+`"]
		state_dir   = "`+w.path("state")+`"
		socket { path = "`+w.path("sock")+`" }
		limits { operation_timeout = "3s" }
		retry { attempts = 1 }`)
	before := w.snapshot()
	t.Cleanup(func() {
		if link, err := netlink.LinkByName("brproc"); err == nil {
			require.NoError(t, netlink.LinkDel(link))
		}
		require.Empty(t, hostsnap.Diff(before, w.snapshot()))
	})
	return w
}

func (w *workspace) path(name string) string { return filepath.Join(w.dir, name) }

func (w *workspace) write(name, text string) {
	w.t.Helper()
	require.NoError(w.t, os.MkdirAll(filepath.Dir(w.path(name)), 0o755))
	require.NoError(w.t, os.WriteFile(w.path(name), []byte(text), 0o600))
}

func (w *workspace) snapshot() hostsnap.Snapshot {
	s, err := hostsnap.Take(hostsnap.Options{Dirs: []string{w.path("leases"), w.path("state/allocs")}, Persistent: true})
	require.NoError(w.t, err)
	return s
}

// sandbox creates a network namespace and returns its path.
func (w *workspace) sandbox(name string) string {
	w.t.Helper()
	s, err := sandbox.Create(name)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = s.Destroy() })
	return s.Path()
}

// plugin returns the configuration of the plugin, with more keys.
func (w *workspace) plugin(more string) string {
	return `{"cniVersion":"1.1.0","name":"net","type":"allocnet","capabilities":{"portMappings":true},"idleTimeout":"1s",
		"socket":"` + w.path("sock") + `","settings":"` + w.path("allocnetd.hcl") + `",` + more + `}`
}

// fake returns the configuration of the plugin with a chain of the fake plugin.
func (w *workspace) fake(on map[string]fakeplugin.Behaviour) string {
	data, err := json.Marshal(map[string]any{"type": "one", "password": secret, "fake": fakeplugin.Config{Log: w.path("log"), On: on}})
	require.NoError(w.t, err)
	return w.plugin(`"plugins":[` + string(data) + `]`)
}

// list returns a configuration list with the plugin, for libcni.
func (w *workspace) list(more string) *libcni.NetworkConfigList {
	w.t.Helper()
	var plugin map[string]any
	require.NoError(w.t, json.Unmarshal([]byte(w.plugin(more)), &plugin))
	data, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": "net", "plugins": []any{plugin}})
	require.NoError(w.t, err)
	list, err := libcni.NetworkConfFromBytes(data)
	require.NoError(w.t, err)
	return list
}

// command is one call of the plugin.
type command struct {
	*exec.Cmd
	out bytes.Buffer
}

// call prepares a call for a container. The network namespace may be "".
func (w *workspace) call(name, container, netns, config string) *command {
	c := &command{Cmd: exec.Command(filepath.Join(w.bin, "allocnet"))}
	c.Env = append(os.Environ(), "SECRET="+secret, "CNI_PATH="+w.bin,
		"CNI_COMMAND="+name, "CNI_CONTAINERID="+container, "CNI_NETNS="+netns, "CNI_IFNAME=eth0")
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(config), &c.out, os.Stderr
	return c
}

// ok runs a call that must succeed and returns its output.
func (w *workspace) ok(c *command) string {
	w.t.Helper()
	err := c.Run()
	require.NoError(w.t, err, c.out.String())
	return c.out.String()
}

// refused runs a call that must fail and returns its error, which must not contain the
// secret.
func (w *workspace) refused(c *command) *cni.Error {
	w.t.Helper()
	err := c.Run()
	var exit *exec.ExitError
	require.ErrorAs(w.t, err, &exit, c.out.String())
	require.Equal(w.t, 1, exit.ExitCode())
	require.NotContains(w.t, c.out.String(), secret)
	var e cni.Error
	require.NoError(w.t, json.Unmarshal(c.out.Bytes(), &e), c.out.String())
	require.Contains(w.t, cni.Versions, e.CNIVersion)
	return &e
}

// records lists the allocations with their phases, once none of them is being deleted.
func (w *workspace) records() []string {
	w.t.Helper()
	s, err := settings.Source{File: w.path("allocnetd.hcl")}.Load()
	require.NoError(w.t, err)
	c, err := configurator.New(s.Configurator())
	require.NoError(w.t, err)
	var records []configurator.Record
	require.Eventually(w.t, func() bool {
		records, err = c.List(context.Background())
		return err != nil || !slices.ContainsFunc(records, func(r configurator.Record) bool { return r.Phase == configurator.PhaseDeleting })
	}, 10*time.Second, time.Millisecond)
	require.NoError(w.t, err)
	ids := []string{}
	for _, r := range records {
		ids = append(ids, r.ID+" "+string(r.Phase))
	}
	return ids
}
