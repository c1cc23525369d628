package builtin_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/sandbox"
)

const ptpGateway = "10.9.0.1"

// TestGatewayOfPtp: all links of a network have the same gateway address. It
// answers, and is the source of the host's own packets, until the last link is
// deleted. The test covers all relevant sysctls of the host, and a link of the
// reference plugin.
func TestGatewayOfPtp(t *testing.T) {
	reference, native := runners(t)
	reference.t, native.t = t, t
	conf := object{"cniVersion": "1.0.0", "name": "net", "type": "ptp", "ipam": hostLocal("10.9.0.0/24")}
	defer os.RemoveAll("/var/lib/cni/networks")
	for _, arpIgnore := range []string{"0", "1"} {
		t.Run("arp_ignore "+arpIgnore, func(t *testing.T) {
			require.NoError(t, os.RemoveAll("/var/lib/cni/networks"))
			setSysctl(t, "net/ipv4/conf/all/rp_filter", "1")
			setSysctl(t, "net/ipv4/conf/all/arp_ignore", arpIgnore)
			var all []attachment
			var results []object
			for i := range 3 {
				a := sandboxed(t, fmt.Sprintf("g-%s-%d", arpIgnore, i))
				all, results = append(all, a), append(results, native.add(a, conf))
			}
			require.Equal(t, 3, strings.Count(output(t, "ip", "-4", "-o", "addr"), ptpGateway+"/32"))
			local := output(t, "ip", "-4", "route", "show", "table", "local", "exact", ptpGateway)
			require.Equal(t, 3, strings.Count(local, "local "+ptpGateway), local)

			foreign := sandboxed(t, "g-foreign-"+arpIgnore)
			made := reference.add(foreign, conf)
			for i := range all {
				requireGateway(t, all[i], address(results[i]))
			}
			requireGateway(t, foreign, address(made))
			_, err := reference.run("DEL", foreign, with(conf, "prevResult", made))
			require.NoError(t, err)
			for i := range all {
				requireGateway(t, all[i], address(results[i]))
				_, err := native.run("DEL", all[i], with(conf, "prevResult", results[i]))
				require.NoError(t, err)
			}
			require.NotContains(t, output(t, "ip", "-4", "route", "show", "table", "all"), "10.9.0.")
		})
	}
}

// TestRoutesViaNeighbours: the gateway of a route may be any address in the subnet of a ptp network,
// as with the reference plugin. Without an address in the subnet, it is refused.
func TestRoutesViaNeighbours(t *testing.T) {
	reference, native := runners(t)
	defer os.RemoveAll("/var/lib/cni/networks")
	ipam := hostLocal("10.9.0.0/24", "fd00:9::/64")
	ipam["routes"] = []object{{"dst": "198.51.100.0/24", "gw": "10.9.0.254"}, {"dst": "2001:db8::/64", "gw": "fd00:9::fe"}, {"dst": "192.0.2.0/24"}}
	conf := object{"cniVersion": "1.0.0", "name": "net", "type": "ptp", "ipam": ipam}
	for i, r := range []*runner{reference, native} {
		t.Run(r.name, func(t *testing.T) {
			reference.t, native.t = t, t
			a := sandboxed(t, fmt.Sprintf("via-%d", i))
			made := r.add(a, conf)
			checked := with(conf, "prevResult", clone(t, made))
			for _, address := range []string{"10.9.0.254/32", "198.51.100.1/32", "fd00:9::fe/128 nodad", "2001:db8::1/128 nodad"} {
				output(t, "ip", strings.Fields("address add "+address+" dev "+firstLink(made))...)
			}
			for _, to := range []string{"198.51.100.1", "2001:db8::1"} {
				requireConnection(t, a, to)
			}
			for _, r := range []*runner{reference, native} {
				_, err := r.run("CHECK", a, checked)
				require.NoError(t, err, r.name)
			}
			output(t, "ip", "-n", filepath.Base(a.netns), "route", "delete", "198.51.100.0/24")
			_, err := native.run("CHECK", a, checked)
			require.ErrorContains(t, err, "no route to 198.51.100.0/24")
			_, err = r.run("DEL", a, checked)
			require.NoError(t, err)

			ipam := hostLocal("10.9.0.0/24")
			ipam["routes"] = []object{{"dst": "198.51.100.0/24", "gw": "10.8.0.254"}}
			_, err = r.run("ADD", a, with(conf, "ipam", ipam))
			require.ErrorContains(t, err, "unreachable")
		})
	}
}

