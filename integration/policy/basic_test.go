package policy

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// policed returns a network whose allocations can have policies.
func policed(main string, f testbed.Families) []map[string]any {
	return append(testbed.Chain(main, f, ""), map[string]any{"type": "policy", "capabilities": map[string]bool{"policy": true}})
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
			testbed.SetSysctls(t, "", testbed.Quick)
			h.Network("net", policed(main, testbed.Dual)...)
			client, db, other := h.Alloc("client"), h.Alloc("db"), h.Alloc("other")
			db.Labels = map[string]string{"app": "db"}
			client.Policy = mustPolicy(t, `{"ingress":{"default":"deny"},"egress":{"default":"deny","rules":[{"peers":[{"labels":{"app":"db"}}],"services":[{"protocol":"tcp","ports":"80"}]}]}}`)
			for _, a := range []configurator.Allocation{client, db, other} {
				h.InNew(a, func() {
					testbed.SetSysctls(t, a.Netns, testbed.Quick)
					testbed.Serve(t, a.Netns, "tcp", 80, a.ID)
					testbed.Serve(t, a.Netns, "tcp", 81, a.ID)
				})
			}
			sc := h.SetUp(client)
			sd, so := h.SetUp(db), h.SetUp(other)
			require.NoError(t, h.CheckOnly(h.Context(), client))
			addr := netip.MustParseAddr
			for _, get := range []func(*configurator.Status) string{
				func(s *configurator.Status) string { return s.Address }, func(s *configurator.Status) string { return s.AddressIPv6 },
			} {
				testbed.RequireAnswer(t, client.Netns, "tcp", testbed.At(addr(get(sd)), 80), "db")
				testbed.RequireSilence(t, client.Netns, "tcp", testbed.At(addr(get(sd)), 81))
				testbed.RequireSilence(t, client.Netns, "tcp", testbed.At(addr(get(so)), 80))
				testbed.RequireSilence(t, other.Netns, "tcp", testbed.At(addr(get(sc)), 80))
				testbed.RequireAnswer(t, "", "tcp", testbed.At(addr(get(sc)), 80), "client") // from the host
				testbed.RequireAnswer(t, other.Netns, "tcp", testbed.At(addr(get(sd)), 80), "db")
			}
			h.TearDown(client, db, other)
		})
	}
}

// TestPolicyUpdate changes the policy and the labels of allocations while connections exist.
func TestPolicyUpdate(t *testing.T) {
	testhost.EachElsewhere(t, []string{"ptp", "bridge"}, testPolicyUpdate)
}

func testPolicyUpdate(t *testing.T, main string) {
	h := newHost(t, configurator.EngineNative)
	testbed.SetSysctls(t, "", testbed.Quick)
	h.Network("net", policed(main, testbed.Dual)...)
	client, db := h.Alloc("client"), h.Alloc("db")
	db.Ports = []portmap.Port{testbed.TCPPort(8080, 80)}
	for _, a := range []configurator.Allocation{client, db} {
		h.InNew(a, func() {
			testbed.SetSysctls(t, a.Netns, testbed.Quick)
			testbed.ServeStreams(t, a.Netns)
			testbed.Serve(t, a.Netns, "tcp", 81, a.ID)
		})
	}
	h.SetUp(client)
	sd := h.SetUp(db)
	addr := netip.MustParseAddr
	update := func(id string, change configurator.Change) {
		t.Helper()
		_, err := h.Update(h.Context(), id, change)
		require.NoError(t, err)
		require.NoError(t, h.CheckOnly(h.Context(), map[string]configurator.Allocation{"client": client, "db": db}[id]))
	}
	testbed.RequireAnswer(t, client.Netns, "tcp", testbed.At(addr(sd.Address), 81), "db")
	outside := h.Echo(testbed.HostPort(testhost.Host4, 8080))

	update("db", configurator.Change{Policy: mustPolicy(t, `{"ingress":{"default":"deny","rules":[{"peers":[{"cidr":"`+testhost.Outside4.Masked().String()+`"}],"services":[{"protocol":"tcp","ports":"80"}]}]}}`)})
	testbed.RequireSilence(t, client.Netns, "tcp", testbed.At(addr(sd.Address), 81))
	testbed.RequireSilence(t, client.Netns, "tcp", testbed.At(addr(sd.AddressIPv6), 81))
	require.NoError(t, outside(), "a connection that the policy allows goes on")
	testbed.RequireSilence(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host6, 8080))

	update("db", configurator.Change{Policy: mustPolicy(t, `{"ingress":{"default":"deny","rules":[{"peers":[{"labels":{"app":"web"}}]}]}}`)})
	require.Error(t, outside(), "a connection that the policy denies ends")
	testbed.RequireSilence(t, client.Netns, "tcp", testbed.At(addr(sd.Address), 81))
	update("client", configurator.Change{Labels: map[string]*string{"app": new("web")}})
	testbed.RequireAnswer(t, client.Netns, "tcp", testbed.At(addr(sd.Address), 81), "db")
	testbed.RequireAnswer(t, client.Netns, "tcp", testbed.At(addr(sd.AddressIPv6), 81), "db")
	update("client", configurator.Change{Labels: map[string]*string{"app": nil}})
	testbed.RequireSilence(t, client.Netns, "tcp", testbed.At(addr(sd.Address), 81))
	update("client", configurator.Change{Labels: map[string]*string{"app": new("web")}})

	privhost.FlushRuleset(t)
	_, err := h.Repair(h.Context())
	require.NoError(t, err)
	testbed.RequireAnswer(t, client.Netns, "tcp", testbed.At(addr(sd.Address), 81), "db")
	testbed.RequireSilence(t, h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 8080))

	update("db", configurator.Change{Policy: &policy.Policy{}})
	require.NoError(t, h.Echo(testbed.HostPort(testhost.Host4, 8080))())
	h.TearDown(client, db)
}

