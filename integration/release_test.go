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
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
)

// lifecycle sets allocations up and tears them down.
type lifecycle interface {
	setUp(a configurator.Allocation) *configurator.Status
	tearDown(allocs ...configurator.Allocation)
}

// plainRuntime uses allocnet's plugins without the configurator: it calls them
// through libcni.
type plainRuntime struct {
	h    *host
	cni  *libcni.CNIConfig
	list *libcni.NetworkConfigList
}

func newPlainRuntime(h *host, dirs ...string) plainRuntime {
	h.t.Helper()
	h.pools = nil // the runtime makes the network namespaces
	list, err := libcni.ConfListFromFile(filepath.Join(h.conf, "net.conflist"))
	require.NoError(h.t, err)
	return plainRuntime{h, libcni.NewCNIConfigWithCacheDir(dirs, h.t.TempDir(), nil), list}
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

func (r plainRuntime) setUp(a configurator.Allocation) *configurator.Status {
	r.h.t.Helper()
	_, err := r.cni.AddNetworkList(r.h.ctx(), r.list, r.conf(a))
	require.NoError(r.h.t, err)
	return nil
}

func (r plainRuntime) tearDown(allocs ...configurator.Allocation) {
	r.h.t.Helper()
	for _, a := range allocs {
		require.NoError(r.h.t, r.cni.DelNetworkList(r.h.ctx(), r.list, r.conf(a)))
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
		"drop-ins":        {main: "bridge", routed: true, dirs: func(t *testing.T) []string { return []string{dropIns(t)} }},
		"drop-in portmap": {main: "bridge", dirs: func(t *testing.T) []string { return []string{onlyPortmap(t), pluginDir} }},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, c.engine)
			plugins := chain(c.main, dual, "")
			plugins[1]["ipam"] = fewAddresses()
			h.network("net", plugins...)
			var r lifecycle = h
			if c.dirs != nil {
				r = newPlainRuntime(h, c.dirs(t)...)
			}
			testReleasedAddress(h, r, c.routed)
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

// fewAddresses returns an IPAM configuration with two addresses of each family.
func fewAddresses() map[string]any {
	pool := func(subnet, start, end string) []any {
		return []any{map[string]any{"subnet": subnet, "rangeStart": start, "rangeEnd": end}}
	}
	return map[string]any{"type": "host-local", "routes": []any{map[string]any{"dst": "0.0.0.0/0"}, map[string]any{"dst": "::/0"}},
		"ranges": []any{pool(dual.v4, "10.99.0.2", "10.99.0.3"), pool(dual.v6, "fd00:99::2", "fd00:99::3")}}
}

func testReleasedAddress(h *host, r lifecycle, routed bool) {
	t := h.t
	setSysctls(t, "", quick)
	servers := [][]netip.Prefix{{host4, host6}, {host4b, host6b}}
	var old []configurator.Allocation
	for i, addrs := range servers {
		a := h.alloc(fmt.Sprint("old-", i))
		for _, p := range addrs {
			a.Ports = append(a.Ports, portmap.Port{Value: 8080, To: 80, HostIP: p.Addr().String(), Protocols: []string{"tcp", "udp"}})
		}
		h.inNew(a, func() {
			serve(t, a.Netns, "udp", 80, a.ID)
			serveStreams(t, a.Netns)
		})
		r.setUp(a)
		old = append(old, a)
	}
	var clients []net.Conn
	for i, addrs := range servers {
		for _, p := range addrs {
			c := h.client(at(p.Addr(), 8080))
			answer, err := exchange(c)
			require.NoError(t, err)
			require.Contains(t, answer, old[i].ID)
			clients = append(clients, c)
			h.openStream(at(p.Addr(), 8080))
		}
		if routed {
			speak(t, old[i].Netns, at(outside4.Addr(), 9), at(outside6.Addr(), 9), at(host4.Addr(), 9))
		}
	}
	requireTracked(t, true)

	for _, a := range old {
		r.tearDown(a)
	}
	requireTracked(t, false)
	var next []configurator.Allocation
	for i := range servers {
		a := h.alloc(fmt.Sprint("next-", i))
		h.inNew(a, func() { serve(t, a.Netns, "udp", 80, a.ID) })
		r.setUp(a)
		next = append(next, a)
	}
	for _, c := range clients {
		_, err := exchange(c)
		require.ErrorIs(t, err, unix.ECONNREFUSED, "%s is nobody's port", c.RemoteAddr())
	}
	requireTracked(t, false)
	for _, a := range next {
		r.tearDown(a)
	}
}

// serveStreams echoes every byte on TCP port 80 until the client disconnects.
func serveStreams(t testing.TB, netns string) {
	t.Helper()
	within(t, netns, func() error {
		l, err := net.Listen("tcp", ":80")
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				t.Cleanup(func() { c.Close() })
				go func() { _, _ = io.Copy(c, c) }()
			}
		}()
		return nil
	})
}

// openStream opens a TCP connection from outside that stays established.
func (h *host) openStream(to string) {
	h.t.Helper()
	within(h.t, h.outside.Path(), func() error {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		c, err := (&net.Dialer{KeepAlive: -1}).DialContext(ctx, "tcp", to)
		if err != nil {
			return err
		}
		h.t.Cleanup(func() { c.Close() })
		if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
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
	within(t, netns, func() error {
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
				return err == nil && isAllocations(addr)
			}
			if strings.HasPrefix(line, family) && slices.ContainsFunc(strings.Fields(line), concerns) {
				list = append(list, line)
			}
		}
		require.Equal(t, want, len(list) > 0, "%s%q", family, list)
	}
}

// isAllocations reports whether an address belongs to a test network and is not
// a gateway's.
func isAllocations(addr netip.Addr) bool {
	return slices.ContainsFunc([]string{"10.99.0.0/16", dual.v6}, func(network string) bool {
		subnet, err := addr.Prefix(map[bool]int{true: 24, false: 64}[addr.Is4()])
		return err == nil && netip.MustParsePrefix(network).Contains(addr) && addr != subnet.Addr().Next()
	})
}