// TestRoutesWithNumbers: routes with numbers that the kernel would read as others are refused, also
// those of the result of another IPAM plugin. Table 0 is the main table.
func TestRoutesWithNumbers(t *testing.T) {
	_, native := runners(t)
	defer os.RemoveAll("/var/lib/cni/networks")
	defer removeBridge(t)
	a := sandboxed(t, "numbers")
	dir := t.TempDir()
	require.NoError(t, fakeplugin.Install(dir, "leaser"))
	native.path, native.exec.Lenient = dir, true // the bridge does not know the key of the fake plugin
	for _, kind := range []string{"ptp", "bridge"} {
		conf := object{"cniVersion": "1.0.0", "name": "net", "type": kind, "bridge": "br0"}
		if kind == "ptp" {
			delete(conf, "bridge")
		}
		route := func(key string, value int) object {
			ipam := hostLocal("10.9.0.0/24")
			ipam["routes"] = []object{{"dst": "198.51.100.0/24", key: value}}
			return with(conf, "ipam", ipam)
		}
		for _, key := range []string{"mtu", "advmss", "priority", "table", "scope"} {
			for _, value := range []int{-1, 1 << 32} {
				want := fmt.Sprintf("route 0 to 198.51.100.0/24: %s %d is not between 0 and ", key, value)
				_, err := native.run("ADD", a, route(key, value))
				require.ErrorContains(t, err, want, kind)
				_, err = native.run("DEL", a, route(key, value))
				require.NoError(t, err)

				text := fmt.Sprintf(`{"cniVersion":"1.0.0","ips":[{"address":"10.9.0.7/24","gateway":"10.9.0.1"}],"routes":[{"dst":"198.51.100.0/24",%q:%d}]}`, key, value)
				others := with(with(conf, "ipam", object{"type": "leaser"}), "fake", fakeplugin.Config{
					Log: filepath.Join(dir, "log"), On: map[string]fakeplugin.Behaviour{"ADD": {Result: json.RawMessage(text)}},
				})
				_, err = native.run("ADD", a, others)
				require.ErrorContains(t, err, "result of the IPAM plugin: "+want, kind)
			}
		}
		conf = route("table", 0)
		made := native.add(a, conf)
		require.Contains(t, output(t, "ip", "-n", filepath.Base(a.netns), "route"), "198.51.100.0/24")
		for _, command := range []string{"CHECK", "DEL"} {
			_, err := native.run(command, a, with(conf, "prevResult", made))
			require.NoError(t, err, command)
		}
	}
}

// requireConnection connects from a sandbox to an address of the host.
func requireConnection(t *testing.T, a attachment, to string) {
	t.Helper()
	s, err := sandbox.Open(a.netns)
	require.NoError(t, err)
	defer s.Close()
	l, err := net.Listen("tcp", net.JoinHostPort(to, "0"))
	require.NoError(t, err)
	defer l.Close()
	connect(t, l, s.Do)
}

// TestNoMulticastRoute: a link of the host without IPv6 addresses adds no
// multicast route. Before Linux 6.8, the kernel may add the route after ADD has
// looked for it, so the test makes several attempts.
func TestNoMulticastRoute(t *testing.T) {
	_, native := runners(t)
	native.t = t
	defer os.RemoveAll("/var/lib/cni/networks")
	for i, c := range []struct {
		conf object
		want bool
	}{
		{object{"type": "ptp", "ipam": hostLocal("10.9.0.0/24")}, false},
		{object{"type": "ptp", "ipam": hostLocal("10.9.0.0/24", "fd00:9::/64")}, true},
		{object{"type": "bridge", "bridge": "br0", "isGateway": true, "ipam": hostLocal("10.9.0.0/24", "fd00:9::/64")}, false},
	} {
		a := sandboxed(t, fmt.Sprintf("m-%d", i))
		conf := with(with(c.conf, "name", "net"), "cniVersion", "1.0.0")
		got := native.multicastRoute(a, conf)
		for tries := 1; got != c.want && !c.want && tries < 20; tries++ {
			got = native.multicastRoute(a, conf)
		}
		require.Equal(t, c.want, got, "%v", c.conf)
	}
	removeBridge(t)
}

// multicastRoute reports whether the host's end of a link has a multicast route
// after an ADD, and undoes the ADD.
func (r *runner) multicastRoute(a attachment, conf object) bool {
	r.t.Helper()
	result := r.add(a, conf)
	awaitCarrier(r.t, a, conf)
	veth := result["interfaces"].([]any)[0].(object)["name"].(string)
	if conf["type"] == "bridge" {
		veth = result["interfaces"].([]any)[1].(object)["name"].(string)
	}
	routes := output(r.t, "ip", "-6", "route", "show", "table", "local", "dev", veth)
	_, err := r.run("DEL", a, with(conf, "prevResult", result))
	require.NoError(r.t, err)
	return strings.Contains(routes, "ff00::/8")
}

