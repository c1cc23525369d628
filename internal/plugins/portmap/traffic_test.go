package portmap_test

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/conntrack"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/sandbox"
)

// serve answers on TCP and UDP port 80 of both families, with the name of the
// server and the client's address.
func serve(t testing.TB, s *sandbox.Sandbox, name string) {
	t.Helper()
	require.NoError(t, s.Do(func() error {
		l, err := net.Listen("tcp", ":80")
		require.NoError(t, err)
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintf(conn, "%s saw %s", name, host(conn.RemoteAddr()))
				conn.Close()
			}
		}()
		p, err := net.ListenPacket("udp", ":80")
		require.NoError(t, err)
		t.Cleanup(func() { p.Close() })
		go func() {
			for {
				_, from, err := p.ReadFrom(make([]byte, 100))
				if err != nil {
					return
				}
				_, _ = p.WriteTo(fmt.Appendf(nil, "%s saw %s", name, host(from)), from)
			}
		}()
		return nil
	}))
}

func host(addr net.Addr) string {
	h, _, _ := net.SplitHostPort(addr.String())
	return strings.TrimPrefix(h, "::ffff:")
}

// timeout bounds waits that would otherwise not end. Answers and refusals
// arrive at once.
const timeout = 10 * time.Second

// ask sends a request from a namespace, or from the host if it is nil, and
// returns the answer or "refused".
func ask(t testing.TB, from *sandbox.Sandbox, network, to string) (answer string) {
	t.Helper()
	do := func() error {
		conn, err := net.DialTimeout(network, to, timeout)
		if err != nil {
			answer = reason(err)
			return nil
		}
		defer conn.Close()
		answer = exchange(conn)
		return nil
	}
	if from == nil {
		require.NoError(t, do())
		return answer
	}
	require.NoError(t, from.Do(do))
	return answer
}

func exchange(conn net.Conn) string {
	_ = conn.SetDeadline(time.Now().Add(timeout))
	_, _ = conn.Write([]byte("x"))
	answer := make([]byte, 100)
	n, err := conn.Read(answer)
	if err != nil {
		return reason(err)
	}
	return string(answer[:n])
}

func reason(err error) string {
	if strings.Contains(err.Error(), "refused") {
		return "refused"
	}
	return err.Error()
}

// question is a request and the expected answer.
type question struct{ from, to, want string }

var reachTests = []struct {
	name   string
	config object
	ports  []string
	asked  []question
}{
	{"default", nil, []string{"8080->80/tcp", "8080->80/udp"}, []question{
		{"outside", "192.0.2.1:8080", "two saw 192.0.2.2"},
		{"outside", "10.9.0.1:8080", "two saw 192.0.2.2"},
		{"host", "127.0.0.1:8080", "two saw 10.9.0.1"},
		{"host", "192.0.2.1:8080", "two saw 192.0.2.1"},
		{"host", "10.9.0.1:8080", "two saw 10.9.0.1"},
		{"itself", "192.0.2.1:8080", "two saw 10.9.0.1"},
		{"itself", "10.9.0.1:8080", "two saw 10.9.0.1"},
		{"neighbour", "192.0.2.1:8080", "two saw 10.9.0.1"},
		{"outside", "[fd00:2::1]:8080", "two saw fd00:2::2"},
		{"host", "[fd00:2::1]:8080", "two saw fd00:2::1"},
		{"itself", "[fd00:2::1]:8080", "two saw fd00:9::1"},
		{"neighbour", "[fd00:9::1]:8080", "two saw fd00:9::1"},
		{"outside", "192.0.2.1:8081", "refused"},
		{"outside", "192.0.2.1:80", "refused"},
		{"host", "127.0.0.1:8081", "refused"},
		{"outside", "[fd00:2::1]:8081", "refused"},
		{"outside", "10.9.0.2:80", "two saw 192.0.2.2"},
	}},
	{"without source NAT", object{"snat": false}, []string{"8080->80/tcp", "8080->80/udp"}, []question{
		{"outside", "192.0.2.1:8080", "two saw 192.0.2.2"},
		{"outside", "[fd00:2::1]:8080", "two saw fd00:2::2"},
		{"host", "192.0.2.1:8080", "two saw 192.0.2.1"},
	}},
	{"masquerade all", object{"masqAll": true}, []string{"8080->80/tcp", "8080->80/udp"}, []question{
		{"outside", "192.0.2.1:8080", "two saw 10.9.0.1"},
		{"outside", "[fd00:2::1]:8080", "two saw fd00:9::1"},
		{"host", "127.0.0.1:8080", "two saw 10.9.0.1"},
		{"itself", "192.0.2.1:8080", "two saw 10.9.0.1"},
	}},
	{"one address", nil, []string{"192.0.2.1:8080->80/tcp", "192.0.2.1:8080->80/udp"}, []question{
		{"outside", "192.0.2.1:8080", "two saw 192.0.2.2"},
		{"outside", "10.9.0.1:8080", "refused"},
		{"host", "127.0.0.1:8080", "refused"},
		{"neighbour", "192.0.2.1:8080", "two saw 10.9.0.1"},
		{"outside", "[fd00:2::1]:8080", "refused"},
	}},
	{"loopback only", nil, []string{"127.0.0.1:8080->80/tcp", "127.0.0.1:8080->80/udp"}, []question{
		{"host", "127.0.0.1:8080", "two saw 10.9.0.1"},
		{"outside", "192.0.2.1:8080", "refused"},
	}},
	{"IPv6 address", nil, []string{"[fd00:2::1]:8080->80/tcp", "[fd00:2::1]:8080->80/udp"}, []question{
		{"outside", "[fd00:2::1]:8080", "two saw fd00:2::2"},
		{"outside", "[fd00:9::1]:8080", "refused"},
		{"outside", "192.0.2.1:8080", "refused"},
	}},
	{"any IPv4 address", nil, []string{"0.0.0.0:8080->80/tcp", "0.0.0.0:8080->80/udp"}, []question{
		{"outside", "192.0.2.1:8080", "two saw 192.0.2.2"},
		{"host", "127.0.0.1:8080", "two saw 10.9.0.1"},
		{"outside", "[fd00:2::1]:8080", "refused"},
	}},
	{"any IPv6 address", nil, []string{"[::]:8080->80/tcp", "[::]:8080->80/udp"}, []question{
		{"outside", "[fd00:2::1]:8080", "two saw fd00:2::2"},
		{"outside", "192.0.2.1:8080", "refused"},
	}},
	{"tcp only, in capitals", nil, []string{"8080->80/TCP"}, []question{
		{"outside", "tcp 192.0.2.1:8080", "two saw 192.0.2.2"},
		{"outside", "udp 192.0.2.1:8080", "refused"},
	}},
}

