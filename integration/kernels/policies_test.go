package kernels

import (
	"net"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/policy"
)

// policed returns a network whose allocations can have policies, with more keys of its first plugin.
func policed(main string, keys map[string]any) []map[string]any {
	plugins := append(testbed.Chain(main, testbed.Dual, ""), map[string]any{"type": "policy", "capabilities": map[string]bool{"policy": true}})
	for key, value := range keys {
		plugins[1][key] = value
	}
	return plugins
}

func mustPolicy(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(text))
	require.NoError(t, err)
	return p
}

// addressesOf returns the addresses of an allocation.
func addressesOf(s *configurator.Status) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(s.Address), netip.MustParseAddr(s.AddressIPv6)}
}

// TestPolicyOfSCTP: ports of associations that the kernel makes.
func TestPolicyOfSCTP(t *testing.T) {
	skip.UnlessKernel(t, testbed.HasSCTP(), "no SCTP sockets")
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := testbed.New(t, configurator.EngineNative)
			testbed.SetSysctls(t, "", testbed.Quick)
			h.Network("net", policed(main, nil)...)
			server, client := h.Alloc("server"), h.Alloc("client")
			server.Policy = mustPolicy(t, `{"ingress":{"default":"deny","rules":[{"services":[{"protocol":"sctp","ports":"80"}]}]}}`)
			of := addressesOf(h.SetUp(server))
			h.SetUp(client)
			for _, port := range []int{80, 81} {
				testbed.Serve(t, server.Netns, "sctp", port, "server")
			}
			for _, a := range of {
				testbed.RequireAnswer(t, client.Netns, "sctp", testbed.At(a, 80), "server")
				testbed.RequireSilence(t, client.Netns, "sctp", testbed.At(a, 81))
			}
			// The other direction, after an update.
			_, err := h.Update(h.Context(), "server", configurator.Change{Policy: mustPolicy(t, `{}`)})
			require.NoError(t, err)
			_, err = h.Update(h.Context(), "client", configurator.Change{Policy: mustPolicy(t, `{"egress":{"default":"deny","rules":[{"services":[{"protocol":"sctp","ports":"81"}]}]}}`)})
			require.NoError(t, err)
			for _, a := range of {
				testbed.RequireSilence(t, client.Netns, "sctp", testbed.At(a, 80))
				testbed.RequireAnswer(t, client.Netns, "sctp", testbed.At(a, 81), "server")
			}
			h.TearDown(server, client)
		})
	}
}

// sink receives datagrams to port 99 of a namespace.
func sink(t *testing.T, netns string) <-chan string {
	t.Helper()
	received := make(chan string, 100)
	testbed.Within(t, netns, func() error {
		c, err := net.ListenPacket("udp", ":99")
		if err != nil {
			return err
		}
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		go func() {
			data := make([]byte, 100)
			for {
				n, _, err := c.ReadFrom(data)
				if err != nil {
					return
				}
				received <- string(data[:n])
			}
		}()
		return nil
	})
	return received
}

// send sends datagrams to port 99.
func send(t *testing.T, netns string, to netip.Addr, text string, times int) {
	t.Helper()
	testbed.Within(t, netns, func() error {
		c, err := net.Dial("udp", testbed.At(to, 99))
		if err != nil {
			return err
		}
		defer c.Close()
		for range times {
			if _, err := c.Write([]byte(text)); err != nil {
				return err
			}
		}
		return nil
	})
}

// meet makes a namespace know the MAC of an address, which is that of eth0 in another namespace.
func meet(t *testing.T, netns, link string, address netip.Addr, other string) {
	t.Helper()
	var mac string
	testbed.Within(t, other, func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err == nil {
			mac = eth0.HardwareAddr.String()
		}
		return err
	})
	testbed.Within(t, netns, func() error {
		return testbed.Command("ip", "neigh", "replace", address.String(), "lladdr", mac, "dev", link, "nud", "permanent")
	})
}

