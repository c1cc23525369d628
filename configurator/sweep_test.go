package configurator

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// change is what another program changes of what an ADD has made.
type change struct {
	name string
	// command is run by sh: on the host, or inside. It has the names of sweep.replace.
	command string
	inside  bool
	// found is in the error of CHECK.
	found string
	// undo is run in place of a Repair, which cannot restore this.
	undo string
}

// sweep is an allocation that the changes concern.
type sweep struct {
	*testHost
	a       Allocation
	netns   *sandbox.Sandbox
	replace *strings.Replacer
}

// newSweep sets up an allocation with both families, and with all plugins after the given one.
func newSweep(t *testing.T, plugin string, keys string, tuning string) *sweep {
	t.Helper()
	h, leases := nativeHost(t, "1.0.0")
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[
		{"type":"`+plugin+`",`+keys+`"ipMasq":true,"ipam":{"type":"host-local","dataDir":"`+leases+`",
			"ranges":[[{"subnet":"10.77.0.0/24"}],[{"subnet":"fd00:77::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}},
		{"type":"firewall"},
		{"type":"portmap","capabilities":{"portMappings":true}},
		{"type":"bandwidth","ingressRate":80000000,"ingressBurst":8000000,"egressRate":80000000,"egressBurst":8000000},
		{"type":"tuning",`+tuning+`"allmulti":true,"txQLen":20},
		{"type":"policy","capabilities":{"policy":true}}]}`)
	a := h.alloc("a")
	a.Ports, a.Policy = []portmap.Port{tcpPort(8080, 80)}, &policy.Policy{Presets: []policy.Preset{policy.Isolated}}
	status, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	netns, err := sandbox.Open(a.Netns)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, netns.Close()) })
	links, err := netlink.LinkList()
	require.NoError(t, err)
	ifb := ""
	for _, l := range links {
		if l.Type() == "ifb" && l.Attrs().Alias != "" {
			ifb = l.Attrs().Name
		}
	}
	require.NotEmpty(t, ifb)
	port := names.Owner{Network: "net", ID: "a", IfName: "eth0", Instance: h.instance}.Veth()
	return &sweep{h, a, netns, strings.NewReplacer("BR", "brtest", "PORT", port, "IFB", ifb,
		"ADDR4", status.Address, "ADDR6", status.AddressIPv6, "LEASE", filepath.Join(leases, "net", status.Address),
		"POLICIES", filepath.Join(h.cfg.StateDir, "policies"))}
}

func (s *sweep) run(t *testing.T, command string, inside bool) {
	t.Helper()
	command = s.replace.Replace(command)
	act := func() error {
		out, err := exec.Command("sh", "-c", command).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%s: %w: %s", command, err, out)
		}
		return err
	}
	if inside {
		require.NoError(t, s.netns.Do(act))
		return
	}
	require.NoError(t, act())
}

// requireFound makes each change, and checks that CHECK names it and a repair restores it. once reports that no change
// concerns the rule of iptables, so that CHECKs look at it only once.
func (s *sweep) requireFound(t *testing.T, once bool, changes []change) {
	t.Helper()
	require.NoError(t, s.CheckOnly(t.Context(), s.a), "what ADD has made is no damage")
	ctx := t.Context()
	if once {
		ctx = iptables.CheckOnce(ctx)
	}
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			s.run(t, c.command, c.inside)
			err := s.CheckOnly(ctx, s.a)
			require.ErrorIs(t, err, ErrUnhealthy)
			require.ErrorContains(t, err, s.replace.Replace(c.found))
			repaired, err := s.CheckAndRepair(ctx, "a") // with another CHECK
			if c.undo != "" {
				require.ErrorIs(t, err, ErrUnhealthy)
				s.run(t, c.undo, c.inside)
				_, err = s.CheckAndRepair(ctx, "a")
			} else {
				require.True(t, repaired, "%v", err)
			}
			require.NoError(t, err)
		})
	}
}

// changesInside are changes inside. mtu is that of the container's end.
func changesInside(mtu int) []change {
	return []change{
		{name: "inside: name", command: "ip link set eth0 name other", inside: true, found: `"eth0"`},
		{name: "inside: down", command: "ip link set eth0 down", inside: true, found: `"eth0" is down`},
		{name: "inside: MTU", command: "ip link set eth0 mtu 1300", inside: true, found: fmt.Sprintf(`"eth0" has the MTU 1300, not %d`, mtu)},
		{name: "inside: MTU without IPv6", command: "ip link set eth0 mtu 1200", inside: true, found: `"eth0"`},
		{name: "inside: MAC", command: "ip link set eth0 address 02:00:00:00:00:99", inside: true, found: `"eth0" has the MAC`},
		{name: "inside: ARP", command: "ip link set eth0 arp off", inside: true, found: `"eth0" has ARP switched off`},
		{name: "inside: arp_ignore", command: "sysctl -qw net.ipv4.conf.eth0.arp_ignore=8", inside: true, found: "net.ipv4.conf.eth0.arp_ignore is 8"},
		{name: "inside: disable_ipv6", command: "sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1", inside: true, found: "ADDR6"},
		{name: "inside: all addresses", command: "ip address flush dev eth0", inside: true, found: "has lost its address"},
		{name: "inside: IPv4 address", command: "ip address del ADDR4/24 dev eth0", inside: true, found: "has lost its address ADDR4/24"},
		{name: "inside: IPv6 address", command: "ip address del ADDR6/64 dev eth0", inside: true, found: "has lost its address ADDR6/64"},
		{name: "inside: prefix length", command: "ip address del ADDR4/24 dev eth0; ip address add ADDR4/32 dev eth0", inside: true, found: "does not have the address ADDR4/24"},
		{name: "inside: prefix length of IPv6", command: "ip address del ADDR6/64 dev eth0; ip address add ADDR6/128 dev eth0 nodad", inside: true, found: "does not have the address ADDR6/64"},
		{name: "inside: default route", command: "ip route del default", inside: true, found: "no route to 0.0.0.0/0"},
		{name: "inside: IPv6 default route", command: "ip -6 route del default", inside: true, found: "no route to ::/0"},
		{name: "inside: route that rejects", command: "ip route replace unreachable default", inside: true, found: "no route to 0.0.0.0/0"},
		{name: "inside: IPv6 route that rejects", command: "ip -6 route del default; ip -6 route add unreachable default metric 1024", inside: true, found: "no route to ::/0"},
		{name: "inside: route to the subnet", command: "ip route del 10.77.0.0/24", inside: true, found: "no route to 10.77.0.0/24"},
		{name: "inside: IPv6 route to the subnet", command: "ip -6 route del fd00:77::/64", inside: true, found: "no route to fd00:77::/64"},
		{name: "inside: loopback", command: "ip link set lo down", inside: true, found: "the loopback interface is down"},
		{name: "tuning: txqlen", command: "ip link set eth0 txqueuelen 77", inside: true, found: "txQLen is 77"},
		{name: "tuning: allmulti", command: "ip link set eth0 allmulticast off", inside: true, found: "allmulti is false"},
		{name: "tuning: promisc", command: "ip link set eth0 promisc on", inside: true, found: "promisc is true"},
	}
}

// changesOfRules are changes of the rules and files of all plugins.
var changesOfRules = []change{
	{name: "portmap: element", command: "nft delete element ip allocnet host_ports '{ tcp . 8080 }'", found: "8080"},
	{
		name:    "portmap: another element",
		command: "nft delete element ip allocnet host_ports '{ tcp . 8080 }'; nft add element ip allocnet host_ports '{ tcp . 8080 : 10.77.0.9 . 80 }'",
		found:   "10.77.0.9", undo: "nft delete element ip allocnet host_ports '{ tcp . 8080 }'",
	},
	{name: "portmap: rules", command: "nft flush chain ip allocnet host_ports_dnat", found: "host_ports_dnat"},
	{name: "portmap: a rule that drops", command: "nft insert rule ip6 allocnet forward drop", found: "forward"},
	{name: "firewall: element", command: "nft delete element ip allocnet open '{ ADDR4 }'", found: "ADDR4"},
	{name: "firewall: accept rule", command: "iptables -D FORWARD -m comment --comment allocnet -j ALLOCNET-FORWARD", found: "FORWARD"},
	{name: "masquerading", command: "nft flush set ip6 allocnet masqueraded", found: "ADDR6"},
	{name: "all rules", command: "nft flush ruleset", found: "missing"},
	{name: "bandwidth: bucket of the veth", command: "tc qdisc del dev PORT root", found: "no token bucket"},
	{name: "bandwidth: rate", command: "tc qdisc change dev PORT root handle 1: tbf rate 1mbit burst 100k limit 200k", found: "the rate is"},
	{name: "bandwidth: redirection", command: "tc qdisc del dev PORT ingress", found: "PORT"},
	{name: "bandwidth: filter", command: "tc filter del dev PORT parent ffff:", found: "does not redirect"},
	{name: "bandwidth: ifb", command: "ip link del IFB", found: "IFB"},
	{name: "bandwidth: ifb is down", command: "ip link set IFB down", found: "is down"},
	{name: "bandwidth: alias of the ifb", command: "ip link set IFB alias other", found: `has the alias "other"`},
	{name: "bandwidth: bucket of the ifb", command: "tc qdisc del dev IFB root", found: "no token bucket"},
	{name: "policy: table", command: "nft delete table ip allocnet_policy", found: "allocnet_policy"},
	{name: "policy: known addresses", command: "nft flush set ip6 allocnet_policy allocations", found: "ADDR6"},
	{name: "policy: stored member", command: "rm POLICIES/members/*.json", found: "the stored policy or labels"},
	{name: "host-local: lease", command: "rm LEASE", found: "is not leased"},
	{name: "host-local: lease of another", command: `printf 'other\r\neth0' > LEASE`, found: "is not leased", undo: `printf 'a\r\neth0' > LEASE`},
	{name: "host: forwarding", command: "sysctl -qw net.ipv4.ip_forward=0", found: "net.ipv4.ip_forward is 0"},
	{name: "host: IPv6 forwarding", command: "sysctl -qw net.ipv6.conf.all.forwarding=0", found: "net.ipv6.conf.all.forwarding is 0"},
	{name: "host: arp_ignore of all links", command: "sysctl -qw net.ipv4.conf.all.arp_ignore=8", found: "net.ipv4.conf.all.arp_ignore is 8", undo: "sysctl -qw net.ipv4.conf.all.arp_ignore=0"},
}

// changesOfVeth are changes of the host's end.
var changesOfVeth = []change{
	{name: "veth: name", command: "ip link set PORT name vother", found: "PORT"},
	{name: "veth: alias", command: "ip link set PORT alias other", found: `has the alias "other"`},
	{name: "veth: down", command: "ip link set PORT down", found: "is down"},
	{name: "veth: small MTU", command: "ip link set PORT mtu 1400", found: "has the MTU 1400, not 1500"},
	{name: "veth: large MTU", command: "ip link set PORT mtu 9000", found: "has the MTU 9000, not 1500"},
	{name: "veth: MTU without IPv6", command: "ip link set PORT mtu 1200", found: "1200"},
	{name: "veth: MAC", command: "ip link set PORT address 02:00:00:00:00:99", found: "has the MAC 02:00:00:00:00:99"},
	{name: "veth: group", command: "ip link set PORT group 0", found: "is in group 0"},
}

// TestSweepBridge: CHECK names what another program changes of what an ADD on a bridge has made, and Repair restores
// it.
func TestSweepBridge(t *testing.T) {
	s := newSweep(t, "bridge", `"bridge":"brtest","isGateway":true,"hairpinMode":true,"portIsolation":true,`, `"mtu":1400,`)
	before := linkOf(t, "brtest").Index
	s.requireFound(t, true, []change{
		{name: "name", command: "ip link set BR name brother", found: `"BR"`},
		{name: "down", command: "ip link set BR down", found: "is down"},
		{name: "large MTU", command: "ip link set BR mtu 9000", found: `bridge "BR" has the MTU 9000, not the smallest one of its ports, 1500`},
		{name: "small MTU", command: "ip link set BR mtu 1400", found: `bridge "BR" has the MTU 1400`},
		{name: "MTU without IPv6", command: "ip link set BR mtu 1200", found: `bridge "BR" has the MTU 1200`},
		{name: "MAC", command: "ip link set BR address 02:00:00:00:00:99", found: "has the MAC 02:00:00:00:00:99"},
		{name: "ARP", command: "ip link set BR arp off", found: "has ARP switched off"},
		{name: "promiscuous", command: "ip link set BR promisc on", found: "is in promiscuous mode"},
		{name: "arp_ignore", command: "sysctl -qw net.ipv4.conf.BR.arp_ignore=8", found: "net.ipv4.conf.BR.arp_ignore is 8"},
		{name: "forwarding", command: "sysctl -qw net.ipv4.conf.BR.forwarding=0", found: "net.ipv4.conf.BR.forwarding is 0"},
		{name: "route_localnet", command: "sysctl -qw net.ipv4.conf.BR.route_localnet=0", found: "net.ipv4.conf.BR.route_localnet is 0"},
		{name: "disable_ipv6", command: "sysctl -qw net.ipv6.conf.BR.disable_ipv6=1", found: "have the address fd00:77::1"},
		{name: "rules", command: "echo 0 > /sys/class/net/BR/bridge/nf_call_ip6tables", found: "do not pass the rules"},
		{name: "address", command: "ip address del 10.77.0.1/24 dev BR", found: "have the address 10.77.0.1"},
		{name: "IPv6 address", command: "ip address del fd00:77::1/64 dev BR", found: "have the address fd00:77::1"},
		{name: "link-local address", command: "ip -6 address flush dev BR scope link", found: "no link-local address"},
		{name: "route", command: "ip route del 10.77.0.0/24", found: "no route to 10.77.0.0/24"},
		{name: "IPv6 route", command: "ip -6 route del fd00:77::/64 dev BR", found: "no route to fd00:77::/64"},
		{
			name: "route via a gateway", command: "ip route replace 10.77.0.0/24 via 10.77.0.99 dev BR onlink",
			found: "which leads to 10.77.0.99; delete it: ip route del 10.77.0.0/24 via 10.77.0.99 dev BR",
			undo:  "ip route del 10.77.0.0/24 via 10.77.0.99 dev BR",
		},
		{name: "port: master", command: "ip link set PORT nomaster", found: "PORT"},
		{name: "port: state", command: "bridge link set dev PORT state 0", found: "is disabled in the bridge"},
		{name: "port: hairpin", command: "bridge link set dev PORT hairpin off", found: "is not in hairpin mode"},
		{name: "port: isolated", command: "bridge link set dev PORT isolated off", found: "is not isolated"},
		{name: "port: learning", command: "bridge link set dev PORT learning off", found: "has learning off"},
		{name: "port: flood", command: "bridge link set dev PORT flood off mcast_flood off bcast_flood off", found: "has flood off, mcast_flood off, bcast_flood off"},
		{name: "port: locked", command: "bridge link set dev PORT locked on", found: "has locked on"},
		{name: "port: group_fwd_mask", command: "echo 0 > /sys/class/net/PORT/brport/group_fwd_mask", found: "group_fwd_mask"},
		{name: "guard: MACs", command: "nft flush set bridge allocnet port_macs", found: "PORT"},
		{name: "guard: table", command: "nft delete table bridge allocnet", found: "bridge"},
	})
	require.Equal(t, before, linkOf(t, "brtest").Index, "it was not created again")
	s.requireFound(t, true, changesOfVeth)
	s.requireFound(t, true, changesInside(1400))
	s.requireFound(t, false, changesOfRules)
	s.requireFound(t, true, []change{{name: "existence", command: "ip link del BR", found: `"BR"`}})
	require.NoError(t, s.Teardown(t.Context(), s.a))
}

// TestSweepPtp: of what an ADD of a routed network has made.
func TestSweepPtp(t *testing.T) {
	s := newSweep(t, "ptp", "", "")
	s.requireFound(t, true, []change{
		{name: "ARP", command: "ip link set PORT arp off", found: "has ARP switched off"},
		{name: "master", command: "ip link add brtest type bridge; ip link set PORT master brtest", found: "has become a port of a bridge"},
		{name: "arp_ignore", command: "sysctl -qw net.ipv4.conf.PORT.arp_ignore=2", found: "net.ipv4.conf.PORT.arp_ignore is 2"},
		{name: "forwarding", command: "sysctl -qw net.ipv4.conf.PORT.forwarding=0", found: "net.ipv4.conf.PORT.forwarding is 0"},
		{name: "route_localnet", command: "sysctl -qw net.ipv4.conf.PORT.route_localnet=0", found: "net.ipv4.conf.PORT.route_localnet is 0"},
		{name: "disable_ipv6", command: "sysctl -qw net.ipv6.conf.PORT.disable_ipv6=1", found: "fd00:77::1"},
		{name: "address", command: "ip address del 10.77.0.1/32 dev PORT", found: "does not have the address 10.77.0.1"},
		{name: "IPv6 address", command: "ip address del fd00:77::1/128 dev PORT", found: "does not have the address fd00:77::1"},
		{name: "link-local address", command: "ip -6 address flush dev PORT scope link", found: "does not have the address fe80:"},
		{name: "route", command: "ip route del ADDR4 dev PORT", found: "no route to ADDR4"},
		{name: "IPv6 route", command: "ip -6 route del ADDR6 dev PORT", found: "no route to ADDR6"},
		{
			name: "route via a gateway", command: "ip route replace ADDR4 via 10.77.0.99 dev PORT onlink",
			found: "which leads to 10.77.0.99", undo: "ip route del ADDR4 via 10.77.0.99 dev PORT",
		},
		{name: "guard", command: "nft delete table ip allocnet_guard", found: "allocnet_guard"},
		{name: "inside: route to the gateway", command: "ip route del 10.77.0.1", inside: true, found: "no route to 10.77.0.1/32"},
	})
	s.requireFound(t, true, changesOfVeth)
	s.requireFound(t, true, changesInside(1500))
	if !testing.Short() { // as on a bridge
		s.requireFound(t, false, changesOfRules)
	}
	require.NoError(t, s.Teardown(t.Context(), s.a))
}

// TestSweepOfTheHost: settings of a bridge of the host are its administrator's. They are reported only where packets
// are lost by them, and stay.
func TestSweepOfTheHost(t *testing.T) {
	h, leases := nativeHost(t, "1.0.0")
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"br0","isGateway":true,
		"ipam":{"type":"host-local","dataDir":"`+leases+`","subnet":"10.77.0.0/24"}}]}`)
	hostBridge(t)
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	for _, c := range []struct{ command, found, stays, undo string }{
		{"ip link set br0 mtu 9000", "", "cat /sys/class/net/br0/mtu", "ip link set br0 mtu 1500"},
		{"ip link set br0 address 02:00:00:00:00:99", "", "cat /sys/class/net/br0/address", "true"},
		{"ip link set up0 down", "", "ip link show up0 | grep -c 'state DOWN'", "ip link set up0 up"},
		{"sysctl -qw net.ipv4.conf.br0.arp_ignore=8", "net.ipv4.conf.br0.arp_ignore is 8", "cat /proc/sys/net/ipv4/conf/br0/arp_ignore", "sysctl -qw net.ipv4.conf.br0.arp_ignore=0"},
		{"ip link set br0 promisc on", "is in promiscuous mode", "cat /sys/class/net/br0/flags", "ip link set br0 promisc off"},
	} {
		do(t, c.command)
		before := output(t, c.stays)
		err := h.CheckOnly(t.Context(), a)
		if c.found == "" {
			require.NoError(t, err, c.command)
		} else {
			require.ErrorContains(t, err, c.found)
		}
		_, _ = h.Repair(t.Context()) // CHECK tells
		require.Equal(t, before, output(t, c.stays))
		do(t, c.undo)
		require.NoError(t, h.CheckOnly(t.Context(), a))
	}
	require.NoError(t, h.Teardown(t.Context(), a))
}

// TestLaterPluginsAreWanted: what a plugin binary changes of the container's interface after the bridge is no damage,
// and Repair leaves it.
func TestLaterPluginsAreWanted(t *testing.T) {
	h, leases := nativeHost(t, "1.0.0")
	script := "#!/bin/sh\n[ $CNI_COMMAND != ADD ] || nsenter --net=$CNI_NETNS sh -ec 'ip link set eth0 mtu 1300; ip route del 10.77.0.0/24; " +
		"sysctl -qw net.ipv4.conf.eth0.arp_ignore=8'\nexec " + filepath.Join(h.bin, "one") + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(h.bin, "alters"), []byte(script), 0o755))
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"brtest","isGateway":true,
		"ipam":{"type":"host-local","dataDir":"`+leases+`","subnet":"10.77.0.0/24"}},{"type":"alters","fake":{"log":"`+h.log+`"}}]}`)
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, h.CheckOnly(t.Context(), a))
	ip(t, "link set "+h.linkOf("a").Attrs().Name+" mtu 1400")
	require.ErrorContains(t, h.CheckOnly(t.Context(), a), "has the MTU 1400, not 1500")
	report, err := h.Repair(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, report.Repaired)
	require.NoError(t, h.CheckOnly(t.Context(), a))
	require.Contains(t, output(t, "ip -n a link show eth0; ip -n a route"), "mtu 1300")
	require.NotContains(t, output(t, "ip -n a route"), "10.77.0.0/24")
	require.NoError(t, h.Teardown(t.Context(), a))
}