func TestReach(t *testing.T) {
	for i, test := range reachTests {
		t.Run(test.name, func(t *testing.T) {
			skip.InTurn(t, i, 2)
			h := newTestHost(t)
			two, three := h.allocation(2), h.allocation(3)
			serve(t, two.Sandbox, "two")
			two = two.with(test.config).with(ports(test.ports...))
			before := h.run("nft", "list", "ruleset")
			two.do("ADD")
			two.do("CHECK")
			two.do("ADD")
			from := map[string]*sandbox.Sandbox{"outside": h.outside, "itself": two.Sandbox, "neighbour": three.Sandbox}
			for _, q := range test.asked {
				networks, to := []string{"tcp", "udp"}, q.to
				if network, rest, ok := strings.Cut(q.to, " "); ok {
					networks, to = []string{network}, rest
				}
				for _, network := range networks {
					require.Equal(t, q.want, ask(t, from[q.from], network, to), "%s from %s to %s", network, q.from, to)
				}
			}
			two.do("DEL")
			two.do("DEL")
			for _, q := range test.asked {
				if !strings.HasPrefix(q.to, "10.9.0.2:") && !strings.HasPrefix(q.to, "udp ") {
					to := strings.TrimPrefix(q.to, "tcp ")
					require.Equal(t, "refused", ask(t, from[q.from], "tcp", to), "after DEL from %s to %s", q.from, to)
				}
			}
			require.Empty(t, before)
			requireNoElements(t, h)
		})
	}
}

// requireNoElements checks that the tables have no elements of allocations.
func requireNoElements(t *testing.T, h *testHost) {
	t.Helper()
	require.NotContains(t, h.run("nft", "list", "ruleset"), "allocnet:net/")
}

// TestStaleUDP: a client that keeps sending from the same port reaches the
// current holder of the host port.
func TestStaleUDP(t *testing.T) {
	h := newTestHost(t)
	two, three := h.allocation(2), h.allocation(3)
	serve(t, two.Sandbox, "two")
	serve(t, three.Sandbox, "three")
	for _, address := range []string{"192.0.2.1:8080", "[fd00:2::1]:8080"} {
		for i, config := range []object{nil, {"backend": "iptables"}, {"backend": "nftables"}} {
			t.Run(fmt.Sprint(address, config), func(t *testing.T) {
				skip.InTurn(t, i, 3)
				config := merge(config, ports("8080->80/udp"))
				two, three := two.with(config), three.with(config)
				conn := client(t, h, address)
				require.Equal(t, "refused", exchange(conn))
				two.do("ADD")
				require.Equal(t, "two saw "+host(conn.LocalAddr()), exchange(conn))
				two.do("DEL")
				require.Equal(t, "refused", exchange(conn))
				three.do("ADD")
				require.Equal(t, "three saw "+host(conn.LocalAddr()), exchange(conn))

				// Without a result, DEL finds the connections by the port.
				three.config["prevResult"] = nil
				three.do("DEL")
				require.Equal(t, "refused", exchange(conn))
			})
		}
	}
}

