package configurator

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/portmap"
)

// pickingHost is a native host with a range of host ports to pick from.
func pickingHost(t *testing.T, first, last int) *testHost {
	t.Helper()
	h, _ := nativeHost(t, "1.0.0", `{"type":"portmap","capabilities":{"portMappings":true}}`)
	h.cfg.DynamicPorts = PortRange{first, last}
	return h
}

// requirePublished requires a TCP port of the host to lead to one of an allocation.
func requirePublished(t *testing.T, s *Status, port, to int) {
	t.Helper()
	require.NoError(t, ruleset.Lend(func(r *ruleset.Ruleset) error {
		m, _, err := r.Destination(t.Context(), netip.MustParseAddr("192.0.2.1"), unix.IPPROTO_TCP, uint16(port))
		require.NotNil(t, m)
		require.Equal(t, netip.AddrPortFrom(netip.MustParseAddr(s.Address), uint16(to)), m.To)
		return err
	}))
}

// TestPickedPorts: ports without a number get one that stays.
func TestPickedPorts(t *testing.T) {
	h := pickingHost(t, 21000, 21009)
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Label: "http", To: 80}, tcpPort(0, 81), tcpPort(21003, 82), tcpPort(0, 0)}
	first, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.True(t, first.Created)
	numbers := map[int]bool{}
	for _, m := range first.Ports {
		numbers[m.HostPort] = true
		require.True(t, 21000 <= m.HostPort && m.HostPort <= 21009, m.HostPort)
	}
	require.Len(t, numbers, 4)
	http, _ := portmap.Lookup(first.Ports, "http")
	require.Equal(t, []int{first.Ports[0].HostPort, 80}, []int{http.HostPort, http.ContainerPort})
	require.Equal(t, first.Ports[0].HostPort, first.Ports[1].HostPort, "one number for TCP and UDP")
	requirePublished(t, first, http.HostPort, 80)
	same := first.Ports[4]
	require.Equal(t, same.HostPort, same.ContainerPort)
	requirePublished(t, first, same.HostPort, same.HostPort)

	again, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.False(t, again.Created)
	require.Equal(t, first.Ports, again.Ports)

	updated, err := h.Update(t.Context(), a.ID, Change{Publish: []portmap.Port{tcpPort(0, 90)}})
	require.NoError(t, err)
	require.Len(t, updated.Ports, 6)
	requirePublished(t, updated, updated.Ports[5].HostPort, 90)
	a.Ports = append(a.Ports, tcpPort(0, 90))
	again, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, updated.Ports, again.Ports)

	a.Ports[1].To = 85
	_, err = h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrDifferent)
	require.NoError(t, h.Teardown(t.Context(), a))
	h.settle()
	h.requireNoRecords()
}

// TestPickedPortsAtOnce: two Configurators pick from a range that is just large enough.
func TestPickedPortsAtOnce(t *testing.T) {
	h := pickingHost(t, 21000, 21015)
	cfg := h.cfg
	cfg.Networks = nil
	other, err := New(cfg)
	require.NoError(t, err)
	defer other.Close()
	all := make([]Allocation, 17)
	for i := range all {
		all[i] = h.alloc(fmt.Sprint("a", i))
		all[i].Ports = []portmap.Port{tcpPort(0, 80)}
	}
	var running sync.WaitGroup
	var mu sync.Mutex
	numbers := map[int]string{}
	for i, a := range all[:16] {
		by := []*Configurator{h.Configurator, other}[i%2]
		running.Go(func() {
			s, err := by.Setup(t.Context(), a)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
				return
			}
			numbers[s.Ports[0].HostPort] = a.ID
		})
	}
	running.Wait()
	require.Len(t, numbers, 16)
	_, err = h.Setup(t.Context(), all[16])
	require.ErrorIs(t, err, ErrNoPort)
	require.ErrorContains(t, err, `pick a host port for allocation "a16": no host port is free of 21000-21015`)
	_, err = h.Update(t.Context(), "a0", Change{Publish: []portmap.Port{tcpPort(0, 81)}})
	require.ErrorIs(t, err, ErrNoPort)
	require.NoError(t, h.Teardown(t.Context(), all[3]))
	s, err := h.Setup(t.Context(), all[16])
	require.NoError(t, err)
	require.Equal(t, "a3", numbers[s.Ports[0].HostPort])
	for i, a := range all {
		if i != 3 {
			require.NoError(t, h.Teardown(t.Context(), a))
		}
	}
	h.settle()
	h.requireNoRecords()
}

