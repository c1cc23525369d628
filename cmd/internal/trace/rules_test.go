package trace

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/fakeconmon"
)

// TestDropped lets rules of other programs take the probe or its answer, and sees them
// named, for TCP and UDP over IPv4 and IPv6.
func TestDropped(t *testing.T) {
	t.Run("tables", func(t *testing.T) {
		shared := newHost(t, "ptp")
		for name, test := range dropped {
			if test.undo != "" {
				t.Run(name, func(t *testing.T) {
					h := *shared
					h.T = t
					test.run(&h)
				})
			}
		}
	})
	for name, test := range dropped {
		if test.undo == "" {
			t.Run(name, func(t *testing.T) { test.run(newHost(t, test.main)) })
		}
	}
}

var dropped = map[string]broken{
	"by a rule of output": {undo: "nft delete table inet strict", commands: `nft add table inet strict
nft add chain inet strict out { type filter hook output priority 0 ; }
nft add rule inet strict out th dport { 80, 8080 } drop`,
		step: "output", found: "inet strict out: drop by rule "},
	"by the policy of forward": {remote: true, undo: "nft delete table inet strict", commands: `nft add table inet strict
nft add chain inet strict forwarding { type filter hook forward priority 10 ; policy drop ; }`,
		step: "forward", found: "inet strict forwarding: drop by its policy"},
	"by Docker": {main: "ptp", remote: true, commands: `iptables -N DOCKER-USER
iptables -I FORWARD -j DOCKER-USER
iptables -A DOCKER-USER -d 10.77.0.2 -j DROP
ip6tables -N DOCKER-USER
ip6tables -I FORWARD -j DOCKER-USER
ip6tables -A DOCKER-USER -d fd00:77::2 -j DROP`,
		step: "forward", found: "filter FORWARD (Docker): drop by rule "},
	"by a reset": {remote: true, only: "tcp", undo: "nft delete table inet strict", commands: `nft add table inet strict
nft add chain inet strict forwarding { type filter hook forward priority 10 ; }
nft add rule inet strict forwarding tcp dport 80 reject with tcp reset`,
		step: "forward", found: "inet strict forwarding: drop by rule "},
	"in prerouting": {remote: true, undo: "nft delete table inet firewalld", commands: `nft add table inet firewalld
nft add chain inet firewalld filter_PREROUTING { type filter hook prerouting priority -290 ; }
nft add rule inet firewalld filter_PREROUTING th dport 8080 drop`,
		step: "prerouting", found: "inet firewalld filter_PREROUTING: drop by rule "},
	"the answer": {remote: true, only: "tcp", undo: "nft delete table inet strict", commands: `nft add table inet strict
nft add chain inet strict forwarding { type filter hook forward priority 10 ; }
nft add rule inet strict forwarding ct direction reply reject`,
		step: "answer forward", found: "inet strict forwarding: drop by rule "},
	"inside": {undo: "ip netns exec web nft delete table inet mesh", remote: true, commands: `ip netns exec web nft add table inet mesh
ip netns exec web nft add chain inet mesh in { type filter hook input priority 0 ; }
ip netns exec web nft add rule inet mesh in th dport 80 drop`,
		step: "inside input", found: "inet mesh in: drop by rule "},
	"redirected to another": {remote: true, undo: "nft delete table inet other", commands: `nft add table inet other
nft add chain inet other pre { type nat hook prerouting priority -150 ; }
nft add rule inet other pre meta l4proto { tcp, udp } th dport 8080 dnat ip to 172.16.5.77:1
nft add rule inet other pre meta l4proto { tcp, udp } th dport 8080 dnat ip6 to [fd00:5::77]:1`,
		step: "routing", found: "which is not the allocation"},
	"before a neighbour is found": {remote: true, lost: true, undo: "nft delete table netdev low", commands: `nft add table netdev low
nft add chain netdev low out { type filter hook egress device LINK priority 0 ; policy drop ; }
ip neigh flush dev LINK
ip -6 neigh flush dev LINK`,
		step: "link", found: "does not arrive inside"},
	"by a rule of egress": {remote: true, undo: "nft delete table netdev low", commands: `nft add table netdev low
nft add chain netdev low out { type filter hook egress device LINK priority 0 ; }
nft add rule netdev low out th dport 80 drop`,
		step: "egress", found: "netdev low out: drop by rule "},
	"by reverse path filtering": {main: "ptp", remote: true, link: "other", only: "ipv4", lost: true, commands: `ip link add other type bridge
ip link set other up
sysctl -qw net.ipv4.conf.other.rp_filter=1`,
		step: "routing", found: "reverse path filtering drops packets from 192.0.2.7 on other"},
	"by legacy iptables": {remote: true, lost: true, undo: "iptables-legacy -F\nip6tables-legacy -F", commands: `iptables-legacy -A FORWARD -d 10.77.0.2 -j DROP
ip6tables-legacy -A FORWARD -d fd00:77::2 -j DROP`, step: "conntrack", found: "by a rule of legacy iptables"},
	"without forwarding of IPv4": {main: "bridge", remote: true, lost: true, only: "ipv4", commands: "sysctl -qw net.ipv4.ip_forward=0",
		undo: "sysctl -qw net.ipv4.ip_forward=1", step: "routing", found: ": net/ipv4/ip_forward is 0"},
	"without forwarding of IPv6": {main: "bridge", remote: true, lost: true, only: "ipv6", commands: "sysctl -qw net.ipv6.conf.all.forwarding=0",
		undo: "sysctl -qw net.ipv6.conf.all.forwarding=1", step: "routing", found: ": net/ipv6/conf/all/forwarding is 0"},
	"without forwarding of the client's link": {main: "bridge", remote: true, link: "other", lost: true, only: "ipv4", commands: `ip link add other type bridge
ip link set other up
sysctl -qw net.ipv4.conf.other.forwarding=0`, undo: "ip link del other", step: "routing", found: ": net/ipv4/conf/other/forwarding is 0"},
	"no route to the client": {main: "bridge", remote: true, commands: "ip route del default\nip -6 route del default",
		step: "client", found: "no route to "},
	"no way back": {main: "bridge", remote: true, commands: "ip -n web route del default\nip -n web -6 route del default",
		step: "way back", found: "no route to "},
}