// TestDelOfARefusedPort: DEL after an ADD that was refused because another container has the host port
// leaves the connections of that container alone.
func TestDelOfARefusedPort(t *testing.T) {
	h := newTestHost(t)
	two, three := h.allocation(2), h.allocation(3)
	serve(t, two.Sandbox, "two")
	for published, refused := range map[string]string{
		"8080->80/udp": "8080->80/udp", "192.0.2.1:8080->80/udp": "192.0.2.1:8080->80/udp", "0.0.0.0:8080->80/udp": "192.0.2.1:8080->80/udp",
	} {
		t.Run(published+" "+refused, func(t *testing.T) {
			two, three := two.with(ports(published)), three.with(ports(refused))
			two.do("ADD")
			conn := client(t, h, "192.0.2.1:8080")
			require.Equal(t, "two saw "+host(conn.LocalAddr()), exchange(conn))
			_, from, _ := net.SplitHostPort(conn.LocalAddr().String())
			tracked := func() bool {
				text, err := os.ReadFile("/proc/thread-self/net/nf_conntrack")
				require.NoError(t, err)
				return strings.Contains(string(text), "sport="+from+" dport=8080")
			}
			require.True(t, tracked())
			_, err := three.call(h.native, "ADD")
			require.ErrorIs(t, err, ruleset.ErrPortTaken)
			three.config["prevResult"] = nil
			three.do("DEL")
			require.True(t, tracked())
			two.do("DEL")
			require.False(t, tracked())
		})
	}
}

// TestStaleUDPAfterAFailedFlush: if the flush of an ADD fails, the next ADD
// flushes.
func TestStaleUDPAfterAFailedFlush(t *testing.T) {
	for _, address := range []string{"192.0.2.1:8080", "[fd00:2::1]:8080"} {
		t.Run(address, func(t *testing.T) {
			h := newTestHost(t)
			two := h.allocation(2).with(ports("8080->80/udp"))
			serve(t, two.Sandbox, "two")
			two.do("ADD") // from now on the tables record contacted ports
			two.do("DEL")
			conn := client(t, h, address)
			require.Equal(t, "refused", exchange(conn))
			working := h.host.Conntrack
			h.host.Conntrack = closedConntrack(t)
			_, err := two.call(h.native, "ADD")
			h.host.Conntrack = working
			require.NoError(t, err)
			require.Contains(t, h.log.String(), "delete tracked connections")
			h.log.Reset()
			two.do("DEL")
			two.do("ADD")
			require.Equal(t, "two saw "+host(conn.LocalAddr()), exchange(conn))
			two.do("DEL")
		})
	}
}

// closedConntrack returns a connection to conntrack that fails.
func closedConntrack(t *testing.T) *conntrack.Conn {
	t.Helper()
	c := conntrack.New()
	_, err := c.Ports(t.Context(), unix.AF_INET)
	require.NoError(t, err)
	require.NoError(t, c.Close())
	return c
}

// client returns a UDP socket outside.
func client(t *testing.T, h *testHost, to string) (conn net.Conn) {
	t.Helper()
	require.NoError(t, h.outside.Do(func() (err error) {
		conn, err = net.Dial("udp", to)
		return err
	}))
	t.Cleanup(func() { conn.Close() })
	return conn
}

// TestSCTP: a kernel may support connection tracking of SCTP without SCTP
// sockets. In that case only the element is checked.
func TestSCTP(t *testing.T) {
	h := newTestHost(t)
	two := h.allocation(2).with(ports("8080->80/sctp"))
	two.do("ADD")
	two.do("CHECK")
	require.Contains(t, h.run("nft", "list", "ruleset"), "sctp . 8080")
	two.do("DEL")
	requireNoElements(t, h)
}

// TestRouteLocalnet: without source NAT, no packet arrives from 127.0.0.1, and
// no source is changed.
func TestRouteLocalnet(t *testing.T) {
	h := newTestHost(t)
	two := h.allocation(2).with(ports("8080->80/tcp"))
	localnet := func() string {
		value, err := os.ReadFile("/proc/sys/net/ipv4/conf/br0/route_localnet")
		require.NoError(t, err)
		return strings.TrimSpace(string(value))
	}
	without := two.with(object{"snat": false})
	without.do("ADD")
	require.Equal(t, "0", localnet())
	for _, set := range []string{"snat_local", "snat_all"} {
		require.NotContains(t, h.run("nft", "list", "set", "ip", "allocnet", set), "10.9.0.2", "a source that is translated")
	}
	without.do("DEL")
	two.do("ADD")
	require.Equal(t, "1", localnet())
	require.Contains(t, h.rules(), "10.9.0.2 comment")
}

