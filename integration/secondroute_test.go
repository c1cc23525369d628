package integration

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// routedTwice is a container on two networks with a default route each. Its interfaces are eth0
// and eth1; a server listens on port 80.
type routedTwice struct {
	h         *host
	netns     string
	addresses [2][]netip.Addr
	hostPorts [2]int // 0: the network publishes none
	check     func() error
	repair    func() // nil if there is no record
	leave     [2]func()
}

// routedNetworks are the names of the networks, in the order in which the container is attached.
var routedNetworks = [2]string{"front", "back"}

// TestSecondDefaultRoute: a container on two networks with a default route each is reached from
// outside at the addresses of both, and at the host ports of both, however it was attached to the
// second one. What it sends itself leaves over the first network, and over the second one when it
// has left the first.
func TestSecondDefaultRoute(t *testing.T) {
	for name, c := range map[string]struct {
		mains  [2]string
		attach func(*routedTwice)
	}{
		"one Setup":                    {[2]string{"ptp", "bridge"}, (*routedTwice).setUpTogether},
		"Attach":                       {[2]string{"bridge", "ptp"}, (*routedTwice).setUpAndAttach},
		"allocations of one container": {[2]string{"bridge", "bridge"}, (*routedTwice).setUpEach},
		"plugin binaries":              {[2]string{"bridge", "bridge"}, (*routedTwice).runBinaries},
	} {
		t.Run(name, func(t *testing.T) {
			x := newRoutedTwice(t, c.mains)
			c.attach(x)
			x.requireAnswers(0, 1)
			x.requireEgress("eth0")
			require.NoError(t, x.check())
			x.damage("rule del pref 30000", "no rule from")
			x.damage(fmt.Sprintf("route flush table %d", rtnl.Fallback(linkIndex(t, x.netns, "eth1"))), "has no route to")
			if x.leave[0] != nil {
				x.leave[0]()
				x.requireAnswers(1)
				x.requireEgress("eth1")
			}
			x.leave[1]()
			require.Empty(t, sourceRules(t, x.netns))
			if x.leave[0] == nil {
				x.requireAnswers(0)
				x.requireEgress("eth0")
				x.h.TearDown(configurator.Allocation{ID: "a"})
			}
		})
	}
}

func newRoutedTwice(t *testing.T, mains [2]string) *routedTwice {
	t.Helper()
	h := newHost(t, configurator.EngineNative)
	for i, families := range []testbed.Families{testbed.Dual, {V4: "10.98.0.0/24", V6: "fd00:98::/64"}} {
		chain := testbed.Chain(mains[i], families, "")[1:]
		if mains[i] == "bridge" {
			chain[0]["bridge"] = "br-" + routedNetworks[i]
		}
		h.Network(routedNetworks[i], chain...)
		testbed.Within(t, h.Outside.Path(), func() error {
			require.NoError(t, testbed.Command("ip", "route", "add", families.V4, "via", testhost.Host4.Addr().String()))
			return testbed.Command("ip", "route", "add", families.V6, "via", testhost.Host6.Addr().String())
		})
	}
	testbed.Serve(t, h.Outside.Path(), "tcp", 80, "outside")
	x := &routedTwice{h: h, netns: h.Alloc("a").Netns}
	testbed.Serve(t, x.netns, "tcp", 80, "container")
	return x
}

// found notes the addresses of the interfaces.
func (x *routedTwice) found() {
	x.h.T.Helper()
	for i := range x.addresses {
		testbed.Within(x.h.T, x.netns, func() error {
			link, err := netlink.LinkByName(fmt.Sprint("eth", i))
			require.NoError(x.h.T, err)
			list, err := netlink.AddrList(link, netlink.FAMILY_ALL)
			for _, one := range list {
				if addr, _ := netip.AddrFromSlice(one.IP); !addr.IsLinkLocalUnicast() {
					x.addresses[i] = append(x.addresses[i], addr.Unmap())
				}
			}
			return err
		})
		require.Len(x.h.T, x.addresses[i], 2)
	}
}

