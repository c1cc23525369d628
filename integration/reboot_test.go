package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// bootVariable makes the test binary do the work of a process of one boot of the host: a
// bootRequest as JSON.
const bootVariable = "ALLOCNET_TEST_BOOT"

// bootRequest is what a process does after a boot: it recovers if requested, sets up
// allocations one after the other, checks them, and collects all others.
type bootRequest struct {
	Engine                  configurator.Engine
	Conf, Plugins, StateDir string
	Recover, GC             bool
	Setups                  []configurator.Allocation
}

// inBoot runs a bootRequest and prints the Status of each allocation as JSON.
func inBoot() {
	if err := runInBoot(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func runInBoot() error {
	var r bootRequest
	if err := json.Unmarshal([]byte(os.Getenv(bootVariable)), &r); err != nil {
		return err
	}
	libcni.CacheDir = "/var/lib/cni"
	c, err := configurator.New(configurator.Config{
		Engine: r.Engine, ConfDir: r.Conf, PluginDirs: []string{r.Plugins}, StateDir: r.StateDir, Backlog: -1, Logger: logger(os.Stderr),
	})
	if err != nil {
		return err
	}
	defer c.Close()
	ctx := context.Background()
	if r.Recover {
		if _, err := c.Recover(ctx); err != nil {
			return err
		}
	}
	statuses, live := []*configurator.Status{}, []string{}
	for _, a := range r.Setups {
		s, err := c.Setup(ctx, a)
		if err != nil {
			return fmt.Errorf("%s: %w", a.ID, err)
		}
		statuses, live = append(statuses, s), append(live, a.ID)
	}
	for _, a := range r.Setups {
		if err := c.Check(ctx, a); err != nil {
			return fmt.Errorf("%s: %w", a.ID, err)
		}
	}
	if r.GC {
		if _, err := c.GC(ctx, live); err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(statuses)
}

// boot makes the host's processes see another boot ID.
func (h *host) boot(n int) {
	h.T.Helper()
	const path = "/proc/sys/kernel/random/boot_id"
	file := filepath.Join(h.T.TempDir(), "boot_id")
	require.NoError(h.T, os.WriteFile(file, fmt.Appendf(nil, "%08d-0000-4000-8000-000000000000\n", n), 0o644))
	require.NoError(h.T, unix.Mount(file, path, "", unix.MS_BIND, ""))
	h.T.Cleanup(func() { require.NoError(h.T, unix.Unmount(path, unix.MNT_DETACH)) })
}

// powerOff ends everything in the kernel that does not survive a reboot, without a DEL.
func (h *host) powerOff(allocs ...configurator.Allocation) {
	h.T.Helper()
	for _, a := range allocs {
		require.NoError(h.T, sandbox.Destroy(a.Netns))
	}
	links, err := retry.List(netlink.LinkList)
	require.NoError(h.T, err)
	for _, l := range links {
		if l.Type() == "bridge" || l.Type() == "veth" && l.Attrs().Name != testhost.Wire {
			if err := netlink.LinkDel(l); err != nil {
				require.ErrorIs(h.T, err, unix.ENODEV, "it went with its peer")
			}
		}
	}
	privhost.FlushRuleset(h.T)
}

// ask runs a process of this boot and returns the IPv4 addresses of its allocations.
func (h *host) ask(r bootRequest) []string {
	h.T.Helper()
	r.Engine, r.Conf, r.Plugins = h.Config.Engine, h.ConfDir, testbed.PluginDir
	text, err := json.Marshal(r)
	require.NoError(h.T, err)
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), bootVariable+"="+string(text))
	var stderr strings.Builder
	c.Stderr = &stderr
	out, err := c.Output()
	require.NoError(h.T, err, "%s", &stderr)
	var statuses []*configurator.Status
	require.NoError(h.T, json.Unmarshal(out, &statuses))
	var addresses []string
	for _, s := range statuses {
		addresses = append(addresses, s.Address)
	}
	return addresses
}

// reboot is a reboot with or without the records, and what it asks of.
type reboot struct {
	*host
	data, state string
}

// reference runs a command of the reference plugin host-local, as podman and others do.
func (b *reboot) reference(command, id string) {
	b.T.Helper()
	c := exec.Command(filepath.Join(testbed.PluginDir, "host-local"))
	c.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0", "CNI_NETNS=/none", "CNI_NETNS_OVERRIDE=1", "CNI_PATH=/none"}
	c.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","type":"test","ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":%q}],[{"subnet":%q}]]}}`,
		b.data, testbed.Dual.V4, testbed.Dual.V6))
	out, err := c.Output()
	require.NoError(b.T, err, "%s", out)
}