// TestLoopbackIsTheHostsOwn: an allocation does not reach services on the
// host's 127.0.0.1, whichever backend published its ports, even after a flush
// of all rules while the publishing process still runs. CHECK reports the
// flush. The host still reaches the allocation through 127.0.0.1.
func TestLoopbackIsTheHostsOwn(t *testing.T) {
	for _, config := range []object{nil, {"backend": "iptables"}, {"backend": "nftables"}} {
		t.Run(fmt.Sprint(config), func(t *testing.T) {
			h := newTestHost(t)
			h.host.Hold = sdk.NewGuardHold()
			two := h.allocation(2)
			serve(t, two.Sandbox, "two")
			l, err := net.Listen("tcp", "127.0.0.1:7070")
			require.NoError(t, err)
			defer l.Close()
			require.NoError(t, two.Sandbox.Do(func() error {
				require.NoError(t, os.WriteFile("/proc/sys/net/ipv4/conf/eth0/route_localnet", []byte("1"), 0))
				h.run("ip", "addr", "flush", "dev", "lo")
				h.run("ip", "route", "add", "127.0.0.0/8", "via", "10.9.0.1")
				return nil
			}))
			requireSilence := func() {
				t.Helper()
				require.NoError(t, two.Sandbox.Do(func() error {
					c, err := net.DialTimeout("tcp", "127.0.0.1:7070", 200*time.Millisecond)
					if err == nil {
						c.Close()
					}
					var failed net.Error
					require.ErrorAs(t, err, &failed)
					require.True(t, failed.Timeout(), "%v", err)
					return nil
				}))
			}
			two = two.with(config).with(ports("8080->80/tcp"))
			two.do("ADD")
			two.do("CHECK")
			requireSilence()
			require.Equal(t, "two saw 10.9.0.1", ask(t, nil, "tcp", "127.0.0.1:8080"))
			privhost.FlushRuleset(h.t)
			requireSilence()
			_, err = two.call(h.native, "CHECK")
			require.Error(t, err)
			require.NoError(t, h.host.Rules.Repair(t.Context()))
			two.do("ADD")
			two.do("CHECK")
			requireSilence()
			two.do("DEL")
			requireSilence()
		})
	}
}

// TestSharedPorts: the attachments of one container share its host ports in
// every layout. After one is removed, the other answers, also a client that
// keeps its source port.
func TestSharedPorts(t *testing.T) {
	for i, config := range []object{nil, {"backend": "iptables"}, {"backend": "nftables"}} {
		t.Run(fmt.Sprint(config), func(t *testing.T) {
			skip.InTurn(t, i, 3)
			h := newTestHost(t)
			config = merge(config, ports("8080->80/tcp", "8080->80/udp"))
			pair := map[string]*allocation{"two": h.allocation(2).with(config), "three": h.allocation(3).with(config)}
			pair["three"].id = pair["two"].id
			pair["three"].config["name"] = "other"
			stranger := h.allocation(4).with(config)
			for name, a := range pair {
				serve(t, a.Sandbox, name)
			}
			for _, order := range [][]string{{"two", "three"}, {"three", "two"}} {
				for _, goes := range []int{0, 1} {
					for _, name := range order {
						pair[name].do("ADD")
					}
					for _, name := range order {
						pair[name].do("CHECK")
					}
					if config["backend"] == nil {
						_, err := stranger.call(h.native, "ADD")
						require.ErrorContains(t, err, "host port 8080/tcp is taken by allocnet:")
					}
					requireAnswers := func(who string) {
						t.Helper()
						for _, network := range []string{"tcp", "udp"} {
							for _, address := range []string{"192.0.2.1:8080", "[fd00:2::1]:8080"} {
								require.Contains(t, ask(t, h.outside, network, address), who+" saw ", "%s of %v: %d goes", network, order, goes)
							}
						}
					}
					requireAnswers(order[0])
					conn := client(t, h, "192.0.2.1:8080")
					require.Contains(t, exchange(conn), order[0])
					stays := order[1-goes]
					for range 2 {
						pair[order[goes]].do("DEL")
						requireAnswers(stays)
						require.Contains(t, exchange(conn), stays)
						pair[stays].do("CHECK")
					}
					pair[stays].do("DEL")
					require.Equal(t, "refused", ask(t, h.outside, "tcp", "192.0.2.1:8080"))
				}
			}
			require.NotContains(t, h.run("nft", "list", "ruleset"), pair["two"].id)
		})
	}
}