func (x *routedTwice) setUpTogether() {
	h := x.h
	a := configurator.Allocation{ID: "a", Netns: x.netns, Networks: routedNetworks[:], Ports: []portmap.Port{testbed.TCPPort(8080, 80)}}
	h.SetUp(a)
	x.recorded(a)
}

func (x *routedTwice) setUpAndAttach() {
	h := x.h
	a := configurator.Allocation{ID: "a", Netns: x.netns, Networks: routedNetworks[:1], Ports: []portmap.Port{testbed.TCPPort(8080, 80)}}
	h.SetUp(a)
	_, err := h.Attach(h.Context(), a.ID, routedNetworks[1], configurator.AttachOptions{})
	require.NoError(h.T, err)
	a.Networks = routedNetworks[:]
	x.recorded(a)
}

// recorded is for a container that is one allocation.
func (x *routedTwice) recorded(a configurator.Allocation) {
	h := x.h
	x.found()
	x.hostPorts[0] = 8080
	x.check = func() error { return h.CheckOnly(h.Context(), a) }
	x.repair = func() { require.False(h.T, h.SetUp(a).SetUpAgain) }
	x.leave[1] = func() {
		_, err := h.Detach(h.Context(), a.ID, "eth1", "")
		require.NoError(h.T, err)
	}
}

func (x *routedTwice) setUpEach() {
	h := x.h
	var all [2]configurator.Allocation
	for i, network := range routedNetworks {
		x.hostPorts[i] = 8080 + i
		ifName := fmt.Sprint("eth", i)
		all[i] = configurator.Allocation{
			ID: "a." + ifName, ContainerID: "a", Netns: x.netns, Interface: ifName, Networks: []string{network},
			Ports: []portmap.Port{testbed.TCPPort(x.hostPorts[i], 80)},
		}
		h.SetUp(all[i])
		x.leave[i] = func() { h.TearDown(all[i]) }
	}
	x.found()
	x.check = func() error {
		for _, a := range all {
			if err := h.CheckOnly(h.Context(), a); err != nil {
				return err
			}
		}
		return nil
	}
	x.repair = func() {
		_, err := h.Repair(h.Context())
		require.NoError(h.T, err)
	}
}

func (x *routedTwice) runBinaries() {
	h := x.h
	cni := libcni.NewCNIConfigWithCacheDir([]string{testbed.DropIns(h.T.(*testing.T))}, h.T.TempDir(), nil)
	var lists [2]*libcni.NetworkConfigList
	var confs [2]*libcni.RuntimeConf
	for i, network := range routedNetworks {
		var err error
		lists[i], err = libcni.ConfListFromFile(filepath.Join(h.ConfDir, network+".conflist"))
		require.NoError(h.T, err)
		x.hostPorts[i] = 8080 + i
		confs[i] = &libcni.RuntimeConf{ContainerID: "a", NetNS: x.netns, IfName: fmt.Sprint("eth", i), CapabilityArgs: map[string]any{
			"portMappings": []map[string]any{{"hostPort": x.hostPorts[i], "containerPort": 80, "protocol": "tcp"}},
		}}
		result, err := cni.AddNetworkList(h.Context(), lists[i], confs[i])
		require.NoError(h.T, err)
		converted, err := types100.NewResultFromResult(result)
		require.NoError(h.T, err)
		for _, route := range converted.Routes {
			require.Equal(h.T, i == 1, rtnl.IsFallback(route.Priority), "the result has the priority")
		}
		x.leave[i] = func() { require.NoError(h.T, cni.DelNetworkList(h.Context(), lists[i], confs[i])) }
	}
	x.found()
	x.check = func() error {
		for i := range lists {
			if err := cni.CheckNetworkList(h.Context(), lists[i], confs[i]); err != nil {
				return err
			}
		}
		return nil
	}
}

