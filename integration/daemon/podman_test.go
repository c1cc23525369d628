package daemon

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
)

// podman is Podman with its CNI backend. Its containers run a program that
// responds on port 80 with the name "web".
type podman struct {
	t    testing.TB
	dir  string
	args []string
}

// needPodman prepares the host for Podman. Call it before newHost.
func needPodman(t *testing.T) {
	t.Helper()
	privhost.RequireRoot(t, "podman", "crun")
	// crun supports one hierarchy of control groups, but not the mixture that
	// some hosts have.
	require.NoError(t, unix.Mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount("/sys/fs/cgroup", unix.MNT_DETACH)) })
}

// newPodman returns a Podman with its own directories. confDir contains the
// networks, and pluginDir their plugins. The containers run the program.
func newPodman(t *testing.T, program, confDir, pluginDir string) *podman {
	t.Helper()
	p := &podman{t: t, dir: t.TempDir()}
	p.args = []string{"--root", p.dir + "/root", "--runroot", p.dir + "/run", "--tmpdir", p.dir + "/tmp", "--storage-driver", "vfs"}
	t.Setenv("CONTAINERS_CONF", p.write("containers.conf", fmt.Sprintf(`[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[network]
network_backend = "cni"
network_config_dir = %q
cni_plugin_dirs = [%q]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
runtime = "crun"
`, confDir, pluginDir)))
	require.NoError(t, os.Mkdir(filepath.Join(p.dir, "rootfs"), 0o755))
	require.NoError(t, os.Link(program, filepath.Join(p.dir, "rootfs", "web")))
	return p
}

// buildWeb builds the program of the containers.
func buildWeb(t *testing.T) (program string) {
	t.Helper()
	dir := t.TempDir()
	program = filepath.Join(dir, "web")
	require.NoError(t, os.WriteFile(program+".go", []byte(webProgram), 0o600))
	c := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, program+".go")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

const webProgram = `package main

import (
	"fmt"
	"net"
)

func main() {
	l, err := net.Listen("tcp", ":80")
	for err == nil {
		var c net.Conn
		if c, err = l.Accept(); err == nil {
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			fmt.Fprint(c, "web ", host)
			c.Close()
		}
	}
	panic(err)
}
`

func (p *podman) write(name, text string) string {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	require.NoError(p.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// do runs a Podman command, which must succeed.
func (p *podman) do(args ...string) string {
	p.t.Helper()
	c := exec.Command("podman", append(p.args, args...)...)
	out, err := c.CombinedOutput()
	require.NoError(p.t, err, "podman %s: %s", strings.Join(args, " "), out)
	return string(out)
}

// TestPodman runs a container with a published port on two networks, with the
// drop-in plugins and with the daemon's plugin. The port responds as long as
// the container is on one of the networks.
func TestPodman(t *testing.T) {
	privhost.RequireRoot(t, "podman", "crun")
	web := buildWeb(t)
	t.Run("drop-in", func(t *testing.T) {
		needPodman(t)
		h := newHost(t, testbed.Native.Engine)
		h.Network("net", testbed.Chain("bridge", testbed.Dual, "")[1:]...)
		h.Network("back", testbed.Chain("ptp", testbed.Families{V4: "10.98.0.0/24", V6: "fd00:98::/64"}, "")[1:]...)
		p := newPodman(t, web, h.ConfDir, testbed.DropIns(t))
		testPodman(h, p, 0)
		testPodmanNetwork(h, p)
	})
	t.Run("daemon", func(t *testing.T) {
		needPodman(t)
		r := newCNI(t)
		for name, chain := range map[string][]map[string]any{
			"net":  testbed.Chain("bridge", testbed.Dual, ""),
			"back": testbed.Chain("ptp", testbed.Families{V4: "10.98.0.0/24", V6: "fd00:98::/64"}, ""),
		} {
			chain[1]["capabilities"] = map[string]bool{"ips": true} // a reload requests the addresses again
			r.h.Network(name, chain...)
			ours := r.ours("delegate", name)
			ours["capabilities"] = map[string]bool{"portMappings": true, "ips": true}
			r.list(name, "1.0.0", ours)
		}
		r.configure(`host_listeners = "refuse"`) // conmon, which reserves the port, is no reason
		r.begin()
		r.told("READY=1")
		testPodman(r.h, newPodman(t, web, r.conf, r.bin), 1)
		require.Empty(t, r.h.phases())
	})
}

// runWeb runs the container "web", whose port is published as 8080.
func (p *podman) runWeb(networks string) {
	p.t.Helper()
	p.do("run", "--detach", "--name", "web", "--network", networks, "--publish", "8080:80", "--cgroups", "disabled",
		"--security-opt", "seccomp=unconfined", "--log-driver", "none", "--rootfs", filepath.Join(p.dir, "rootfs"), "/web")
}

// requireWeb waits until the container "web" responds.
func (h *host) requireWeb() {
	h.T.Helper()
	// The program refuses connections until it has started.
	require.Eventually(h.T, func() bool {
		_, err := testbed.Ask(testbed.Timeout, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080))
		return !errors.Is(err, unix.ECONNREFUSED)
	}, time.Minute, 10*time.Millisecond)
	testbed.RequireAnswer(h.T, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "web")
}

// testPodman runs the container. With -short, it leaves one of the networks, and either restarts the container, or
// reloads its networks and starts it after it has died: those with the number turn.
func testPodman(h *host, p *podman, turn int) {
	answers := h.requireWeb
	p.runWeb("net,back")
	answers()
	for i, network := range []string{"net", "back"} {
		if testing.Short() && i != turn {
			continue
		}
		p.do("network", "disconnect", network, "web")
		answers()
		p.do("network", "connect", network, "web")
		answers()
	}
	if !testing.Short() || turn == 0 {
		p.do("restart", "--time", "0", "web")
		answers()
	}
	if !testing.Short() || turn == 1 {
		p.do("network", "reload", "web")
		answers()
		p.do("kill", "web")
		p.do("wait", "web")
		p.do("start", "web")
		answers()
	}
	p.do("rm", "--force", "--time", "0", "web")
	testbed.RequireRefused(h.T, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080))
}

// testPodmanNetwork runs a container on a network whose configuration Podman writes. With
// the network, Podman deletes the bridge that the plugin made.
func testPodmanNetwork(h *host, p *podman) {
	p.do("network", "create", "--disable-dns", "--subnet", "10.97.0.0/24", "--label", "app=web", "own")
	conf, err := os.ReadFile(filepath.Join(h.ConfDir, "own.conflist"))
	require.NoError(h.T, err)
	for _, plugin := range []string{"bridge", "portmap", "firewall", "tuning"} {
		require.Contains(h.T, string(conf), `"type": "`+plugin+`"`)
	}
	p.runWeb("own")
	h.requireWeb()
	require.Equal(h.T, "10.97.0.2", strings.TrimSpace(p.do("inspect", "--format", "{{.NetworkSettings.Networks.own.IPAddress}}", "web")))
	p.do("rm", "--force", "--time", "0", "web")
	testbed.RequireRefused(h.T, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080))
	bridges := linksOf(h.T, "bridge")
	p.do("network", "rm", "own")
	require.Len(h.T, linksOf(h.T, "bridge"), len(bridges)-1)
}
