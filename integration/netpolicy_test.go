package integration

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// policed returns a network whose allocations can have policies.
func policed(main string, f families) []map[string]any {
	return append(chain(main, f, ""), map[string]any{"type": "policy", "capabilities": map[string]bool{"policy": true}})
}

func mustPolicy(t testing.TB, text string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(text))
	require.NoError(t, err)
	return p
}

// TestPolicyBasic: an allocation reaches, and is reached by, what its policy allows.
func TestPolicyBasic(t *testing.T) {
	for _, main := range []string{"ptp", "bridge"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative)
			setSysctls(t, "", quick)
			h.network("net", policed(main, dual)...)
			client, db, other := h.alloc("client"), h.alloc("db"), h.alloc("other")
			db.Labels = map[string]string{"app": "db"}
			client.Policy = mustPolicy(t, `{"ingress":{"default":"deny"},"egress":{"default":"deny","rules":[{"peers":[{"labels":{"app":"db"}}],"services":[{"protocol":"tcp","ports":"80"}]}]}}`)
			for _, a := range []configurator.Allocation{client, db, other} {
				h.inNew(a, func() {
					setSysctls(t, a.Netns, quick)
					serve(t, a.Netns, "tcp", 80, a.ID)
					serve(t, a.Netns, "tcp", 81, a.ID)
				})
			}
			sc := h.setUp(client)
			sd, so := h.setUp(db), h.setUp(other)
			require.NoError(t, h.CheckOnly(h.ctx(), client))
			addr := netip.MustParseAddr
			for _, get := range []func(*configurator.Status) string{
				func(s *configurator.Status) string { return s.Address }, func(s *configurator.Status) string { return s.AddressIPv6 },
			} {
				requireAnswer(t, client.Netns, "tcp", at(addr(get(sd)), 80), "db")
				requireSilence(t, client.Netns, "tcp", at(addr(get(sd)), 81))
				requireSilence(t, client.Netns, "tcp", at(addr(get(so)), 80))
				requireSilence(t, other.Netns, "tcp", at(addr(get(sc)), 80))
				requireAnswer(t, "", "tcp", at(addr(get(sc)), 80), "client") // from the host
				requireAnswer(t, other.Netns, "tcp", at(addr(get(sd)), 80), "db")
			}
			h.tearDown(client, db, other)
		})
	}
}

// TestPolicyUpdate changes the policy and the labels of allocations while connections exist.
func TestPolicyUpdate(t *testing.T) {
	for _, main := range []string{"ptp", "bridge"} {
		t.Run(main, func(t *testing.T) { testPolicyUpdate(t, main) })
	}
}

func testPolicyUpdate(t *testing.T, main string) {
	h := newHost(t, configurator.EngineNative)
	setSysctls(t, "", quick)
	h.network("net", policed(main, dual)...)
	client, db := h.alloc("client"), h.alloc("db")
	db.Ports = []portmap.Port{tcpPort(8080, 80)}
	for _, a := range []configurator.Allocation{client, db} {
		h.inNew(a, func() {
			setSysctls(t, a.Netns, quick)
			serveStreams(t, a.Netns)
			serve(t, a.Netns, "tcp", 81, a.ID)
		})
	}
	h.setUp(client)
	sd := h.setUp(db)
	addr := netip.MustParseAddr
	update := func(id string, change configurator.Change) {
		t.Helper()
		_, err := h.Update(h.ctx(), id, change)
		require.NoError(t, err)
		require.NoError(t, h.CheckOnly(h.ctx(), map[string]configurator.Allocation{"client": client, "db": db}[id]))
	}
	requireAnswer(t, client.Netns, "tcp", at(addr(sd.Address), 81), "db")
	outside := h.echo(hostPort(host4, 8080))

	update("db", configurator.Change{Policy: mustPolicy(t, `{"ingress":{"default":"deny","rules":[{"peers":[{"cidr":"`+outside4.Masked().String()+`"}],"services":[{"protocol":"tcp","ports":"80"}]}]}}`)})
	requireSilence(t, client.Netns, "tcp", at(addr(sd.Address), 81))
	requireSilence(t, client.Netns, "tcp", at(addr(sd.AddressIPv6), 81))
	require.NoError(t, outside(), "a connection that the policy allows goes on")
	requireSilence(t, h.outside.Path(), "tcp", hostPort(host6, 8080))

	update("db", configurator.Change{Policy: mustPolicy(t, `{"ingress":{"default":"deny","rules":[{"peers":[{"labels":{"app":"web"}}]}]}}`)})
	require.Error(t, outside(), "a connection that the policy denies ends")
	requireSilence(t, client.Netns, "tcp", at(addr(sd.Address), 81))
	update("client", configurator.Change{Labels: map[string]*string{"app": new("web")}})
	requireAnswer(t, client.Netns, "tcp", at(addr(sd.Address), 81), "db")
	requireAnswer(t, client.Netns, "tcp", at(addr(sd.AddressIPv6), 81), "db")
	update("client", configurator.Change{Labels: map[string]*string{"app": nil}})
	requireSilence(t, client.Netns, "tcp", at(addr(sd.Address), 81))
	update("client", configurator.Change{Labels: map[string]*string{"app": new("web")}})

	require.NoError(t, command("nft", "flush", "ruleset"))
	_, err := h.Repair(h.ctx())
	require.NoError(t, err)
	requireAnswer(t, client.Netns, "tcp", at(addr(sd.Address), 81), "db")
	requireSilence(t, h.outside.Path(), "tcp", hostPort(host4, 8080))

	update("db", configurator.Change{Policy: &policy.Policy{}})
	require.NoError(t, h.echo(hostPort(host4, 8080))())
	h.tearDown(client, db)
}

