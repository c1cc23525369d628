package bandwidth

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/testing/plugintest"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

const (
	testNetwork   = "testnet"
	testContainer = "alloc-1"
	testIfName    = "eth0"
	testVeth      = "vethtest"
	vethMAC       = "0a:00:00:00:00:01"
	ifMAC         = "0a:00:00:00:00:02"
)

// testHost is a private host with one container.
type testHost struct {
	*testing.T
	shared *sdk.Host
	netns  *sandbox.Sandbox
	veth   netlink.Link
}

// newTestHost creates the container and its veth like a bridge plugin.
func newTestHost(t *testing.T) *testHost {
	t.Helper()
	privhost.Require(t)
	k := rtnl.OpenHost()
	t.Cleanup(k.Close)
	h := &testHost{T: t, shared: &sdk.Host{Kernel: k, Log: hclog.NewNullLogger()}}
	var err error
	h.netns, err = sandbox.Create("test")
	require.NoError(t, err)
	t.Cleanup(h.clear)
	err = h.netns.With(func(fd int) error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs:        netlink.LinkAttrs{Name: testVeth, MTU: 1400, HardwareAddr: plugintest.MAC(t, vethMAC), Flags: net.FlagUp},
			PeerName:         testIfName,
			PeerHardwareAddr: plugintest.MAC(t, ifMAC),
			PeerNamespace:    netlink.NsFd(fd),
		})
	})
	require.NoError(t, err)
	h.veth, err = netlink.LinkByName(testVeth)
	require.NoError(t, err)
	requireShaping(h)
	return h
}

// requireShaping skips the test on a kernel that lacks what the plugin needs.
func requireShaping(h *testHost) {
	h.Helper()
	probe := newIfb("probe", nil, 1500)
	err := netlink.LinkAdd(probe)
	if err == nil {
		err = netlink.QdiscAdd((&bucket{rate: 1000, burst: 1e6, limit: 3000}).qdisc(probe.Index))
		defer netlink.LinkDel(probe)
	}
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOENT) {
		skip.Unless(h, false, "the kernel has no ifb or no tbf: %v", err)
	}
	require.NoError(h, err)
}

// clear destroys the container and removes all veths and ifbs.
func (h *testHost) clear() {
	require.NoError(h, h.netns.Destroy())
	links, err := retry.List(netlink.LinkList)
	require.NoError(h, err)
	for _, link := range links {
		if link.Type() == "veth" || link.Type() == "ifb" {
			if err := netlink.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
				require.NoError(h, err)
			}
		}
	}
}

// runner runs the plugin, and returns its output and the code of its error, 0 for none.
type runner func(h *testHost, command, conf string, env ...string) (stdout string, code uint)

func (h *testHost) env(command string, more []string) []string {
	return append([]string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + testContainer, "CNI_NETNS=" + h.netns.Path(),
		"CNI_IFNAME=" + testIfName, "CNI_PATH=/nowhere",
	}, more...)
}

// ours runs the native plugin.
func ours(h *testHost, command, conf string, env ...string) (string, uint) {
	out, err := h.native(command, conf, env...)
	return out, plugintest.ReportedCode(err)
}

func (h *testHost) native(command, conf string, env ...string) (string, error) {
	x := &sdk.Exec{Plugins: map[string]sdk.Factory{"bandwidth": New}, Host: h.shared}
	return plugintest.Native(h, x, "bandwidth", conf, h.env(command, env))
}

// theirs runs the reference plugin.
func theirs(h *testHost, command, conf string, env ...string) (string, uint) {
	out, err := plugintest.Reference(h, "bandwidth", conf, h.env(command, env))
	return out, plugintest.ReportedCode(err)
}

// previous returns the prevResult with the container's interface.
func previous(h *testHost) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "interfaces": [{"name": %q, "mac": %q},
		{"name": %q, "mac": %q, "sandbox": %q}], "ips": [{"address": "10.1.0.2/24", "interface": 1}]}`,
		testVeth, vethMAC, testIfName, ifMAC, h.netns.Path())
}

// config returns a configuration of version 1.0.0. extra begins with a comma.
func (h *testHost) config(extra string) string {
	return h.configWith("1.0.0", extra+`, "prevResult": `+previous(h))
}

func (h *testHost) configWith(version, extra string) string {
	return fmt.Sprintf(`{"cniVersion": %q, "name": %q, "type": "bandwidth"%s}`, version, testNetwork, extra)
}

// state describes the traffic shaping of the container as text.
func (h *testHost) state() []string {
	links, err := retry.List(netlink.LinkList)
	require.NoError(h, err)
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	state := []string{}
	for _, l := range links {
		a := l.Attrs()
		if l.Type() == "ifb" {
			state = append(state, fmt.Sprintf("ifb %s mtu %d qlen %d queues %d/%d up %t",
				a.Name, a.MTU, a.TxQLen, a.NumTxQueues, a.NumRxQueues, a.Flags&net.FlagUp != 0))
		}
		if l.Type() == "ifb" || a.Name == testVeth {
			state = append(state, h.disciplines(l)...)
			state = append(state, h.filters(l, names)...)
		}
	}
	return state
}

func (h *testHost) disciplines(l netlink.Link) (state []string) {
	qdiscs, err := netlink.QdiscList(l)
	require.NoError(h, err)
	for _, q := range qdiscs {
		a := q.Attrs()
		line := fmt.Sprintf("%s qdisc %s %s parent %x", l.Attrs().Name, q.Type(), netlink.HandleStr(a.Handle), a.Parent)
		if tbf, ok := q.(*netlink.Tbf); ok {
			line += fmt.Sprintf(" rate %d burst %d limit %d", tbf.Rate, tbf.Buffer, tbf.Limit)
		}
		if q.Type() != "noqueue" {
			state = append(state, line)
		}
	}
	return state
}

// filters describes only the first action: the reference plugin adds another
// one that no packet reaches.
func (h *testHost) filters(l netlink.Link, names map[int]string) (state []string) {
	filters, err := netlink.FilterList(l, ingressHandle)
	if errors.Is(err, unix.EINVAL) {
		return nil
	}
	require.NoError(h, err)
	for _, f := range filters {
		u, ok := f.(*netlink.U32)
		require.True(h, ok, "%T", f)
		require.NotEmpty(h, u.Actions)
		m, ok := u.Actions[0].(*netlink.MirredAction)
		require.True(h, ok, "%T", u.Actions[0])
		state = append(state, fmt.Sprintf("%s filter prio %d proto %x class %x keys %d mirred %d to %s then %d",
			l.Attrs().Name, u.Priority, u.Protocol, u.ClassId, len(u.Sel.Keys), m.MirredAction, names[m.Ifindex], m.Action))
	}
	return state
}