// holders returns the containers with leases of a network, sorted.
func (b *reboot) holders(dir string) []string {
	b.T.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(b.T, err)
	var ids []string
	for _, e := range entries {
		if net.ParseIP(e.Name()) != nil {
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			require.NoError(b.T, err)
			id, _, _ := strings.Cut(string(text), "\r\n")
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// TestReboot: after a reboot, the leases of the earlier boot are reclaimed, in a network
// that opts in and in the embedded one. Those of another runtime stay, and allocations get
// their addresses again.
func TestReboot(t *testing.T) {
	testbed.EachElsewhere(t, testbed.Engines, func(t *testing.T, w testbed.Way) {
		for name, keepsRecords := range map[string]bool{"with records": true, "without records": false} {
			t.Run(name, func(t *testing.T) { testReboot(t, w, keepsRecords) })
		}
	})
}

func testReboot(t *testing.T, w testbed.Way, keepsRecords bool) {
	h := newHost(t, w.Engine)
	b := &reboot{host: h, data: t.TempDir(), state: filepath.Join(t.TempDir(), "state")}
	plugins := testbed.Chain("bridge", testbed.Dual, w.Backend)
	ipam := plugins[1]["ipam"].(map[string]any)
	ipam["dataDir"], ipam["reclaimOnBoot"] = b.data, true
	plugins[1]["capabilities"] = map[string]bool{"ips": true}
	h.Network("net", plugins...)
	allocation := func(id, network string, ips ...string) configurator.Allocation {
		a := h.allocIn(id)
		a.Networks, a.IPs = []string{network}, ips
		return a
	}

	h.boot(1)
	fixed := allocation("fixed", "net", "10.99.0.50")
	fixed.Ports = []portmap.Port{{Value: 8080, To: 80}}
	some, lost, embedded := allocation("some", "net"), allocation("lost", "net"), allocation("embedded", "allocnet")
	b.reference("ADD", "podman")
	first := h.ask(bootRequest{StateDir: b.state, Setups: []configurator.Allocation{fixed, some, lost, embedded}})
	require.Equal(t, "10.99.0.50", first[0])

	h.powerOff(fixed, some, lost, embedded)
	if !keepsRecords {
		for _, dir := range []string{"allocs", "claims", "sandboxes"} {
			require.NoError(t, os.RemoveAll(filepath.Join(b.state, dir)))
		}
	}
	h.boot(2)
	b.reference("ADD", "podman2") // before allocnet is used
	fresh := allocation("fresh", "net")
	for _, id := range []string{"fixed", "some", "lost", "embedded"} {
		h.allocIn(id)
	}
	second := h.ask(bootRequest{StateDir: b.state, Recover: keepsRecords, GC: true, Setups: []configurator.Allocation{fresh, embedded, some, fixed}})
	require.NotContains(t, first, second[0], "a new allocation gets no address of the earlier boot")
	require.Equal(t, first[0], second[3], "the requested address")
	if w.Engine == configurator.EngineNative {
		require.Equal(t, first[3], second[1], "that of the embedded network")
		require.Equal(t, first[1], second[2], "that of a network that opted in")
	}
	require.Equal(t, []string{"fixed", "fresh", "podman", "podman2", "some"}, b.holders(filepath.Join(b.data, "net")))
	require.Equal(t, []string{"embedded"}, b.holders(filepath.Join(b.state, "leases", "allocnet")))
	testbed.Serve(t, fixed.Netns, "tcp", 80, "fixed")
	testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080), "fixed")

	h.ask(bootRequest{StateDir: b.state, GC: true})
	require.Equal(t, []string{"podman", "podman2"}, b.holders(filepath.Join(b.data, "net")))
	require.Empty(t, b.holders(filepath.Join(b.state, "leases", "allocnet")))
}

// allocIn is Alloc for a namespace that the test destroys itself.
func (h *host) allocIn(id string) configurator.Allocation {
	h.T.Helper()
	s, err := sandbox.Create(id)
	require.NoError(h.T, err)
	require.NoError(h.T, s.Close())
	h.T.Cleanup(func() {
		if _, err := os.Lstat(s.Path()); err == nil {
			require.NoError(h.T, sandbox.Destroy(s.Path()))
		}
	})
	return configurator.Allocation{ID: id, Netns: s.Path()}
}