// TestPolicyBesideATrunk: a policy also applies in a VLAN of a bridge, where it sees the host as a neighbour. Between
// an allocation with a policy and a port that sends and receives frames with the tag of that VLAN nothing passes.
func TestPolicyBesideATrunk(t *testing.T) {
	h := testbed.New(t, configurator.EngineNative)
	on := true
	needsLink(t, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "test"}, VlanFiltering: &on})
	testbed.SetSysctls(t, "", testbed.Quick)
	h.Network("net", policed("bridge", map[string]any{"vlan": 10})...)
	h.Network("trunk", map[string]any{"type": "bridge", "bridge": "br-test", "vlanTrunk": []map[string]any{{"id": 10}}, "sourceGuard": false})
	closed, open, trunk := h.Alloc("closed"), h.Alloc("open"), h.Alloc("trunk")
	closed.Networks, open.Networks, trunk.Networks = []string{"net"}, []string{"net"}, []string{"trunk"}
	open.Labels = map[string]string{"app": "open"}
	closed.Policy = mustPolicy(t, `{"ingress":{"default":"deny","rules":[{"peers":[{"labels":{"app":"open"}}]}]},"egress":{"default":"deny","rules":[{"peers":[{"labels":{"app":"open"}}]}]}}`)
	ofClosed, ofOpen := addressesOf(h.SetUp(closed)), addressesOf(h.SetUp(open))
	t.Cleanup(func() { require.NoError(t, testbed.Command("ip", "link", "del", "br-test.10")) })
	h.SetUp(trunk)
	ofTrunk := []netip.Addr{netip.MustParseAddr("10.99.0.200"), netip.MustParseAddr("fd00:99::200")}
	testbed.SetSysctls(t, trunk.Netns, testbed.Quick)
	testbed.Within(t, trunk.Netns, func() error {
		for _, args := range [][]string{
			{"link", "add", "link", "eth0", "name", "eth0.10", "type", "vlan", "id", "10"}, {"link", "set", "eth0.10", "up"},
			{"addr", "add", "10.99.0.200/24", "dev", "eth0.10"}, {"addr", "add", "fd00:99::200/64", "dev", "eth0.10", "nodad"},
		} {
			if err := testbed.Command("ip", args...); err != nil {
				return err
			}
		}
		return nil
	})
	// A workload can know the MAC of the other one without neighbour discovery.
	for i := range ofTrunk {
		meet(t, trunk.Netns, "eth0.10", ofClosed[i], closed.Netns)
		meet(t, closed.Netns, "eth0", ofTrunk[i], trunk.Netns)
	}
	testbed.Serve(t, open.Netns, "tcp", 80, "open")
	testbed.Serve(t, trunk.Netns, "tcp", 80, "trunk")
	testbed.Serve(t, closed.Netns, "tcp", 80, "closed")
	atClosed, atTrunk := sink(t, closed.Netns), sink(t, trunk.Netns)
	for i := range ofTrunk {
		testbed.RequireAnswer(t, trunk.Netns, "tcp", testbed.At(ofOpen[i], 80), "open")
		testbed.RequireAnswer(t, open.Netns, "tcp", testbed.At(ofTrunk[i], 80), "trunk")
		testbed.RequireAnswer(t, open.Netns, "tcp", testbed.At(ofClosed[i], 80), "closed")
		testbed.RequireAnswer(t, closed.Netns, "tcp", testbed.At(ofOpen[i], 80), "open")
		testbed.RequireSilence(t, trunk.Netns, "tcp", testbed.At(ofClosed[i], 80))
		testbed.RequireSilence(t, closed.Netns, "tcp", testbed.At(ofTrunk[i], 80))
		testbed.RequireSilence(t, "", "tcp", testbed.At(ofClosed[i], 80))
		send(t, trunk.Netns, ofClosed[i], "with a tag", 3)
		send(t, open.Netns, ofClosed[i], "without", 1)
		require.Equal(t, "without", <-atClosed)
		send(t, closed.Netns, ofTrunk[i], "denied", 3)
		send(t, open.Netns, ofTrunk[i], "allowed", 1)
		require.Equal(t, "allowed", <-atTrunk)
	}
	// The policy is not what drops the packets of the trunk.
	_, err := h.Update(h.Context(), "closed", configurator.Change{Policy: mustPolicy(t, `{"ingress":{"default":"deny","rules":[{"peers":[{"cidr":"10.99.0.1/32"},{"cidr":"fd00:99::1/128"},{"cidr":"10.99.0.200/32"},{"cidr":"fd00:99::200/128"}]}]}}`)})
	require.NoError(t, err)
	for i := range ofTrunk {
		testbed.RequireAnswer(t, "", "tcp", testbed.At(ofClosed[i], 80), "closed")
		testbed.RequireSilence(t, trunk.Netns, "tcp", testbed.At(ofClosed[i], 80))
		testbed.RequireSilence(t, closed.Netns, "tcp", testbed.At(ofTrunk[i], 80))
	}
	h.TearDown(closed, open, trunk)
}

