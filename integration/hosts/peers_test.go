package hosts

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/process"
)

// ownDirs are directories of which a host that runs a scheduler or runtime has its own, besides
// those that every host has.
var ownDirs = []string{"/etc/allocnet", "/etc/cni", "/etc/containerd", "/etc/nomad.d", "/opt/cni/bin", "/var/lib/nomad"}

// follow gives the host directories of its own and writes files into them.
func (h *host) follow(files map[string]string) {
	h.t.Helper()
	for _, dir := range ownDirs {
		h.run("mount", "-t", "tmpfs", "tmpfs", dir)
	}
	for path, text := range files {
		h.write(path, text)
	}
}

func (h *host) write(path, text string) {
	h.t.Helper()
	h.run("sh", "-ec", `mkdir -p "$(dirname "$0")"; printf %s "$1" >"$0"`, path, text)
}

// buildPlugins builds what install installs.
func buildPlugins(t testing.TB) {
	t.Helper()
	build(t, "../../cmd", programs(t), "./allocnet-cni", "./allocnet-plugins")
	out, err := exec.Command("make", "-C", "../..", "shim", "BIN="+programs(t)).CombinedOutput()
	require.NoError(t, err, string(out))
}

// install installs allocnet's plugins as the package and the command do.
func (h *host) install(args ...string) {
	h.t.Helper()
	h.run("ln", "-s", h.bin+"/allocnet-cni-shim", "/opt/cni/bin/allocnet")
	h.run(append([]string{h.bin + "/allocnet", "plugins", "install", "/opt/cni/bin"}, args...)...)
}

// startDaemon starts allocnetd with the settings in /etc. What it and other programs of the host
// leave running ends with the test.
func (h *host) startDaemon() {
	h.t.Helper()
	h.daemon = process.New(h.t, h.inside(h.bin+"/allocnetd")...)
	h.daemon.Start()
	h.awaitDaemon()
	h.t.Cleanup(h.endProcesses)
}

// endProcesses kills the processes in the mount namespace of the host, but for the one that keeps
// its namespaces, and their descendants: tasks and containers outlive what has started them.
func (h *host) endProcesses() {
	own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", h.pid()))
	require.NoError(h.t, err)
	paths, _ := filepath.Glob("/proc/[0-9]*")
	var kill []int
	for range paths { // until no other descendant is found
		found := len(kill)
		for _, path := range paths {
			pid, _ := strconv.Atoi(filepath.Base(path))
			mounts, _ := os.Readlink(path + "/ns/mnt")
			if pid != h.pid() && !slices.Contains(kill, pid) && (mounts == own || slices.Contains(kill, parent(path))) {
				kill = append(kill, pid)
			}
		}
		if len(kill) == found {
			break
		}
	}
	for _, pid := range kill {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// parent returns the parent of a process from its directory in /proc.
func parent(path string) (pid int) {
	text, _ := os.ReadFile(path + "/status")
	_, line, _ := strings.Cut(string(text), "\nPPid:")
	_, _ = fmt.Sscan(line, &pid)
	return pid
}

// ownCgroup gives the host a control group in which runc creates those of containers.
func (h *host) ownCgroup() {
	h.t.Helper()
	group := strings.TrimSpace(h.run("sh", "-ec", `
mkdir /run/cgroup
mount -t cgroup2 cgroup2 /run/cgroup
group=$(mktemp -d /run/cgroup/allocnet-hosts-XXXXXX)
mount --bind "$group" /sys/fs/cgroup
echo "$group"`))
	h.t.Cleanup(func() {
		eventually(h.t, "the control groups are removed", func() bool {
			_, err := h.try("find", group, "-depth", "-type", "d", "-exec", "rmdir", "{}", "+")
			return err == nil
		})
	})
}

// requirePeers makes all connections between the allocations of different hosts, to port 80 of
// their addresses and to the published port 8080.
func requirePeers(t *testing.T, placed map[*host]*allocation) {
	for h, from := range placed {
		for other, to := range placed {
			if other == h {
				continue
			}
			requireReach(t, from, to)
			for _, q := range []question{
				{"allocation to allocation of another host", h, from, netip.MustParseAddr(to.Address), 80, []string{from.Address}},
				{"allocation to a port of another host", h, from, other.address4, 8080, []string{h.address4.String()}},
				{"host to a port of another host", h, nil, other.address4, 8080, []string{h.address4.String()}},
			} {
				for _, protocol := range []string{"tcp", "udp"} {
					t.Run(fmt.Sprintf("%s to %s, %s, %s", h.name, other.name, q.what, protocol), func(t *testing.T) {
						q.require(t, protocol)
					})
				}
			}
		}
	}
}