// TestBridgeThatIsNotPinned: such a bridge has the MAC of its lowest port, and
// none without ports. The result contains the MAC after ADD, and CHECK accepts
// that it changes.
func TestBridgeThatIsNotPinned(t *testing.T) {
	_, native := runners(t)
	native.t = t
	defer os.RemoveAll("/var/lib/cni/networks")
	for _, gateway := range []bool{false, true} {
		t.Run(fmt.Sprintf("gateway %v", gateway), func(t *testing.T) {
			output(t, "ip", "link", "add", "br0", "type", "bridge")
			defer removeBridge(t)
			output(t, "ip", "link", "add", "first", "master", "br0", "type", "veth", "peer", "name", "other")
			output(t, "ip", "link", "del", "first")
			br, err := netlink.LinkByName("br0")
			require.NoError(t, err)
			require.Empty(t, br.Attrs().HardwareAddr)

			a := sandboxed(t, "pinned")
			conf := object{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br0", "isGateway": gateway, "ipam": hostLocal("10.9.0.0/24")}
			result := native.add(a, conf)
			br, err = netlink.LinkByName("br0")
			require.NoError(t, err)
			require.Equal(t, br.Attrs().HardwareAddr.String(), result["interfaces"].([]any)[0].(object)["mac"])

			output(t, "ip", "link", "add", "lowest", "address", "02:00:00:00:00:01", "master", "br0", "type", "veth", "peer", "name", "other")
			defer output(t, "ip", "link", "del", "lowest")
			_, err = native.run("CHECK", a, with(conf, "prevResult", result))
			require.NoError(t, err)
			_, err = native.run("DEL", a, with(conf, "prevResult", result))
			require.NoError(t, err)
		})
	}
}

func setSysctl(t *testing.T, path, value string) {
	t.Helper()
	file := "/proc/sys/" + path
	before, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(value), 0))
	t.Cleanup(func() { require.NoError(t, os.WriteFile(file, before, 0)) })
}

// address returns the first address of a result.
func address(result object) string {
	with, _, _ := strings.Cut(result["ips"].([]any)[0].(object)["address"].(string), "/")
	return with
}

// requireGateway connects from a sandbox to the gateway and from the host to
// the sandbox. Each must see the other's address.
func requireGateway(t *testing.T, a attachment, address string) {
	t.Helper()
	s, err := sandbox.Open(a.netns)
	require.NoError(t, err)
	defer s.Close()
	outside, err := net.Listen("tcp4", ptpGateway+":0")
	require.NoError(t, err)
	defer outside.Close()
	var inside net.Listener
	require.NoError(t, s.Do(func() (err error) {
		inside, err = net.Listen("tcp4", address+":0")
		return err
	}))
	defer inside.Close()
	here := func(f func() error) error { return f() }
	require.Equal(t, address, connect(t, outside, s.Do))
	require.Equal(t, ptpGateway, connect(t, inside, here))
}

// connect returns the address from which a listener is reached.
func connect(t *testing.T, l net.Listener, within func(func() error) error) string {
	t.Helper()
	require.NoError(t, within(func() error {
		c, err := net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	}), "connect to %s", l.Addr())
	c, err := l.Accept()
	require.NoError(t, err)
	defer c.Close()
	return c.RemoteAddr().(*net.TCPAddr).IP.String()
}

// TestLinkLocalOfNewBridge: the host forwards IPv6 packets at once, also if the bridge came up
// before duplicate address detection was switched off, as it can between two first ADDs.
func TestLinkLocalOfNewBridge(t *testing.T) {
	_, native := runners(t)
	native.t = t
	defer os.RemoveAll("/var/lib/cni/networks")
	t.Cleanup(func() { output(t, "ip", "link", "del", "vethdad"); output(t, "ip", "link", "del", "brdad") })
	for _, command := range []string{
		"link add brdad address 02:00:00:00:00:0a type bridge", "link add vethdad type veth peer vethdadpeer", "link set vethdadpeer up",
		"link set vethdad master brdad up", "link set brdad up",
	} {
		output(t, "ip", strings.Fields(command)...)
	}
	tentative := func() string { return output(t, "ip", "-6", "address", "show", "dev", "brdad", "tentative") }
	require.Eventually(t, func() bool { return strings.Contains(tentative(), "fe80::ff:fe00:a/64") }, 10*time.Second, time.Millisecond)
	conf := object{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "brdad", "isGateway": true, "ipam": hostLocal("10.9.0.0/24", "fd09::/64")}
	a := sandboxed(t, "dad")
	made := native.add(a, conf)
	require.Empty(t, tentative())
	require.Contains(t, output(t, "ip", "-6", "address", "show", "dev", "brdad"), "fe80::ff:fe00:a/64")
	_, err := native.run("DEL", a, with(conf, "prevResult", made))
	require.NoError(t, err)
}
