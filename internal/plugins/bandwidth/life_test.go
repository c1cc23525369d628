package bandwidth

import (
	"context"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/testing/plugintest"
	"github.com/allocnet/allocnet/sandbox"
)

func (h *testHost) add(extra string, env ...string) string {
	h.Helper()
	out, err := h.native("ADD", h.config(extra), env...)
	require.NoError(h, err)
	return out
}

func TestAddNamesTheOwner(t *testing.T) {
	h := newTestHost(t)
	h.add(static)
	ifb, err := netlink.LinkByName(ifbName(testNetwork, testContainer))
	require.NoError(t, err)
	require.Equal(t, names.Owner{Network: testNetwork, ID: testContainer, IfName: testIfName}.String(), ifb.Attrs().Alias)
}

// TestFailedAddLeavesNothing lets a late step fail, because its object exists
// already.
func TestFailedAddLeavesNothing(t *testing.T) {
	for name, obstruct := range map[string]func(*testHost) error{
		"ifb": func(h *testHost) error {
			return netlink.LinkAdd(newIfb(ifbName(testNetwork, testContainer), nil, 1500))
		},
		"ingress discipline": func(h *testHost) error {
			return netlink.QdiscAdd(newIngress(h.veth.Attrs().Index))
		},
		"bucket": func(h *testHost) error {
			return netlink.QdiscAdd((&bucket{rate: 1000, burst: 1e6, limit: 3000}).qdisc(h.veth.Attrs().Index))
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			require.NoError(t, obstruct(h))
			before := h.state()
			_, err := h.native("ADD", h.config(static))
			require.ErrorContains(t, err, "file exists")
			require.Equal(t, before, h.state())
		})
	}
}

func TestAddUndoesAfterItsContext(t *testing.T) {
	h := newTestHost(t)
	ctx, cancel := context.WithCancel(context.Background())
	a := &addition{host: h.shared.Kernel, veth: h.veth, ifbName: ifbName(testNetwork, testContainer)}
	ingress, egress, err := Limits{800, 8000, 800, 8000}.buckets()
	require.NoError(t, err)
	before := h.state()
	end := sdk.Step{Name: "end", Do: func(context.Context) error { cancel(); return ctx.Err() }}
	require.ErrorIs(t, sdk.Run(ctx, append(a.steps(ingress, egress), end)...), context.Canceled)
	require.Equal(t, before, h.state())
}

// TestPeerInAThirdNamespace uses an interface whose peer has the same index as
// the host's veth.
func TestPeerInAThirdNamespace(t *testing.T) {
	h := newTestHost(t)
	third, err := sandbox.Create("third")
	require.NoError(t, err)
	defer func() { require.NoError(t, third.Destroy()) }()
	require.NoError(t, h.netns.With(func(fd int) error {
		return third.Do(func() error {
			return netlink.LinkAdd(&netlink.Veth{
				LinkAttrs: netlink.LinkAttrs{Name: "x", Index: h.veth.Attrs().Index}, PeerName: "eth1", PeerNamespace: netlink.NsFd(fd),
			})
		})
	}))
	_, err = h.native("ADD", h.config(static), "CNI_IFNAME=eth1")
	require.ErrorContains(t, err, `the peer of interface "eth1" is not on the host`)
}

func TestDelWithoutTheNamespace(t *testing.T) {
	for name, env := range map[string][]string{"gone": nil, "unknown": {"CNI_NETNS="}} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			h.add(static)
			require.NoError(t, sandbox.Destroy(h.netns.Path()))
			for range 2 {
				_, err := h.native("DEL", h.config(static), env...)
				require.NoError(t, err)
				require.NotContains(t, h.linkNames(), ifbName(testNetwork, testContainer))
			}
		})
	}
}

// TestDelOfABadConfiguration deletes what an ADD with another one made.
func TestDelOfABadConfiguration(t *testing.T) {
	h := newTestHost(t)
	h.add(static)
	_, err := h.native("DEL", h.configWith("1.0.0", `, "ingressRate": 5, "prevResult": {"cniVersion": "9"}`))
	require.NoError(t, err)
	require.NotContains(t, h.linkNames(), ifbName(testNetwork, testContainer))
}