// TestPolicyFlood: an allocation that sends all the time from before its ADD never gets a packet
// past its policy: at the ADD, after a flush of the ruleset, during a Teardown. At the flush, packets
// pass that are between the hooks of a bridge and those of IP.
func TestPolicyFlood(t *testing.T) {
	for _, main := range []string{"ptp", "bridge"} {
		t.Run(main, func(t *testing.T) { testPolicyFlood(t, main) })
	}
}

// floodSink sets up an allocation that counts the datagrams for its port 9.
func floodSink(t *testing.T, h *host, sink configurator.Allocation, received *atomic.Int64) (to string) {
	h.InNew(sink, func() {
		testbed.Within(t, sink.Netns, func() error {
			c, err := net.ListenUDP("udp", &net.UDPAddr{Port: 9})
			require.NoError(t, err)
			t.Cleanup(func() { c.Close() })
			go countPackets(c, received)
			return nil
		})
	})
	return testbed.At(netip.MustParseAddr(h.SetUp(sink).Address), 9)
}

// TestPolicyFloodOfASelected: an allocation without a policy sends all the time, from before its ADD
// until after its Teardown, and never gets a packet past the policy of the receiver, which selects it by
// its labels.
func TestPolicyFloodOfASelected(t *testing.T) {
	for _, main := range []string{"ptp", "bridge"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative)
			testbed.SetSysctls(t, "", testbed.Quick)
			h.Network("net", policed(main, testbed.V4Only)...)
			sink := h.Alloc("sink")
			sink.Policy = mustPolicy(t, `{"ingress":{"rules":[{"action":"deny","peers":[{"labels":{"app":"bad"}}]}]}}`)
			var received atomic.Int64
			to := floodSink(t, h, sink, &received)
			for round := range testbed.CampaignSize(20, 20) {
				a := h.Alloc(fmt.Sprint("a", round))
				a.Labels, a.Wait = map[string]string{"app": "bad"}, round%2 == 0
				sending := flood(t, a.Netns, "udp4", to)
				h.SetUp(a)
				sending.await()
				require.NoError(t, h.CheckOnly(h.Context(), a))
				require.NoError(t, h.Teardown(h.Context(), a))
				sending.stop()
			}
			require.Zero(t, received.Load(), "packets that the policy denies")
			good := h.Alloc("good")
			sending := flood(t, good.Netns, "udp4", to)
			h.SetUp(good)
			require.Eventually(t, func() bool { return received.Load() > 0 }, testbed.Timeout*3, time.Millisecond, "another label arrives")
			sending.stop()
			h.TearDown(good, sink)
		})
	}
}