// TestPolicyBehindIPVS: the rules of a service of IPVS, as kube-proxy makes them, send packets on from the host's
// hook output. The policies of the server apply there; for those of the client, a service is the host.
func TestPolicyBehindIPVS(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := testbed.New(t, configurator.EngineNative)
			_, err := os.Stat("/proc/net/ip_vs")
			skip.UnlessKernel(t, err == nil, "no IPVS: %v", err)
			testbed.SetSysctls(t, "", testbed.Quick)
			testbed.SetSysctls(t, "", map[string]string{"net/ipv4/vs/conntrack": "1", "net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"})
			h.Network("net", policed(main, nil)...)
			server, friend, other, closed := h.Alloc("server"), h.Alloc("friend"), h.Alloc("other"), h.Alloc("closed")
			friend.Labels = map[string]string{"app": "friend"}
			server.Labels = map[string]string{"app": "server"}
			server.Policy = mustPolicy(t, `{"ingress":{"default":"deny","rules":[{"peers":[{"labels":{"app":"friend"}}],"services":[{"protocol":"tcp","ports":"80"}]}]}}`)
			closed.Labels = friend.Labels
			closed.Policy = mustPolicy(t, `{"egress":{"default":"deny","rules":[{"peers":[{"labels":{"app":"server"}}]}]}}`)
			of := addressesOf(h.SetUp(server))
			for _, a := range []configurator.Allocation{friend, other, closed} {
				h.SetUp(a)
			}
			testbed.Serve(t, server.Netns, "tcp", 80, "server")
			service := []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00:96::1")}
			run := func(name string, args ...string) { require.NoError(t, testbed.Command(name, args...)) }
			run("ip", "link", "add", "kube-ipvs0", "type", "dummy")
			t.Cleanup(func() { run("ipvsadm", "-C"); run("ip", "link", "del", "kube-ipvs0") })
			run("ip", "addr", "add", "10.96.0.1/32", "dev", "kube-ipvs0")
			run("ip", "addr", "add", "fd00:96::1/128", "dev", "kube-ipvs0", "nodad")
			for i, a := range service {
				run("ipvsadm", "-A", "-t", testbed.At(a, 8000), "-s", "rr")
				run("ipvsadm", "-a", "-t", testbed.At(a, 8000), "-r", testbed.At(of[i], 80), "-m")
			}
			for i, a := range service {
				testbed.RequireAnswer(t, friend.Netns, "tcp", testbed.At(a, 8000), "server")
				testbed.RequireSilence(t, other.Netns, "tcp", testbed.At(a, 8000))
				testbed.RequireAnswer(t, closed.Netns, "tcp", testbed.At(of[i], 80), "server")
				testbed.RequireSilence(t, closed.Netns, "tcp", testbed.At(a, 8000))
			}
			// From outside, a service is no way around the policy either.
			ofHost := []netip.Prefix{testhost.Host4, testhost.Host6}
			for i, a := range ofHost {
				run("ipvsadm", "-A", "-t", testbed.HostPort(a, 8001), "-s", "rr")
				run("ipvsadm", "-a", "-t", testbed.HostPort(a, 8001), "-r", testbed.At(of[i], 80), "-m")
				testbed.RequireSilence(t, h.Outside.Path(), "tcp", testbed.HostPort(a, 8001))
			}
			_, err = h.Update(h.Context(), "server", configurator.Change{Policy: mustPolicy(t, `{"ingress":{"default":"deny","rules":[{"peers":[{"name":"world"}]}]}}`)})
			require.NoError(t, err)
			for i, a := range ofHost {
				testbed.RequireAnswer(t, h.Outside.Path(), "tcp", testbed.HostPort(a, 8001), "server")
				testbed.RequireSilence(t, friend.Netns, "tcp", testbed.At(service[i], 8000))
			}
			h.TearDown(server, friend, other, closed)
		})
	}
}
