package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// lifecycle sets allocations up and tears them down.
type lifecycle interface {
	SetUp(a configurator.Allocation) *configurator.Status
	TearDown(allocs ...configurator.Allocation)
}

// plainRuntime uses allocnet's plugins without the configurator: it calls them
// through libcni.
type plainRuntime struct {
	h    *host
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

func newPlainRuntime(h *host, dirs ...string) plainRuntime {
	h.T.Helper()
	h.WithoutPools() // the runtime makes the network namespaces
	list, err := libcni.ConfListFromFile(filepath.Join(h.ConfDir, "net.conflist"))
	require.NoError(h.T, err)
	return plainRuntime{h, libcni.NewCNIConfigWithCacheDir(dirs, h.T.TempDir(), nil), list}
}

func (r plainRuntime) conf(a configurator.Allocation) *libcni.RuntimeConf {
	var mappings []map[string]any
	for _, p := range a.Ports {
		for _, protocol := range p.Protocols {
			mappings = append(mappings, map[string]any{"hostPort": p.Value, "containerPort": p.To, "protocol": protocol, "hostIP": p.HostIP})
		}
	}
	return &libcni.RuntimeConf{ContainerID: a.ID, NetNS: a.Netns, IfName: "eth0", CapabilityArgs: map[string]any{"portMappings": mappings}}
}

func (r plainRuntime) SetUp(a configurator.Allocation) *configurator.Status {
	r.h.T.Helper()
	_, err := r.cni.AddNetworkList(r.h.Context(), r.list, r.conf(a))
	require.NoError(r.h.T, err)
	return nil
}

func (r plainRuntime) TearDown(allocs ...configurator.Allocation) {
	r.h.T.Helper()
	for _, a := range allocs {
		require.NoError(r.h.T, r.cni.DelNetworkList(r.h.Context(), r.list, r.conf(a)))
	}
}

// TestReleasedAddress: the kernel tracks no connection of a free address. So
// clients of the last allocation that had it do not reach the next one, which
// publishes nothing.
func TestReleasedAddress(t *testing.T) {
	for name, c := range map[string]struct {
		engine configurator.Engine
		main   string
		dirs   func(t *testing.T) []string // plugin directories of a plain runtime
		routed bool                        // whether connections without a host port are tested, too
	}{
		"native bridge":   {engine: configurator.EngineNative, main: "bridge", routed: true},
		"native ptp":      {engine: configurator.EngineNative, main: "ptp", routed: true},
		"exec":            {engine: configurator.EngineExec, main: "bridge", routed: true},
		"drop-ins":        {main: "bridge", routed: true, dirs: func(t *testing.T) []string { return []string{testbed.DropIns(t)} }},
		"drop-in portmap": {main: "bridge", dirs: func(t *testing.T) []string { return []string{onlyPortmap(t), testbed.PluginDir} }},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, c.engine)
			plugins := testbed.Chain(c.main, testbed.Dual, "")
			servers := [][]netip.Prefix{{testhost.Host4, testhost.Host6}, {testhost.Host4b, testhost.Host6b}}
			if testing.Short() && c.engine != configurator.EngineNative { // plugins are processes
				servers = servers[:1]
			}
			plugins[1]["ipam"] = addresses(len(servers))
			h.Network("net", plugins...)
			var r lifecycle = h
			if c.dirs != nil {
				r = newPlainRuntime(h, c.dirs(t)...)
			}
			testReleasedAddress(h, r, servers, c.routed)
		})
	}
}

// onlyPortmap returns a directory that contains only allocnet's portmap.
func onlyPortmap(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.Symlink(self, filepath.Join(dir, "portmap")))
	return dir
}

// addresses returns an IPAM configuration with n addresses of each family.
func addresses(n int) map[string]any {
	pool := func(subnet, prefix string) []any {
		return []any{map[string]any{"subnet": subnet, "rangeStart": prefix + "2", "rangeEnd": prefix + strconv.Itoa(1+n)}}
	}
	return map[string]any{"type": "host-local", "routes": []any{map[string]any{"dst": "0.0.0.0/0"}, map[string]any{"dst": "::/0"}},
		"ranges": []any{pool(testbed.Dual.V4, "10.99.0."), pool(testbed.Dual.V6, "fd00:99::")}}
}

