package configurator

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// masqueradedHost is a host with an allocation of a masqueraded network, which has the host port 8080, and another one.
func masqueradedHost(t *testing.T, plugin string) (h *testHost, first Allocation, a, b *Status) {
	t.Helper()
	h, leases := nativeHost(t, "1.0.0")
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{`+plugin+`,"ipMasq":true,"ipam":{"type":"host-local","dataDir":"`+leases+`",
		"ranges":[[{"subnet":"10.77.0.0/24"}],[{"subnet":"fd00:77::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}},{"type":"portmap","capabilities":{"portMappings":true}}]}`)
	setUp := func(one Allocation) *Status {
		s, err := h.Setup(t.Context(), one)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, h.Teardown(context.Background(), one)) })
		return s
	}
	first = h.alloc("a")
	first.Ports = []portmap.Port{tcpPort(8080, 80)}
	return h, first, setUp(first), setUp(h.alloc("b"))
}

const (
	onBridge = `"type":"bridge","bridge":"brtest","isGateway":true`
	onPtp    = `"type":"ptp"`
)

// hostAddress is an address of the host that is in no network of allocations.
const hostAddress = "203.0.113.7"

// trackAll adds tracked connections: those of a that rules translate, without translation; the same of b; and others of
// a, which are as they should be.
func trackAll(t *testing.T, a, b *Status) (stale, ofB, kept []string) {
	t.Helper()
	track := func(protocol uint8, from, to, served string) string {
		testhost.Track(t, protocol, from, to, served)
		return netip.MustParseAddrPort(from).String()
	}
	out := func(source, port, to string) string {
		at := net.JoinHostPort(to, "53")
		return track(unix.IPPROTO_UDP, net.JoinHostPort(source, port), at, at)
	}
	hostPort, served := net.JoinHostPort(hostAddress, "8080"), net.JoinHostPort(a.Address, "80")
	stale = []string{
		out(a.Address, "1000", "192.0.2.2"), out(a.AddressIPv6, "1000", "2001:db8::2"),
		track(unix.IPPROTO_TCP, "10.77.0.9:1001", hostPort, served), // from its own network
	}
	ofB = []string{out(b.Address, "1000", "192.0.2.2")}
	kept = []string{
		out(a.Address, "1002", "10.77.0.9"), out(a.Address, "1003", hostAddress),
		track(unix.IPPROTO_UDP, "192.0.2.2:1004", served, served),
		track(unix.IPPROTO_TCP, "192.0.2.2:1005", hostPort, served),
	}
	translated := &netlink.ConntrackFlow{
		FamilyType: unix.AF_INET, TimeOut: 600,
		Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: net.ParseIP(a.Address).To4(), SrcPort: 1006, DstIP: net.IP{192, 0, 2, 2}, DstPort: 53},
		Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: net.IP{192, 0, 2, 2}, SrcPort: 53, DstIP: net.ParseIP(hostAddress).To4(), DstPort: 1006},
	}
	require.NoError(t, netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, translated))
	return stale, ofB, append(kept, net.JoinHostPort(a.Address, "1006"))
}

// requireTracked compares the tracked connections, and deletes them.
func requireTracked(t *testing.T, about string, want ...string) {
	t.Helper()
	var is []string
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		require.NoError(t, err)
		for _, f := range flows {
			if f.Forward.SrcPort >= 1000 && f.Forward.SrcPort < 1010 {
				is = append(is, net.JoinHostPort(f.Forward.SrcIP.String(), fmt.Sprint(f.Forward.SrcPort)))
			}
		}
	}
	require.ElementsMatch(t, want, is, about)
	require.NoError(t, netlink.ConntrackTableFlush(netlink.ConntrackTable))
}