// TestPickedPortsOfOneID: Setups of the same allocation at once pick once.
func TestPickedPortsOfOneID(t *testing.T) {
	h := pickingHost(t, 21000, 21999)
	a := h.alloc("a")
	a.Ports = []portmap.Port{tcpPort(0, 80), tcpPort(0, 81)}
	results := make([][]portmap.Mapping, 8)
	var running sync.WaitGroup
	for i := range results {
		running.Go(func() {
			s, err := h.Setup(t.Context(), a)
			if err != nil {
				t.Error(err)
				return
			}
			results[i] = s.Ports
		})
	}
	running.Wait()
	for _, ports := range results {
		require.Equal(t, results[0], ports)
	}
	require.NoError(t, h.Teardown(t.Context(), a))
	h.settle()
	h.requireNoRecords()
}

// TestPickedPortsPassOver the ports of processes and those that the request has itself.
func TestPickedPortsPassOver(t *testing.T) {
	h := pickingHost(t, 21000, 21003)
	l, err := net.Listen("tcp4", "127.0.0.1:21001")
	require.NoError(t, err)
	defer l.Close()
	u, err := net.ListenPacket("udp", "[::]:21003")
	require.NoError(t, err)
	defer u.Close()
	a := h.alloc("a")
	a.Ports = []portmap.Port{tcpPort(21002, 80), {To: 81}}
	s, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, 21000, s.Ports[2].HostPort, s.Ports)
	require.Empty(t, s.Warnings)
	require.NoError(t, h.Teardown(t.Context(), a))

	a.Ports = []portmap.Port{{Range: 2, To: 80}}
	_, err = h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrInvalidAllocation)
	require.ErrorContains(t, err, `range "2" must be 1 for a port without a number`)
	a.Ports = []portmap.Port{{To: 70000}}
	_, err = h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrInvalidAllocation)
	h.settle()
	h.requireNoRecords()
}

func TestParsePortRange(t *testing.T) {
	r, err := ParsePortRange("20000-32000")
	require.NoError(t, err)
	require.Equal(t, DefaultDynamicPorts, r)
	require.Equal(t, "20000-32000", r.String())
	for _, bad := range strings.Fields("20000 0-10 10-9 1-65536 a-b 1-2-3 -1-5") {
		_, err := ParsePortRange(bad)
		require.ErrorContains(t, err, fmt.Sprintf("%q is not a range of ports: write it as 20000-32000", bad))
	}
	_, err = New(Config{DynamicPorts: PortRange{5, 4}})
	require.ErrorIs(t, err, ErrInvalidConfig)
	require.Equal(t, DefaultDynamicPorts, Config{}.withDefaults().DynamicPorts)
}

// TestPickedAndNumberedPorts: a further Setup of an allocation keeps what was picked beside ports with
// a number, in any order, and without a plugin that publishes them.
func TestPickedAndNumberedPorts(t *testing.T) {
	for name, ports := range map[string][]portmap.Port{
		"numbered first": {tcpPort(21008, 80), tcpPort(0, 80)}, "picked first": {tcpPort(0, 80), tcpPort(21008, 80)},
		"several": {tcpPort(0, 80), tcpPort(21008, 80), tcpPort(0, 80), {Value: 21010, To: 80, Range: 3}},
	} {
		for _, unserved := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s %v", name, unserved), func(t *testing.T) {
				h := pickingHost(t, 21000, 21015)
				if unserved {
					h.file("net.conflist", strings.Replace(h.read("net.conflist"), `,"capabilities":{"portMappings":true}`, "", 1))
					h.cfg.AllowUnserved = true
				}
				a := h.alloc("a")
				a.Ports = ports
				first, err := h.Setup(t.Context(), a)
				require.NoError(t, err)
				again, err := h.Setup(t.Context(), a)
				require.NoError(t, err)
				require.False(t, again.Created)
				require.Equal(t, first.Ports, again.Ports)
				require.NoError(t, h.Teardown(t.Context(), a))
			})
		}
	}
}

// TestPickWhatIsFreed: an update picks from the ports that it unpublishes, too.
func TestPickWhatIsFreed(t *testing.T) {
	h := pickingHost(t, 21000, 21001)
	a := h.alloc("a")
	a.Ports = []portmap.Port{tcpPort(0, 80), tcpPort(0, 81)}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	s, err := h.Update(t.Context(), "a", Change{Unpublish: []portmap.Port{{Value: 21001}}, Publish: []portmap.Port{tcpPort(0, 90)}})
	require.NoError(t, err)
	requirePublished(t, s, 21001, 90)
	require.NoError(t, h.Teardown(t.Context(), a))
}
