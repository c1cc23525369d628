package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/sandbox"
)

// TestPolicyExplainGroups sends real packets to link-local, multicast and
// broadcast addresses from an allocation whose policy denies something else.
// What arrives is what policy explain allows.
func TestPolicyExplainGroups(t *testing.T) {
	for main, passes := range map[string]bool{"ptp": true, "bridge": false} {
		t.Run(main, func(t *testing.T) { testExplainGroups(t, main, passes) })
	}
}

// withoutBridge deletes the bridge of a test at its end: it is in the way of a network of another state directory.
func withoutBridge(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		if link, err := netlink.LinkByName("br-test"); err == nil {
			require.NoError(t, netlink.LinkDel(link))
		}
	})
}

// TestPolicyExplainUndecided: the command line is valid, but on a bridge the policies of the
// receivers decide, if the allocation has none.
func TestPolicyExplainUndecided(t *testing.T) {
	w := newWorkspace(t)
	withoutBridge(t)
	conflist := `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"br-test","isGateway":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.7.1.0/24"}]]}},{"type":"policy","capabilities":{"policy":true}}]}`
	require.NoError(t, os.WriteFile(w.path("conf/30-net.conflist"), []byte(conflist), 0o600))
	w.sandbox("web")
	w.run("setup", "web", "--network", "net").ok(t)
	defer w.run("teardown", "web")
	got := w.run("policy", "explain", "web", "--to", "10.7.1.255", "udp/9", "--json").failure(t, exitFailure)
	require.Equal(t, errorReport{
		Error: `explain packets between allocation "web" and 10.7.1.255 on a bridge: no policy of the allocation denies anything, so the other end decides whether they pass`,
		Kind:  "undecided", Hint: "name the other end by its ID, or by another of its addresses",
	}, got)
	require.Equal(t, "invalid", w.run("policy", "explain", "web", "--from", "224.0.0.1", "udp/9", "--json").failure(t, exitUsage).Kind)
}

func testExplainGroups(t *testing.T, main string, passes bool) {
	w := newWorkspace(t)
	withoutBridge(t)
	options := map[string]string{"bridge": `,"bridge":"br-test","isGateway":true`}
	conflist := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","plugins":[{"type":%q%s,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.7.1.0/24"}],[{"subnet":"fd00:7:1::/64"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
		{"type":"policy","capabilities":{"policy":true}}]}`, main, options[main])
	require.NoError(t, os.WriteFile(w.path("conf/30-net.conflist"), []byte(conflist), 0o600))
	file := w.path("p.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"egress":{"rules":[{"action":"deny","peers":[{"cidr":"192.0.2.7/32"}]}]}}`), 0o600))
	s := w.sandbox("web")
	status := decode[configurator.Status](t, w.run("setup", "web", "--network", "net", "--policy", file, "--json").ok(t))
	defer w.run("teardown", "web")
	received := receiveAt(t, 9)
	targets := []string{awaitLinkLocal(t, status.Interfaces[0].Name), "ff02::1", "224.0.0.1", "255.255.255.255"}
	if main == "bridge" { // no link has this address on a routed network
		targets = append(targets, "10.7.1.255")
	}
	require.Eventually(t, func() bool {
		found := ""
		return s.Do(func() error { found = linkLocalOf("eth0"); return nil }) == nil && found != ""
	}, 10*time.Second, 5*time.Millisecond, "eth0 of the sandbox")
	for _, target := range targets {
		send(t, s, target, "to "+target)
		host := "10.7.1.1"
		if strings.Contains(target, ":") { // each family has a socket of its own
			host = "fd00:7:1::1"
		}
		want := []string{"to the host after " + target}
		send(t, s, host, want[0])
		if passes {
			want = append(want, "to "+target)
		}
		var got []string
		for range want {
			got = append(got, received())
		}
		require.ElementsMatch(t, want, got) // in any order: each waits for a neighbour of its own, on some processor
		e := decode[[]explanation](t, w.run("policy", "explain", "web", "--to", target, "udp/9", "--json").ok(t))[0]
		require.Equal(t, passes, e.Verdict == policy.Allow, "%s: %+v", target, e)
	}
}

// receiveAt returns a function that returns the next datagram to a port of the
// host.
func receiveAt(t *testing.T, port int) func() string {
	t.Helper()
	all := make(chan string, 100)
	for _, network := range []string{"udp4", "udp6"} {
		c, err := net.ListenUDP(network, &net.UDPAddr{Port: port})
		require.NoError(t, err)
		t.Cleanup(func() { c.Close() })
		go func() {
			data := make([]byte, 100)
			for {
				n, _, err := c.ReadFromUDP(data)
				if err != nil {
					return
				}
				all <- string(data[:n])
			}
		}()
	}
	return func() string {
		select {
		case one := <-all:
			return one
		case <-time.After(10 * time.Second):
			require.FailNow(t, "no datagram arrived")
			return ""
		}
	}
}

// send sends a datagram over eth0 of a sandbox.
func send(t *testing.T, s *sandbox.Sandbox, to, text string) {
	t.Helper()
	require.NoError(t, s.Do(func() error {
		if strings.HasPrefix(to, "fe80:") || strings.HasPrefix(to, "ff") {
			to += "%eth0"
		}
		c, err := net.Dial("udp", netip.AddrPortFrom(netip.MustParseAddr(to), 9).String())
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte(text))
		return err
	}), to)
}

// awaitLinkLocal waits until the kernel has checked the IPv6 link-local address
// of an interface, and returns it.
func awaitLinkLocal(t *testing.T, name string) (found string) {
	t.Helper()
	require.Eventually(t, func() bool {
		found = linkLocalOf(name)
		return found != ""
	}, 10*time.Second, 5*time.Millisecond, name)
	return found
}

// linkLocalOf returns the IPv6 link-local address of an interface; "" while it
// has none that can be used.
func linkLocalOf(name string) string {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return ""
	}
	addresses, err := link.Addrs()
	for _, a := range addresses {
		p, parsed := netip.ParsePrefix(a.String())
		if err != nil || parsed != nil || !p.Addr().Is6() || !p.Addr().IsLinkLocalUnicast() {
			continue
		}
		c, err := net.ListenUDP("udp6", &net.UDPAddr{IP: p.Addr().AsSlice(), Zone: name}) // not while it is tentative
		if err == nil {
			c.Close()
			return p.Addr().String()
		}
	}
	return ""
}