// requireAnswers connects several times to everything at which networks are reached from outside.
// No connection may fail.
func (x *routedTwice) requireAnswers(networks ...int) {
	x.h.T.Helper()
	for _, i := range networks {
		var to []string
		for _, addr := range x.addresses[i] {
			to = append(to, testbed.At(addr, 80))
		}
		if port := x.hostPorts[i]; port != 0 {
			to = append(to, testbed.HostPort(testhost.Host4, port), testbed.HostPort(testhost.Host6, port))
		}
		for range 8 {
			for _, one := range to {
				_, err := testbed.Ask(testbed.Timeout, x.h.Outside.Path(), "tcp", one)
				require.NoError(x.h.T, err, "network %q at %s", routedNetworks[i], one)
			}
		}
		requireAnswersOver(x.h.T, x.netns, fmt.Sprint("eth", i), x.addresses[i]...)
	}
}

// requireEgress fails unless the container reaches the outside, over an interface.
func (x *routedTwice) requireEgress(name string) {
	x.h.T.Helper()
	requireDefaultRoutes(x.h.T.(*testing.T), x.netns, name)
	for _, p := range []netip.Prefix{testhost.Outside4, testhost.Outside6} {
		_, err := testbed.Ask(testbed.Timeout, x.netns, "tcp", testbed.HostPort(p, 80))
		require.NoError(x.h.T, err, p)
	}
}

// damage runs ip in the container, for both families and until it fails. CHECK finds that, and what
// has a record is repaired. The rest is restored.
func (x *routedTwice) damage(command, finding string) {
	t := x.h.T
	t.Helper()
	if x.repair == nil && strings.HasPrefix(command, "route") {
		return
	}
	before := sourceRules(t, x.netns)
	testbed.Within(t, x.netns, func() error {
		for _, family := range []string{"-4", "-6"} {
			fields := append([]string{family}, strings.Fields(command)...)
			require.NoError(t, exec.Command("ip", fields...).Run())
		}
		return nil
	})
	require.ErrorContains(t, x.check(), finding)
	if x.repair != nil {
		x.repair()
	} else {
		testbed.Within(t, x.netns, func() error {
			for _, rule := range before {
				require.NoError(t, netlink.RuleAdd(&rule))
			}
			return nil
		})
	}
	require.NoError(t, x.check())
	x.requireAnswers(1)
}

// requireAnswersOver fails unless packets from addresses of a container to the outside leave over one
// of its interfaces.
func requireAnswersOver(t testing.TB, netns, name string, from ...netip.Addr) {
	t.Helper()
	index := linkIndex(t, netns, name)
	testbed.Within(t, netns, func() error {
		for _, addr := range from {
			to := testhost.Outside6
			if addr.Is4() {
				to = testhost.Outside4
			}
			routes, err := netlink.RouteGetWithOptions(to.Addr().AsSlice(), &netlink.RouteGetOptions{SrcAddr: addr.AsSlice()})
			require.NoError(t, err)
			require.Equal(t, index, routes[0].LinkIndex, "from %s: %v", addr, routes)
		}
		return nil
	})
}

func linkIndex(t testing.TB, netns, name string) (index int) {
	t.Helper()
	testbed.Within(t, netns, func() error {
		link, err := netlink.LinkByName(name)
		if err == nil {
			index = link.Attrs().Index
		}
		return err
	})
	return index
}

// sourceRules returns the rules of a namespace that are about a source.
func sourceRules(t testing.TB, netns string) (rules []netlink.Rule) {
	t.Helper()
	testbed.Within(t, netns, func() error {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
			list, err := netlink.RuleList(family)
			if err != nil {
				return err
			}
			for _, rule := range list {
				if rule.Src != nil {
					rules = append(rules, rule)
				}
			}
		}
		return nil
	})
	return rules
}