func testPolicyFlood(t *testing.T, main string) {
	h := newHost(t, configurator.EngineNative)
	testbed.SetSysctls(t, "", testbed.Quick)
	h.Network("net", policed(main, testbed.V4Only)...)
	sink := h.Alloc("sink")
	var received atomic.Int64
	to := floodSink(t, h, sink, &received)
	round := 0
	attack := func(during func(a configurator.Allocation)) {
		a := h.Alloc(fmt.Sprint("a", round))
		round++
		a.Policy = mustPolicy(t, `{"egress":{"default":"deny"},"ingress":{"default":"deny"}}`)
		sending := flood(t, a.Netns, "udp4", to)
		h.SetUp(a)
		sending.await()
		during(a)
		require.NoError(t, h.CheckOnly(h.Context(), a))
		h.TearDown(a)
		sending.stop()
	}
	for range 5 {
		attack(func(configurator.Allocation) {})
	}
	require.Zero(t, received.Load(), "packets that a policy denies")
	other := "other"
	repairs := []func(id string) error{
		func(string) error { _, err := h.Repair(h.Context()); return err },
		h.repairOne,
		func(id string) error {
			_, err := h.Update(h.Context(), id, configurator.Change{Labels: map[string]*string{"app": &other}})
			return err
		},
	}
	const flushes = 6
	for i := range flushes {
		attack(func(a configurator.Allocation) {
			privhost.FlushRuleset(t)
			if i%len(repairs) != 0 {
				require.NoError(t, h.repairOne("sink"))
			}
			before := received.Load()
			require.NoError(t, repairs[i%len(repairs)](a.ID))
			require.Equal(t, before, received.Load(), "packets that a policy denies, during a repair")
		})
	}
	passing := int64(0)
	if main == "bridge" { // packets that are between the guard and the policy
		passing = 64 * flushes // a batch of the kernel each
	}
	require.LessOrEqual(t, received.Swap(0), passing, "packets that a policy denies, after a flush")
	open := h.Alloc("open")
	sending := flood(t, open.Netns, "udp4", to)
	h.SetUp(open)
	require.Eventually(t, func() bool { return received.Load() > 0 }, testbed.Timeout*3, time.Millisecond, "without a policy they arrive")
	sending.stop()
	h.TearDown(open, sink)
}

// TestPolicyFloodOfAnAllocation: after a flush of the ruleset, an allocation that may only send to the world
// does not reach another allocation, whose address the rules do not know until it is restored.
func TestPolicyFloodOfAnAllocation(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	testbed.SetSysctls(t, "", testbed.Quick)
	h.Network("net", policed("ptp", testbed.Dual)...)
	var allocs []configurator.Allocation
	setUp := func(id, egress string) configurator.Allocation {
		a := h.Alloc(id)
		a.Policy = mustPolicy(t, `{"presets":["egress-only"],"egress":{"rules":[`+egress+`]}}`)
		h.SetUp(a)
		allocs = append(allocs, a)
		return a
	}
	sender := setUp("sender", "")
	for i := range 6 { // policies that are restored before the address of the receiver
		setUp(fmt.Sprint("other", i), fmt.Sprintf(`{"action":"deny","peers":[{"cidr":"192.0.2.%d/32"}]}`, i))
	}
	sink := h.Alloc("sink")
	var received atomic.Int64
	to := floodSink(t, h, sink, &received)
	sending := flood(t, sender.Netns, "udp4", to)
	sending.await()
	for round := range 6 {
		privhost.FlushRuleset(t)
		switch round % 3 { // a Setup may come before the repair
		case 1: // with the policy of the sender
			setUp(fmt.Sprint("same", round), "")
		case 2: // without a policy, and then with a new one
			a := h.Alloc(fmt.Sprint("open", round))
			h.SetUp(a)
			allocs = append(allocs, a)
			new := setUp(fmt.Sprint("new", round), fmt.Sprintf(`{"action":"deny","peers":[{"cidr":"198.51.100.%d/32"}]}`, round))
			more := flood(t, new.Netns, "udp4", to)
			more.await()
			more.stop()
		}
		require.Zero(t, received.Load(), "packets that the policy denies, before the repair")
		_, err := h.Repair(h.Context())
		require.NoError(t, err)
		require.Zero(t, received.Load(), "packets that the policy denies")
	}
	require.NoError(t, h.CheckOnly(h.Context(), sender))
	sending.stop()
	h.TearDown(append(allocs, sink)...)
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

// flood sends bursts of datagrams from a namespace, also while it has no route. The pauses between them are
// shorter than any step of an operation that packets must not pass during.
func flood(t *testing.T, netns, network, to string) *flooding {
	t.Helper()
	s, err := sandbox.Open(netns)
	require.NoError(t, err)
	addr := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to))
	f := &flooding{t: t, done: make(chan struct{}), ended: make(chan struct{})}
	var conn *net.UDPConn
	require.NoError(t, s.Do(func() (err error) {
		conn, err = net.ListenUDP(network, nil)
		return err
	}))
	require.NoError(t, s.Close())
	go func() {
		defer close(f.ended)
		defer conn.Close()
		for {
			select {
			case <-f.done:
				return
			default:
			}
			for range floodBurst {
				if _, err := conn.WriteTo([]byte("x"), addr); err != nil {
					break
				}
				f.sent.Add(1)
			}
			time.Sleep(floodPause) // a send without pause takes a CPU from what the test waits for
		}
	}()
	return f
}

const (
	floodBurst = 4
	floodPause = 100 * time.Microsecond
)

// flooding is what flood has started.
type flooding struct {
	t           *testing.T
	sent        atomic.Int64
	done, ended chan struct{}
}

// await waits until a datagram has left the socket.
func (f *flooding) await() {
	f.t.Helper()
	require.Eventually(f.t, func() bool { return f.sent.Load() > 0 }, 3*testbed.Timeout, time.Millisecond)
}