// TestTextOfTheRule: the rule that drops is shown as nft writes it, with all that matched.
func TestTextOfTheRule(t *testing.T) {
	h := newHost(t, "bridge")
	h.run(dropped["by a rule of output"].commands)
	s := failed(h.follow("tcp", true, false, ""))
	require.Contains(t, s.Next, "th dport { 80, 8080 } drop")
	require.Equal(t, "inet", s.Chain.Family)
	require.Equal(t, "strict", s.Chain.Table)
	require.Equal(t, "drop", s.Chain.Verdict)
	require.Len(t, s.Chain.Rules, 1)
	require.NotZero(t, s.Chain.Rules[0].Handle)
}

// TestProcessOfTheHost: a process of the host on the same port is noted, and gets nothing.
func TestProcessOfTheHost(t *testing.T) {
	h := newHost(t, "bridge")
	each(func(protocol string, ipv4 bool) {
		address := map[bool]string{true: "0.0.0.0:8080", false: "[::]:8080"}[ipv4]
		var server interface {
			io.Closer
			SetDeadline(time.Time) error
		}
		if protocol == "tcp" {
			l, err := net.Listen("tcp", address)
			require.NoError(t, err)
			server = l.(*net.TCPListener)
		} else {
			l, err := net.ListenPacket("udp", address)
			require.NoError(t, err)
			server = l.(*net.UDPConn)
		}
		p := h.follow(protocol, ipv4, true, "")
		require.True(t, p.Reached)
		require.Equal(t, Note, p.Steps[1].State)
		require.Regexp(t, `^\S+ \(process \d+\) listens on \S+:8080$`, p.Steps[1].Found)
		require.NoError(t, server.SetDeadline(time.Now()))
		require.ErrorIs(t, received(server), os.ErrDeadlineExceeded)
		require.NoError(t, server.Close())
	})
}