// testReleasedAddress sets up an allocation for each of the servers, with its addresses of the host, and then as many
// others.
func testReleasedAddress(h *host, r lifecycle, servers [][]netip.Prefix, routed bool) {
	t := h.T
	testbed.SetSysctls(t, "", testbed.Quick)
	var old []configurator.Allocation
	for i, addrs := range servers {
		a := h.Alloc(fmt.Sprint("old-", i))
		for _, p := range addrs {
			a.Ports = append(a.Ports, portmap.Port{Value: 8080, To: 80, HostIP: p.Addr().String(), Protocols: []string{"tcp", "udp"}})
		}
		h.InNew(a, func() {
			testbed.Serve(t, a.Netns, "udp", 80, a.ID)
			testbed.ServeStreams(t, a.Netns)
		})
		r.SetUp(a)
		old = append(old, a)
	}
	var clients []net.Conn
	for i, addrs := range servers {
		for _, p := range addrs {
			c := h.client(testbed.At(p.Addr(), 8080))
			answer, err := exchange(c)
			require.NoError(t, err)
			require.Contains(t, answer, old[i].ID)
			clients = append(clients, c)
			h.openStream(testbed.At(p.Addr(), 8080))
		}
		if routed {
			speak(t, old[i].Netns, testbed.At(testhost.Outside4.Addr(), 9), testbed.At(testhost.Outside6.Addr(), 9), testbed.At(testhost.Host4.Addr(), 9))
		}
	}
	requireTracked(t, true)

	for _, a := range old {
		r.TearDown(a)
	}
	requireTracked(t, false)
	var next []configurator.Allocation
	for i := range servers {
		a := h.Alloc(fmt.Sprint("next-", i))
		h.InNew(a, func() { testbed.Serve(t, a.Netns, "udp", 80, a.ID) })
		r.SetUp(a)
		next = append(next, a)
	}
	for _, c := range clients {
		_, err := exchange(c)
		require.ErrorIs(t, err, unix.ECONNREFUSED, "%s is nobody's port", c.RemoteAddr())
	}
	requireTracked(t, false)
	for _, a := range next {
		r.TearDown(a)
	}
}

// openStream opens a TCP connection from outside that stays established.
func (h *host) openStream(to string) {
	h.T.Helper()
	testbed.Within(h.T, h.Outside.Path(), func() error {
		ctx, cancel := context.WithTimeout(context.Background(), testbed.Timeout)
		defer cancel()
		c, err := (&net.Dialer{KeepAlive: -1}).DialContext(ctx, "tcp", to)
		if err != nil {
			return err
		}
		h.T.Cleanup(func() { c.Close() })
		if err := c.SetDeadline(time.Now().Add(testbed.Timeout)); err != nil {
			return err
		}
		if _, err := c.Write([]byte("?")); err != nil {
			return err
		}
		_, err = io.ReadFull(c, make([]byte, 1))
		return err
	})
}

// speak sends a datagram from an allocation to each of the addresses.
func speak(t testing.TB, netns string, to ...string) {
	t.Helper()
	testbed.Within(t, netns, func() error {
		for _, addr := range to {
			c, err := net.Dial("udp", addr)
			if err != nil {
				return err
			}
			defer c.Close()
			if _, err := c.Write([]byte("!")); err != nil {
				return err
			}
		}
		return nil
	})
}

// requireTracked checks whether connections of allocations' addresses are
// tracked: for both families, or for none.
func requireTracked(t testing.TB, want bool) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/net/nf_conntrack")
	require.NoError(t, err)
	for _, family := range []string{"ipv4 ", "ipv6 "} {
		var list []string
		for line := range strings.Lines(string(text)) {
			concerns := func(word string) bool {
				_, text, _ := strings.Cut(word, "=")
				addr, err := netip.ParseAddr(text)
				return err == nil && testbed.IsAllocations(addr)
			}
			if strings.HasPrefix(line, family) && slices.ContainsFunc(strings.Fields(line), concerns) {
				list = append(list, line)
			}
		}
		require.Equal(t, want, len(list) > 0, "%s%q", family, list)
	}
}