// TestRestoredRulesDecideAgain: with rules that were missing, the connections are flushed that these translate and that
// began without them, whatever restores the rules: those of the allocations whose rules were missing. Others go on.
func TestRestoredRulesDecideAgain(t *testing.T) {
	for main, plugin := range map[string]string{"bridge": onBridge, "ptp": onPtp} {
		t.Run(main, func(t *testing.T) {
			h, first, a, b := masqueradedHost(t, plugin)
			do(t, "ip address add "+hostAddress+"/32 dev lo")
			t.Cleanup(func() { do(t, "ip address del "+hostAddress+"/32 dev lo") })
			rounds := 0
			for name, c := range map[string]struct {
				damage string
				repair func() error
				all    bool // also of b
			}{
				"Restore":        {"nft flush ruleset", func() error { _, err := h.Restore(t.Context()); return err }, true},
				"Repair":         {"nft flush ruleset", func() error { _, err := h.Repair(t.Context()); return err }, true},
				"CheckAndRepair": {"nft flush ruleset", func() error { _, err := h.CheckAndRepair(t.Context(), "a"); return err }, false},
				"Setup":          {"nft flush ruleset", func() error { _, err := h.Setup(t.Context(), first); return err }, false},
				"Update": {"nft flush ruleset", func() error {
					_, err := h.Update(t.Context(), "a", Change{Publish: first.Ports})
					return err
				}, false},
				"Restore of elements": {"nft flush set ip allocnet masqueraded; nft flush set ip6 allocnet masqueraded; nft flush set ip allocnet snat_local", func() error { _, err := h.Restore(t.Context()); return err }, true},
				"Setup of another": {"nft flush chain ip allocnet postrouting; nft flush chain ip6 allocnet postrouting", func() error {
					rounds++
					_, err := h.restarted().Setup(t.Context(), h.alloc(fmt.Sprint("c", rounds)))
					require.NoError(t, err)
					return h.Teardown(t.Context(), Allocation{ID: fmt.Sprint("c", rounds)})
				}, true},
			} {
				if main == "ptp" && name != "Restore" {
					continue
				}
				do(t, c.damage)
				_, ofB, kept := trackAll(t, a, b)
				require.NoError(t, c.repair(), name)
				if !c.all {
					kept = append(kept, ofB...)
				}
				requireTracked(t, name, kept...)
				_, err := h.Repair(t.Context())
				require.NoError(t, err)

				stale, ofB, kept := trackAll(t, a, b)
				_, err = h.Restore(t.Context())
				require.NoError(t, err)
				requireTracked(t, name+", with nothing missing", slices.Concat(stale, ofB, kept)...)
			}
		})
	}
}

// TestRestoredBackendDecidesAgain: so it is with the rules of the reference plugins' layouts.
func TestRestoredBackendDecidesAgain(t *testing.T) {
	for backend, damage := range map[string]string{
		"iptables": "iptables -t nat -F; ip6tables -t nat -F", "nftables": "nft flush chain inet cni_plugins_masquerade masq_checks",
	} {
		t.Run(backend, func(t *testing.T) {
			h, _, a, b := masqueradedHost(t, onPtp+`,"ipMasqBackend":"`+backend+`"`)
			do(t, "ip address add "+hostAddress+"/32 dev lo")
			t.Cleanup(func() { do(t, "ip address del "+hostAddress+"/32 dev lo") })
			for _, c := range []struct {
				damage  string
				missing bool
			}{{damage, true}, {"true", false}} {
				do(t, c.damage)
				stale, ofB, kept := trackAll(t, a, b)
				kept = append(kept, stale[2]) // of a host port
				if !c.missing {
					kept = append(kept, stale[:2]...)
				}
				_, err := h.CheckAndRepair(t.Context(), "a")
				require.NoError(t, err)
				requireTracked(t, c.damage, append(kept, ofB...)...)
				_, err = h.Repair(t.Context())
				require.NoError(t, err)
			}
		})
	}
}

// TestMasqueradingTakesOver: the datagrams of a socket that began to send while masquerading was missing have the
// host's address as soon as that is restored, and those of another socket all the time.
func TestMasqueradingTakesOver(t *testing.T) {
	h, first, status, _ := masqueradedHost(t, onBridge)
	outside := testhost.Outside(t)
	for i, to := range []netip.Addr{testhost.Outside4.Addr(), testhost.Outside6.Addr()} {
		own, host := []string{status.Address, status.AddressIPv6}[i], []netip.Prefix{testhost.Host4, testhost.Host6}[i]
		var receiver *net.UDPConn
		require.NoError(t, outside.Do(func() (err error) {
			if out, err := exec.Command("ip", "route", "replace", own, "via", host.Addr().String()).CombinedOutput(); err != nil { // or it would refuse the source
				return fmt.Errorf("%w: %s", err, out)
			}
			receiver, err = net.ListenUDP("udp", &net.UDPAddr{IP: to.AsSlice(), Port: 5353})
			return err
		}))
		defer receiver.Close()
		inside, err := sandbox.Open(first.Netns)
		require.NoError(t, err)
		defer inside.Close()
		dial := func() (c net.Conn) {
			require.NoError(t, inside.Do(func() (err error) { c, err = net.Dial("udp", netip.AddrPortFrom(to, 5353).String()); return err }))
			t.Cleanup(func() { c.Close() })
			return c
		}
		requireSource := func(ofHost bool, c net.Conn) {
			t.Helper()
			_, err := c.Write([]byte("x"))
			require.NoError(t, err)
			require.NoError(t, receiver.SetReadDeadline(time.Now().Add(10*time.Second)))
			_, from, err := receiver.ReadFromUDPAddrPort(make([]byte, 1))
			require.NoError(t, err)
			require.Equal(t, ofHost, host.Contains(from.Addr().Unmap()), from)
			require.Equal(t, !ofHost, from.Addr().Unmap().String() == own, from)
		}
		before := dial()
		requireSource(true, before)
		do(t, "nft flush set ip allocnet masqueraded; nft flush set ip6 allocnet masqueraded")
		meanwhile := dial()
		requireSource(false, meanwhile)
		requireSource(true, before)
		_, err = h.Restore(t.Context())
		require.NoError(t, err)
		requireSource(true, meanwhile)
		requireSource(true, before)
	}
}
