package containerd

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	containerd "github.com/containerd/containerd/v2/client"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/testing/ociimage"
	"github.com/allocnet/allocnet/internal/testing/pidns"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/process"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/sandbox"
)

// host is the private host of a test with its own containerd, connected to an external
// machine.
type host struct {
	t          testing.TB
	outside    *sandbox.Sandbox
	dir        string           // of containerd
	containerd *process.Process // runs
	socket     string           // of containerd
}

// metrics is the address of containerd's metrics.
const metrics = "127.0.0.1:1338"

// server are the arguments of a container that serves its files over HTTP at port 80. It
// ends with SIGTERM, which the first process of a container has to handle.
var server = []string{"/bin/busybox", "sh", "-c", "trap exit TERM; busybox httpd -f -p 80 -h / & wait"}

// requireHost skips or fails a test on a host on which containerd cannot run.
func requireHost(t testing.TB) {
	t.Helper()
	privhost.RequireRoot(t, "containerd", "runc", "busybox", "iptables", "nft")
	skip.Unless(t, exec.Command("ldd", "/bin/busybox").Run() != nil, "busybox is not a static program")
}

// newHost starts containerd. plugins is the directory of the plugins that CRI uses.
func newHost(t testing.TB, plugins string) *host {
	t.Helper()
	requireHost(t)
	require.NoError(t, unix.Mount("cgroup2", "/sys/fs/cgroup", "cgroup2", 0, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount("/sys/fs/cgroup", unix.MNT_DETACH)) })
	dir, err := os.MkdirTemp("", "c") // a socket's path must be short
	require.NoError(t, err)
	t.Cleanup(func() {
		pidns.EndOthers(t)
		pidns.UnmountBelow(t, dir)
		require.NoError(t, errors.Join(os.RemoveAll(dir), os.RemoveAll("/run/containerd")))
	})
	h := &host{t: t, outside: testhost.Outside(t), dir: dir, socket: filepath.Join(dir, "s")}
	require.NoError(t, netlink.ConntrackTableFlush(netlink.ConntrackTable)) // entries of former tests
	config := filepath.Join(dir, "config.toml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, configuration, dir, h.socket, ociimage.Name, plugins, metrics), 0o600))
	h.containerd = process.New(t, "containerd", "--config", config, "--log-level", "warn")
	h.start()
	return h
}

// requireUnchanged makes the host at the end of the test be as it is now.
func (h *host) requireUnchanged() {
	h.t.Helper()
	before := h.snapshot()
	h.t.Cleanup(func() {
		if h.t.Failed() {
			return
		}
		differs := hostsnap.Diff(before, h.snapshot())
		for deadline := time.Now().Add(time.Minute); differs != "" && time.Now().Before(deadline); { // links are deleted some time after the pods
			differs = hostsnap.Diff(before, h.snapshot())
		}
		require.Empty(h.t, differs, "the host is as it was before")
	})
}

// The cgroups of a host may have no controllers, so CRI sets no limits.
const configuration = `version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
  address = "%[2]s"
[metrics]
  address = "%[5]s"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "%[3]s"
  disable_cgroup = true
  restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
  snapshotter = "overlayfs"
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "%[4]s"
  conf_dir = "/etc/cni/net.d"
`

// start starts containerd and waits until it responds.
func (h *host) start() {
	h.t.Helper()
	h.containerd.Start()
	eventually(h.t, "containerd responds", func() bool {
		c, err := containerd.New(h.socket, containerd.WithTimeout(time.Second))
		if err != nil {
			return false
		}
		defer c.Close()
		ready, err := c.IsServing(h.t.Context())
		return err == nil && ready
	})
}

// client returns a client with a namespace of containerd that has the image.
func (h *host) client(namespace string) *containerd.Client {
	h.t.Helper()
	c, err := containerd.New(h.socket, containerd.WithDefaultNamespace(namespace))
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = c.Close() })
	images, err := c.Import(h.t.Context(), bytes.NewReader(ociimage.Archive(h.t)))
	require.NoError(h.t, err)
	for _, i := range images {
		require.NoError(h.t, containerd.NewImage(c, i).Unpack(h.t.Context(), "overlayfs"))
	}
	return c
}

// snapshot returns the state of the host without the programs' own files.
func (h *host) snapshot() hostsnap.Snapshot {
	h.t.Helper()
	s, err := hostsnap.Take(hostsnap.Options{
		Persistent: true,
		Tracked:    isContainers,
		Ignore: func(line string) bool { // what the first use of a network leaves, and containerd
			return containerds.MatchString(line) || strings.HasPrefix(line, "file /run/allocnet/warm/") ||
				strings.HasPrefix(line, "file /run/allocnet/claims/complete-3 ") ||
				strings.HasPrefix(line, "file /run/allocnet/allocnetd.sock.settings ")
		},
	})
	require.NoError(h.t, err)
	return s
}

// containerds matches what containerd, runc and containerd's client leave behind if they
// are killed: files, and the mount in which the client looks up the user of an image.
var containerds = regexp.MustCompile(`^((file|special|symlink) /run/containerd/|mount \S+/containerd-mount\d+ )`)

// isContainers reports whether an address belongs to a network of the tests and is not a
// gateway's.
func isContainers(a netip.Addr) bool {
	for _, network := range []string{"10.98.0.0/16", "10.97.0.0/16", "fd00:98::/64", "10.202.0.0/16", "fd0a:110c:2e7::/64"} {
		if p := netip.MustParsePrefix(network); p.Contains(a) {
			return a != p.Addr().Next()
		}
	}
	return false
}

// get requests a path over HTTP from the external machine, at a port of the host.
func (h *host) get(port int, path string) (string, error) {
	return testhost.Get(h.outside, fmt.Sprintf("http://%s:%d%s", testhost.Host4.Addr(), port, path))
}

// requireGet is get for a path that must exist. The server may be starting.
func (h *host) requireGet(port int, path string) (body string) {
	h.t.Helper()
	var err error
	eventually(h.t, fmt.Sprintf("%s at port %d", path, port), func() bool {
		body, err = h.get(port, path)
		return err == nil
	})
	return body
}