func (f *flooding) stop() {
	close(f.done)
	<-f.ended
}

// TestPolicyLost: without its state, GC removes the policies of allocations that are gone.
func TestPolicyLost(t *testing.T) {
	for _, main := range []string{"ptp", "bridge"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, configurator.EngineNative)
			h.Network("net", policed(main, testbed.Dual)...)
			a, b := h.Alloc("a"), h.Alloc("b")
			a.Policy = mustPolicy(t, `{"presets":["no-metadata"],"ingress":{"default":"deny","rules":[{"peers":[{"labels":{"app":"x"}},{"allocation":"b"}]}]}}`)
			b.Labels = map[string]string{"app": "x"}
			h.SetUp(a)
			h.SetUp(b)
			require.Eventually(t, func() bool { // a pool may be preparing a namespace
				return os.RemoveAll(configurator.DefaultStateDir) == nil
			}, 10*time.Second, time.Millisecond)
			_, err := h.GC(h.Context(), nil)
			require.NoError(t, err)
		})
	}
}

// TestPolicyOfNetworks: an allocation with a policy is only in networks that enforce it, the
// policy applies in each of them, and the policy of a network cannot be lifted.
func TestPolicyOfNetworks(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	testbed.SetSysctls(t, "", testbed.Quick)
	named := func(plugins []map[string]any, f testbed.Families, bridge string) []map[string]any {
		plugins[1]["ipam"], plugins[1]["bridge"] = f.IPAM(), bridge
		return plugins
	}
	second, third := testbed.Families{V4: "10.97.0.0/24"}, testbed.Families{V4: "10.96.0.0/24"}
	strict := policed("ptp", testbed.Dual)
	strict[len(strict)-1]["policy"] = map[string]any{"egress": map[string]any{"rules": []any{
		map[string]any{"action": "deny", "services": []any{map[string]any{"protocol": "tcp", "ports": "81"}}},
	}}}
	h.Network("strict", strict...)
	h.Network("other", named(policed("bridge", second), second, "br-other")...)
	h.Network("plain", named(testbed.Chain("bridge", third, ""), third, "br-plain")...)
	a, b := h.Alloc("a"), h.Alloc("b")
	a.Networks, b.Networks = []string{"strict"}, []string{"other"}
	for _, port := range []int{80, 81, 82} {
		testbed.Serve(t, b.Netns, "tcp", port, "b")
	}
	testbed.SetSysctls(t, a.Netns, testbed.Quick)
	sb := h.SetUp(b)
	h.SetUp(a)
	to := func(port int) string { return testbed.At(netip.MustParseAddr(sb.Address), port) }
	testbed.RequireAnswer(t, a.Netns, "tcp", to(80), "b")
	testbed.RequireSilence(t, a.Netns, "tcp", to(81))

	deny82 := mustPolicy(t, `{"egress":{"rules":[{"action":"deny","services":[{"protocol":"tcp","ports":"82"}]},{"peers":[{"allocation":"b"}],"services":[{"protocol":"tcp","ports":"81"}]}]}}`)
	_, err := h.Update(h.Context(), "a", configurator.Change{Policy: deny82})
	require.NoError(t, err)
	testbed.RequireAnswer(t, a.Netns, "tcp", to(80), "b")
	testbed.RequireSilence(t, a.Netns, "tcp", to(81))
	testbed.RequireSilence(t, a.Netns, "tcp", to(82))

	_, err = h.Attach(h.Context(), "a", "plain", configurator.AttachOptions{})
	require.ErrorIs(t, err, configurator.ErrUnserved)
	require.ErrorContains(t, err, `no plugin of network "plain" declares policy`)
	_, err = h.Attach(h.Context(), "a", "other", configurator.AttachOptions{})
	require.NoError(t, err)
	a.Policy = deny82
	testbed.RequireSilence(t, a.Netns, "tcp", to(82)) // now over the second interface
	testbed.RequireAnswer(t, a.Netns, "tcp", to(80), "b")
	require.NoError(t, h.CheckOnly(h.Context(), a))
	_, err = h.Detach(h.Context(), "a", "eth1", "")
	require.NoError(t, err)

	c := h.Alloc("c")
	c.Networks, c.Policy = []string{"strict", "plain"}, deny82
	_, err = h.Setup(h.Context(), c)
	require.ErrorContains(t, err, `no plugin of network "plain" declares policy`)
	_, err = h.Attach(h.Context(), "b", "plain", configurator.AttachOptions{})
	require.NoError(t, err)
	_, err = h.Update(h.Context(), "b", configurator.Change{Policy: deny82})
	require.ErrorContains(t, err, `no plugin of network "plain" declares policy`)
	h.TearDown(a, b)
}
