package watch

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func indexOf(t *testing.T, name string) int {
	t.Helper()
	link, err := net.InterfaceByName(name)
	require.NoError(t, err)
	return link.Index
}

// TestMonitor: what can damage a network is noticed at once, and what other networks do
// is not.
func TestMonitor(t *testing.T) {
	privhost.Require(t, "nft", "ip")
	do(t, "nft flush ruleset", "nft 'add table ip allocnet; add set ip allocnet open { type ipv4_addr; }; add element ip allocnet open { 10.5.0.2 }'")
	hostWithAllocation(t)
	do(t, "ip link add other type bridge", "ip address add 10.6.0.1/24 dev other", "ip link set other up")
	t.Cleanup(func() { do(t, "ip link del other") })
	m, err := NewMonitor()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	links := []int{indexOf(t, "brt"), indexOf(t, "veth1")}
	for _, c := range []struct {
		command string
		want    bool
	}{
		{"nft 'add element ip allocnet open { 10.5.0.3 }'", false},
		{"nft 'delete element ip allocnet open { 10.5.0.2 }'", true},
		{"nft delete table ip allocnet", true},
		{"ip link set other down; ip link del other; ip link add other type bridge", false},
		{"ip link set veth1 down", true},
		{"ip link set veth1 up", false},
		{"ip link set veth1 nomaster", true},
		{"ip link set veth1 master brt", false},
		{"sysctl -qw net.ipv4.conf.other.forwarding=0", false},
		{"sysctl -qw net.ipv4.ip_forward=1", false},
		{"sysctl -qw net.ipv4.conf.veth1.forwarding=0", true},
		{"sysctl -qw net.ipv4.ip_forward=0", true},
		{"ip route add 10.5.0.9 dev brt", false},
		{"ip route replace 10.5.0.9 dev lo", true},
		{"ip route del 10.5.0.9 dev lo", false},
		{"ip route del 10.5.0.0/24", true},
		{"ip address del 10.5.0.1/24 dev brt", true},
		{"ip address add fd05::1/64 dev brt", false},
		{"ip link set brt mtu 1200", true},
		{"ip link set brt mtu 1500", false},
		{"ip link set brt down", true},
	} {
		since := m.Now()
		do(t, c.command)
		require.Equal(t, c.want, m.Changed(since, links), c.command)
		require.Equal(t, c.want, m.Changed(since, links), "asked again: %s", c.command)
		require.False(t, m.Changed(m.Now(), links), "afterwards: %s", c.command)
	}
}

// TestMonitorOwn: what the process itself removes from its tables does not count.
func TestMonitorOwn(t *testing.T) {
	privhost.Require(t, "nft", "ip")
	do(t, "nft flush ruleset")
	m, err := NewMonitor()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	since := m.Now()
	r, err := ruleset.Open()
	require.NoError(t, err)
	defer r.Close()
	require.NoError(t, r.Add(t.Context(), elements(1)))
	require.NoError(t, r.Del(t.Context(), elements(1)))
	require.False(t, m.Changed(since, nil))
	do(t, "nft flush ruleset")
	require.True(t, m.Changed(since, nil))
}

// TestMonitorLost: if notifications are lost, or there are more than it remembers, everything
// counts as changed.
func TestMonitorLost(t *testing.T) {
	privhost.Require(t, "nft", "ip")
	m, err := NewMonitor()
	require.NoError(t, err)
	since := m.Now()
	for i := range maxMonitored + 1 {
		m.link[i] = since
	}
	require.True(t, m.Changed(since, nil), "too many")
	require.Empty(t, m.link)

	since = m.Now()
	// Each chain is a notification. Together they do not fit into the buffer, to which the kernel adds as much again.
	do(t, `x=$(printf %0100d 0); { echo add table ip flood; for i in $(seq 15000); do echo "add chain ip flood c$x$i { comment \"$x\"; }"; done; } | nft -f -`)
	require.True(t, m.Changed(since, nil), "lost")
	require.False(t, m.Changed(m.Now(), nil))
	do(t, "nft delete table ip flood")

	require.NoError(t, m.Close())
	require.True(t, m.Changed(m.Now(), nil), "closed")
}