// TestDelOfAnotherInterface: the interfaces of a container share the ifb's
// name, so the second one cannot be limited, and its DEL must not remove the
// limits of the first one.
func TestDelOfAnotherInterface(t *testing.T) {
	h := newTestHost(t)
	h.add(static)
	before := h.state()
	_, err := h.native("DEL", h.config(static), "CNI_IFNAME=eth1")
	require.NoError(t, err)
	require.Equal(t, before, h.state())
}

// TestCheckFinds removes one object at a time.
func TestCheckFinds(t *testing.T) {
	ifb := func(t *testing.T) netlink.Link {
		link, err := netlink.LinkByName(ifbName(testNetwork, testContainer))
		require.NoError(t, err)
		return link
	}
	for name, test := range map[string]struct {
		harm func(*testing.T, *testHost) error
		want string
	}{
		"nothing": {func(*testing.T, *testHost) error { return nil }, ""},
		"veth's bucket gone": {func(t *testing.T, h *testHost) error {
			return netlink.QdiscDel((&bucket{}).qdisc(h.veth.Attrs().Index))
		}, "no token bucket"},
		"veth's bucket changed": {func(t *testing.T, h *testHost) error {
			b := fill(1000, 100_000)
			return netlink.QdiscReplace(b.qdisc(h.veth.Attrs().Index))
		}, "the rate is 1000 bytes per second, not 1000000"},
		"ifb's bucket gone": {func(t *testing.T, h *testHost) error {
			return netlink.QdiscDel((&bucket{}).qdisc(ifb(t).Attrs().Index))
		}, "no token bucket"},
		"ifb gone": {func(t *testing.T, h *testHost) error { return netlink.LinkDel(ifb(t)) }, "find ifb"},
		"ingress discipline gone": {func(t *testing.T, h *testHost) error {
			return netlink.QdiscDel(newIngress(h.veth.Attrs().Index))
		}, "does not redirect"},
		"redirected elsewhere": {func(t *testing.T, h *testHost) error {
			f := redirect(h.veth.Attrs().Index, h.veth.Attrs().Index)
			require.NoError(t, netlink.QdiscDel(newIngress(h.veth.Attrs().Index)))
			require.NoError(t, netlink.QdiscAdd(newIngress(h.veth.Attrs().Index)))
			return netlink.FilterAdd(f)
		}, "does not redirect"},
		"veth gone": {func(t *testing.T, h *testHost) error { return netlink.LinkDel(h.veth) }, "find interface"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			result := h.add(static)
			require.NoError(t, test.harm(t, h))
			_, err := h.native("CHECK", plugintest.WithPrevResult(t, h.config(static), result))
			if test.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, test.want)
			var coded *types.Error
			require.ErrorAs(t, err, &coded, "a finding has a code")
		})
	}
}

func (h *testHost) linkNames() (all []string) {
	links, err := retry.List(netlink.LinkList)
	require.NoError(h, err)
	for _, l := range links {
		all = append(all, l.Attrs().Name)
	}
	return all
}

func TestGC(t *testing.T) {
	h := newTestHost(t)
	alias := func(network, id string) string {
		return names.Owner{Network: network, ID: id, IfName: testIfName}.String()
	}
	for name, owner := range map[string]string{
		"bwp-live": alias(testNetwork, "live"), "bwp-dead1": alias(testNetwork, "dead1"),
		"bwp-dead2": alias(testNetwork, "dead2"), "bwp-other": alias("other", "dead1"),
		"bwp-theirs": "", "ifb-dead": alias(testNetwork, "dead1"),
	} {
		ifb := newIfb(name, nil, 1500)
		require.NoError(t, netlink.LinkAdd(ifb))
		if owner != "" {
			require.NoError(t, netlink.LinkSetAlias(ifb, owner))
		}
	}
	conf := h.configWith("1.1.0", `, "cni.dev/valid-attachments": [{"containerID": "live", "ifname": "eth0"}]`)
	for range 2 {
		_, err := h.native("GC", conf)
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"lo", testVeth, "bwp-live", "bwp-other", "bwp-theirs", "ifb-dead"}, h.linkNames())
	}
	_, err := h.native("STATUS", conf)
	require.NoError(t, err)
}
