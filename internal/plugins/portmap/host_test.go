package portmap_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/plugins/portmap"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/plugintest"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

type object = map[string]any

// testHost is a host with a bridge, and an external machine:
//
//	outside 192.0.2.2 -- 192.0.2.1 host 10.9.0.1 -- bridge "br0" -- allocations
//	     fd00:2::2 -- fd00:2::1      fd00:9::1
type testHost struct {
	t                 testing.TB
	host              *sdk.Host
	log               *bytes.Buffer
	native, reference answer
	bridge            netlink.Link
	outside           *sandbox.Sandbox
}

// answer runs a plugin on its stdin and environment, and returns its stdout.
type answer func(ctx context.Context, plugin string, conf []byte, environ []string) ([]byte, error)

// reference runs the reference plugin.
func reference(ctx context.Context, plugin string, conf []byte, environ []string) ([]byte, error) {
	dir, err := refplugins.Dir()
	if err != nil {
		return nil, err
	}
	return (&pluginexec.Exec{}).ExecPlugin(ctx, filepath.Join(dir, plugin), conf, environ)
}

func newTestHost(t testing.TB) *testHost {
	t.Helper()
	privhost.Require(t, "iptables", "ip6tables", "nft")
	h := &testHost{t: t, log: &bytes.Buffer{}, reference: reference}
	var err error
	h.host, err = sdk.OpenHost(hclog.New(&hclog.LoggerOptions{Output: h.log}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.host.Close()) })
	native := &sdk.Exec{Plugins: map[string]sdk.Factory{"portmap": portmap.New}, Host: h.host, Binary: &pluginexec.Exec{}}
	t.Cleanup(func() { require.NoError(t, native.Close()) })
	h.native = native.Answer

	privhost.FlushRuleset(h.t)
	require.NoError(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
	for path, value := range map[string]string{
		"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1",
		"ipv4/icmp_ratelimit": "0", "ipv6/icmp/ratelimit": "0", // refuse every connection at once
		"ipv6/conf/default/accept_dad": "0", // the source of a neighbour solicitation must not be tentative
	} {
		require.NoError(t, os.WriteFile("/proc/sys/net/"+path, []byte(value), 0))
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "br0"
	h.bridge = &netlink.Bridge{LinkAttrs: attrs}
	require.NoError(t, netlink.LinkAdd(h.bridge))
	t.Cleanup(func() { require.NoError(t, netlink.LinkDel(h.bridge)) })
	configure(t, h.bridge, "10.9.0.1/24", "fd00:9::1/64")
	h.outside = h.sandbox("outside", "out0", "192.0.2.2/24", "fd00:2::2/64")
	link, err := netlink.LinkByName("out0")
	require.NoError(t, err)
	configure(t, link, "192.0.2.1/24", "fd00:2::1/64")
	h.await("out0")
	return h
}

// sandbox creates a namespace with eth0, whose peer on the host has the given
// name. Its default route leads to the address that ends in 1.
func (h *testHost) sandbox(name, link string, addresses ...string) *sandbox.Sandbox {
	t := h.t
	t.Helper()
	s, err := sandbox.Create(name)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Destroy()) })
	require.NoError(t, s.Do(func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)
	}))
	require.NoError(t, s.With(func(fd int) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = link
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(fd)})
	}))
	t.Cleanup(func() {
		pair, err := netlink.LinkByName(link)
		require.NoError(t, err)
		require.NoError(t, netlink.LinkDel(pair))
	})
	require.NoError(t, s.Do(func() error {
		eth0, err := netlink.LinkByName("eth0")
		require.NoError(t, err)
		configure(t, eth0, addresses...)
		for _, address := range addresses {
			ip, _, err := net.ParseCIDR(address)
			require.NoError(t, err)
			ip[len(ip)-1] = 1
			require.NoError(t, netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: ip}))
		}
		return nil
	}))
	return s
}

func configure(t testing.TB, link netlink.Link, addresses ...string) {
	t.Helper()
	for _, address := range addresses {
		addr, err := netlink.ParseAddr(address)
		require.NoError(t, err)
		if addr.IP.To4() == nil {
			addr.Flags = 2 // IFA_F_NODAD
		}
		require.NoError(t, netlink.AddrAdd(link, addr))
	}
	require.NoError(t, netlink.LinkSetUp(link))
}