// TestPolicyFlood: an allocation that sends without pause from before its ADD never gets a packet
// past its policy: at the ADD, after a flush of the ruleset, during a Teardown. At the flush, packets
// pass that are between the hooks of a bridge and those of IP.
func TestPolicyFlood(t *testing.T) {
	for _, main := range []string{"ptp", "bridge"} {
		t.Run(main, func(t *testing.T) { testPolicyFlood(t, main) })
	}
}

func testPolicyFlood(t *testing.T, main string) {
	h := newHost(t, configurator.EngineNative)
	setSysctls(t, "", quick)
	h.network("net", policed(main, v4Only)...)
	sink := h.alloc("sink")
	var received atomic.Int64
	h.inNew(sink, func() {
		within(t, sink.Netns, func() error {
			c, err := net.ListenUDP("udp", &net.UDPAddr{Port: 9})
			require.NoError(t, err)
			t.Cleanup(func() { c.Close() })
			go countPackets(c, &received)
			return nil
		})
	})
	ss := h.setUp(sink)
	to := at(netip.MustParseAddr(ss.Address), 9)
	round := 0
	attack := func(during func(a configurator.Allocation)) {
		a := h.alloc(fmt.Sprint("a", round))
		round++
		a.Policy = mustPolicy(t, `{"egress":{"default":"deny"},"ingress":{"default":"deny"}}`)
		stop := flood(t, a.Netns, to)
		h.setUp(a)
		during(a)
		require.NoError(t, h.CheckOnly(h.ctx(), a))
		h.tearDown(a)
		require.Positive(t, stop())
	}
	for range 5 {
		attack(func(configurator.Allocation) {})
	}
	require.Zero(t, received.Load(), "packets that a policy denies")
	const flushes = 5
	for range flushes {
		attack(func(configurator.Allocation) {
			require.NoError(t, command("nft", "flush", "ruleset"))
			_, err := h.Repair(h.ctx())
			require.NoError(t, err)
		})
	}
	passing := int64(0)
	if main == "bridge" { // packets that are between the guard and the policy
		passing = 64 * flushes // a batch of the kernel each
	}
	require.LessOrEqual(t, received.Swap(0), passing, "packets that a policy denies, after a flush")
	open := h.alloc("open")
	stop := flood(t, open.Netns, to)
	h.setUp(open)
	require.Eventually(t, func() bool { return received.Load() > 0 }, timeout*3, time.Millisecond, "without a policy they arrive")
	stop()
	h.tearDown(open, sink)
}

func countPackets(c *net.UDPConn, n *atomic.Int64) {
	buf := make([]byte, 100)
	for {
		if _, err := c.Read(buf); err != nil {
			return
		}
		n.Add(1)
	}
}

// flood sends datagrams from a namespace until stop is called, which returns how many.
func flood(t *testing.T, netns, to string) (stop func() (sent int64)) {
	t.Helper()
	s, err := sandbox.Open(netns)
	require.NoError(t, err)
	addr := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to))
	var conn *net.UDPConn
	require.NoError(t, s.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", nil)
		return err
	}))
	require.NoError(t, s.Close())
	var sent atomic.Int64
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-done:
				return
			default:
			}
			if _, err := conn.WriteTo([]byte("x"), addr); err == nil {
				sent.Add(1)
			} else {
				runtime.Gosched()
			}
		}
	}()
	return func() int64 {
		close(done)
		<-ended
		conn.Close()
		return sent.Load()
	}
}