// TestReservedPort: conmon reserves the port for its own container, which is not noted.
func TestReservedPort(t *testing.T) {
	h := newHost(t, "bridge")
	_, stop := fakeconmon.Start(t, "conmon", "web", "tcp4", "0.0.0.0:8080")
	p := h.follow("tcp", true, true, "")
	require.True(t, p.Reached)
	require.NotEqual(t, "process of the host", p.Steps[1].Name)
	stop()
	pid, stop := fakeconmon.Start(t, "conmon", "db", "tcp4", "0.0.0.0:8080")
	p = h.follow("tcp", true, true, "")
	require.True(t, p.Reached)
	require.Equal(t, fmt.Sprintf("conmon (process %d) listens on 0.0.0.0:8080 for container db", pid), p.Steps[1].Found)
	require.Contains(t, p.Steps[1].Next, "publish another host port")
	stop()
}

// TestFromAnAddressOfTheHost: the host sends from it.
func TestFromAnAddressOfTheHost(t *testing.T) {
	h := newHost(t, "bridge")
	r, err := h.Get(t.Context(), "web")
	require.NoError(t, err)
	from := netip.MustParseAddr("172.16.5.1")
	p, err := Follow(t.Context(), Targets(r, from)[0])
	require.NoError(t, err)
	require.True(t, p.Reached, "%+v", p.Steps)
	require.Equal(t, from, p.From.Addr())
	require.Equal(t, from, p.Host.Addr())
	require.Empty(t, p.Link)
}

// TestForeignNames: names that a workload chooses become neither commands for the shell nor
// options of nft.
func TestForeignNames(t *testing.T) {
	for _, name := range []string{"$(reboot)", "-f/tmp/x", "a b", "a;b", "a\x1b[2J", "", "'"} {
		c := &Chain{Family: "inet", Table: name, Name: "in"}
		require.Equal(t, "nft -a list ruleset", c.listing("in"), name)
		require.Empty(t, ruleText(t.Context(), c, &Rule{Chain: "in"}))
		c.Table = "mesh"
		require.Equal(t, "nft -a list ruleset", c.listing(name), name)
		require.Empty(t, ruleText(t.Context(), c, &Rule{Chain: name}))
	}
	require.Equal(t, "nft -a list chain inet mesh DOCKER-USER", (&Chain{Family: "inet", Table: "mesh"}).listing("DOCKER-USER"))
	require.Equal(t, "eth0.100", shellWord("eth0.100"))
	require.Equal(t, `'$(id)'\'''`, shellWord("$(id)'"))
}

func TestToolOf(t *testing.T) {
	for _, test := range []struct {
		want, family, table string
		chains              []string
	}{
		{"allocnet", "ip", "allocnet_guard", []string{"local_only"}},
		{"allocnet", "ip6", "allocnet_policy", []string{"forward"}},
		{"allocnet", "ip", "filter", []string{"FORWARD", "ALLOCNET-FORWARD"}},
		{"", "inet", "allocnet_watcher", []string{"forward"}}, // of another program
		{"firewalld", "inet", "firewalld", []string{"filter_FORWARD"}},
		{"Docker", "ip", "filter", []string{"FORWARD", "DOCKER-USER"}},
		{"ufw", "ip", "filter", []string{"FORWARD", "ufw-before-forward", "ufw-user-forward"}},
		{"kube-proxy", "ip6", "nat", []string{"PREROUTING", "KUBE-SERVICES"}},
		{"kube-proxy", "ip", "kube-proxy", []string{"filter-forward"}},
		{"iptables-nft", "ip", "filter", []string{"FORWARD"}},
		{"", "inet", "filter", []string{"forward"}},
		{"", "ip", "mine", []string{"FORWARD"}},
	} {
		require.Equal(t, test.want, toolOf(test.family, test.table, test.chains...), "%+v", test)
	}
}

// TestPortOnTheLoopback: other hosts do not reach it.
func TestPortOnTheLoopback(t *testing.T) {
	h := newHost(t, "bridge")
	r, err := h.Get(t.Context(), "web")
	require.NoError(t, err)
	r.Ports[0].HostIP = "127.0.0.1"
	p, err := Follow(t.Context(), Targets(r, clients[true])[0])
	require.NoError(t, err)
	require.Contains(t, failed(p).Found, "published on 127.0.0.1, which only the host itself reaches")
	p, err = Follow(t.Context(), Targets(r, netip.Addr{})[0])
	require.NoError(t, err)
	require.True(t, p.Reached, "%+v", p.Steps)
}