// await waits until a link has a carrier, which the kernel may report late.
func (h *testHost) await(link string) {
	h.t.Helper()
	require.Eventually(h.t, func() bool {
		up, err := h.host.Kernel.AreOperational(link)
		return err == nil && up
	}, timeout, time.Millisecond)
}

// allocation is a sandbox on the bridge.
type allocation struct {
	*sandbox.Sandbox
	h      *testHost
	id     string
	ips    []object
	config object
}

// allocation creates the allocation whose address ends in a number.
func (h *testHost) allocation(number int) *allocation {
	h.t.Helper()
	v4, v6 := fmt.Sprintf("10.9.0.%d/24", number), fmt.Sprintf("fd00:9::%d/64", number)
	a := &allocation{h: h, id: fmt.Sprintf("alloc-%d", number)}
	link := fmt.Sprintf("veth%d", number)
	a.Sandbox = h.sandbox(a.id, link, v4, v6)
	port, err := netlink.LinkByName(link)
	require.NoError(h.t, err)
	require.NoError(h.t, netlink.LinkSetMaster(port, h.bridge))
	// With br_netfilter, the bridge itself sends frames back to the port that
	// they came from.
	require.NoError(h.t, netlink.LinkSetHairpin(port, true))
	require.NoError(h.t, netlink.LinkSetUp(port))
	h.await(link)
	a.ips = []object{
		{"address": "10.9.0.1/24", "interface": 0}, // not the sandbox's interface
		{"address": v4, "interface": 2}, {"address": v6, "interface": 2},
		{"address": "10.9.0.200/24", "interface": 2}, // not the first address
	}
	a.config = object{"cniVersion": "1.0.0", "name": "net", "type": "portmap"}
	return a
}

// with returns the allocation with additional keys in its configuration.
func (a *allocation) with(keys object) *allocation {
	other := *a
	other.config = merge(a.config, keys)
	return &other
}

func merge(one, two object) object {
	merged := object{}
	for _, o := range []object{one, two} {
		for k, v := range o {
			merged[k] = v
		}
	}
	return merged
}

// ports returns the runtimeConfig for port mappings:
// "hostIP:hostPort->port/protocol".
func ports(mappings ...string) object {
	list := []object{}
	for _, m := range mappings {
		from, to, _ := strings.Cut(m, "->")
		to, protocol, _ := strings.Cut(to, "/")
		host, port := "", from
		if i := strings.LastIndex(from, ":"); i >= 0 {
			host, port = strings.Trim(from[:i], "[]"), from[i+1:]
		}
		list = append(list, object{"hostPort": json.Number(port), "containerPort": json.Number(to), "protocol": protocol, "hostIP": host})
	}
	return object{"runtimeConfig": object{"portMappings": list}}
}

// call runs an operation as a runtime does.
func (a *allocation) call(run answer, command string) ([]byte, error) {
	a.h.t.Helper()
	conf := a.config
	if _, ok := conf["prevResult"]; !ok && command != "GC" && command != "STATUS" {
		conf = merge(conf, object{"prevResult": object{"cniVersion": "1.0.0", "ips": a.ips, "interfaces": []object{
			{"name": "br0"}, {"name": "veth"}, {"name": "eth0", "sandbox": a.Path()},
		}}})
	}
	data, err := json.Marshal(conf)
	require.NoError(a.h.t, err)
	dir, err := refplugins.Dir()
	require.NoError(a.h.t, err)
	return run(context.Background(), "portmap", data, []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + a.id, "CNI_NETNS=" + a.Path(), "CNI_IFNAME=eth0",
		"CNI_PATH=" + dir, "PATH=" + os.Getenv("PATH"),
	})
}

// do runs an operation of the native plugin, which must succeed.
func (a *allocation) do(command string) {
	a.h.t.Helper()
	_, err := a.call(a.h.native, command)
	require.NoError(a.h.t, err, command)
	require.Empty(a.h.t, a.h.log.String(), "there were warnings")
}

func (h *testHost) run(name string, args ...string) string {
	h.t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(h.t, err, "%s %v: %s", name, args, out)
	return string(out)
}

// code returns the CNI error code of an error, as a runtime gets it.
func code(err error) uint { return plugintest.ReportedCode(err) }