// TestPolicyLost: without its state, GC removes the policies of allocations that are gone.
func TestPolicyLost(t *testing.T) {
	for _, main := range []string{"ptp", "bridge"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative)
			h.network("net", policed(main, dual)...)
			a, b := h.alloc("a"), h.alloc("b")
			a.Policy = mustPolicy(t, `{"presets":["no-metadata"],"ingress":{"default":"deny","rules":[{"peers":[{"labels":{"app":"x"}},{"allocation":"b"}]}]}}`)
			b.Labels = map[string]string{"app": "x"}
			h.setUp(a)
			h.setUp(b)
			require.NoError(t, os.RemoveAll(configurator.DefaultStateDir))
			_, err := h.GC(h.ctx(), nil)
			require.NoError(t, err)
		})
	}
}

// TestPolicyOfNetworks: an allocation with a policy is only in networks that enforce it, the
// policy applies in each of them, and the policy of a network cannot be lifted.
func TestPolicyOfNetworks(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	setSysctls(t, "", quick)
	named := func(plugins []map[string]any, f families, bridge string) []map[string]any {
		plugins[1]["ipam"], plugins[1]["bridge"] = f.ipam(), bridge
		return plugins
	}
	second, third := families{v4: "10.97.0.0/24"}, families{v4: "10.96.0.0/24"}
	strict := policed("ptp", dual)
	strict[len(strict)-1]["policy"] = map[string]any{"egress": map[string]any{"rules": []any{
		map[string]any{"action": "deny", "services": []any{map[string]any{"protocol": "tcp", "ports": "81"}}},
	}}}
	h.network("strict", strict...)
	h.network("other", named(policed("bridge", second), second, "br-other")...)
	h.network("plain", named(chain("bridge", third, ""), third, "br-plain")...)
	a, b := h.alloc("a"), h.alloc("b")
	a.Networks, b.Networks = []string{"strict"}, []string{"other"}
	for _, port := range []int{80, 81, 82} {
		serve(t, b.Netns, "tcp", port, "b")
	}
	setSysctls(t, a.Netns, quick)
	sb := h.setUp(b)
	h.setUp(a)
	to := func(port int) string { return at(netip.MustParseAddr(sb.Address), port) }
	requireAnswer(t, a.Netns, "tcp", to(80), "b")
	requireSilence(t, a.Netns, "tcp", to(81))

	deny82 := mustPolicy(t, `{"egress":{"rules":[{"action":"deny","services":[{"protocol":"tcp","ports":"82"}]},{"peers":[{"allocation":"b"}],"services":[{"protocol":"tcp","ports":"81"}]}]}}`)
	_, err := h.Update(h.ctx(), "a", configurator.Change{Policy: deny82})
	require.NoError(t, err)
	requireAnswer(t, a.Netns, "tcp", to(80), "b")
	requireSilence(t, a.Netns, "tcp", to(81))
	requireSilence(t, a.Netns, "tcp", to(82))

	_, err = h.Attach(h.ctx(), "a", "plain", configurator.AttachOptions{})
	require.ErrorIs(t, err, configurator.ErrUnserved)
	require.ErrorContains(t, err, `no plugin of network "plain" declares policy`)
	_, err = h.Attach(h.ctx(), "a", "other", configurator.AttachOptions{})
	require.NoError(t, err)
	a.Policy = deny82
	requireSilence(t, a.Netns, "tcp", to(82)) // now over the second interface
	requireAnswer(t, a.Netns, "tcp", to(80), "b")
	require.NoError(t, h.CheckOnly(h.ctx(), a))
	_, err = h.Detach(h.ctx(), "a", "eth1", "")
	require.NoError(t, err)

	c := h.alloc("c")
	c.Networks, c.Policy = []string{"strict", "plain"}, deny82
	_, err = h.Setup(h.ctx(), c)
	require.ErrorContains(t, err, `no plugin of network "plain" declares policy`)
	_, err = h.Attach(h.ctx(), "b", "plain", configurator.AttachOptions{})
	require.NoError(t, err)
	_, err = h.Update(h.ctx(), "b", configurator.Change{Policy: deny82})
	require.ErrorContains(t, err, `no plugin of network "plain" declares policy`)
	h.tearDown(a, b)
}
