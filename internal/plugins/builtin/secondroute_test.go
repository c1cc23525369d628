package builtin_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/sandbox"
)

// second is a container with a server on two networks.
type second struct {
	*runner
	sandbox *sandbox.Sandbox
	at      [2]attachment
	confs   [2]object
	results [2]object
}

// newSecond attaches a container to two networks.
func newSecond(t *testing.T, confs ...object) *second {
	t.Helper()
	x := &second{runner: newRoutedHost(t, map[string]string{"ipv6/conf/default/accept_dad": "0"}), confs: [2]object(confs)}
	t.Cleanup(func() { removeBridge(t) })
	x.t = t
	x.at[0] = sandboxed(t, "twice")
	x.at[1] = x.at[0]
	x.at[1].ifName = "eth1"
	var err error
	x.sandbox, err = sandbox.Open(x.at[0].netns)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, x.sandbox.Close()) })
	require.NoError(t, x.sandbox.Do(func() error {
		l, err := net.Listen("tcp", ":7070")
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	}))
	for i, conf := range x.confs {
		x.results[i] = x.add(x.at[i], conf)
		awaitCarrier(t, x.at[i], conf)
	}
	return x
}

// ip runs ip in the container.
func (x *second) ip(command string) (out string) {
	x.t.Helper()
	require.NoError(x.t, x.sandbox.Do(func() error { out = output(x.t, "ip", strings.Fields(command)...); return nil }))
	return out
}

// rules returns the rules of the container, and the routes in tables of its own.
func (x *second) rules() string {
	x.t.Helper()
	text := x.ip("rule") + x.ip("-6 rule")
	for line := range strings.Lines(x.ip("-4 route show table all") + x.ip("-6 route show table all")) {
		if strings.Contains(line, " table 10") {
			text += line
		}
	}
	return text
}

// table returns the number of the table of the source rules of an interface.
func (x *second) table(ifName string) (number int) {
	x.t.Helper()
	require.NoError(x.t, x.sandbox.Do(func() error {
		link, err := netlink.LinkByName(ifName)
		if err == nil {
			number = rtnl.Fallback(link.Attrs().Index)
		}
		return err
	}))
	return number
}

// sources returns how many source rules the container has.
func (x *second) sources() int {
	x.t.Helper()
	return strings.Count(x.rules(), "30000:")
}

func (x *second) do(command string, i int) error {
	x.t.Helper()
	_, err := x.run(command, x.at[i], withResult(x.t.(*testing.T), x.confs[i], x.results[i]))
	return err
}

// del removes an attachment and what the kernel removes later with it.
func (x *second) del(i int) {
	x.t.Helper()
	require.NoError(x.t, x.do("DEL", i))
}

// requireAnswers connects to all addresses of an attachment from an address of the host to which
// no route but the default ones leads.
func (x *second) requireAnswers(i int) {
	x.t.Helper()
	own := stationOf(x.t.(*testing.T), x.results[i])
	for range 8 {
		for from, to := range map[netip.Addr]netip.Addr{hostAddress4: own.ip4, hostAddress6: own.ip6} {
			d := net.Dialer{Timeout: 2 * time.Second, LocalAddr: &net.TCPAddr{IP: from.AsSlice()}}
			c, err := d.Dial("tcp", netip.AddrPortFrom(to, 7070).String())
			require.NoError(x.t, err, "%s of eth%d", to, i)
			require.NoError(x.t, c.Close())
		}
	}
}

// bridgeOf and ptpOf return networks with a subnet of each family, and a default route of each.
func bridgeOf(name, bridge string, subnet int) object {
	return object{"cniVersion": "1.0.0", "name": name, "type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": true,
		"ipam": hostLocal(fmt.Sprintf("10.%d.0.0/24", subnet), fmt.Sprintf("fd00:%d::/64", subnet))}
}

func ptpOf(name string, subnet int) object {
	return object{"cniVersion": "1.0.0", "name": name, "type": "ptp", "ipMasq": true,
		"ipam": hostLocal(fmt.Sprintf("10.%d.0.0/24", subnet), fmt.Sprintf("fd00:%d::/64", subnet))}
}

// withRoutes returns a network with other routes.
func withRoutes(conf object, routes ...object) object {
	return with(conf, "ipam", with(conf["ipam"].(object), "routes", append([]object{}, routes...)))
}

// TestSecondDefaultRoute: the default routes of the first network stay in use, and the container
// answers from each address over the interface that has it. What the configuration says about
// priorities and tables stays as it is.
func TestSecondDefaultRoute(t *testing.T) {
	explicit := []object{{"dst": "0.0.0.0/0", "priority": 50}, {"dst": "::/0", "priority": 5000}}
	tables := []object{{"dst": "0.0.0.0/0", "table": 100}, {"dst": "::/0", "table": 100}}
	same := []object{{"dst": "192.0.2.0/24"}, {"dst": "2001:db8:1::/64"}}
	for name, test := range map[string]struct {
		first, second object
		used          string // the interface whose default routes are used
		sources       [2]int // the number of source rules after the first ADD, and after both
	}{
		"ptp":                      {ptpOf("net", 9), ptpOf("back", 8), "eth0", [2]int{0, 2}},
		"ptp and bridge":           {ptpOf("net", 9), bridgeOf("back", "br0", 8), "eth0", [2]int{0, 2}},
		"one network":              {bridgeOf("net", "br0", 9), bridgeOf("net", "br0", 9), "eth0", [2]int{0, 2}},
		"priorities of the second": {ptpOf("net", 9), withRoutes(bridgeOf("back", "br0", 8), explicit...), "eth0", [2]int{0, 2}},
		"priorities of the first":  {withRoutes(bridgeOf("net", "br0", 9), explicit...), ptpOf("back", 8), "eth1", [2]int{2, 2}},
		"tables":                   {bridgeOf("net", "br0", 9), withRoutes(ptpOf("back", 8), tables...), "eth0", [2]int{0, 0}},
		"other routes":             {withRoutes(bridgeOf("net", "br0", 9), same...), withRoutes(ptpOf("back", 8), same...), "", [2]int{0, 2}},
		"none of the second":       {bridgeOf("net", "br0", 9), withRoutes(ptpOf("back", 8)), "eth0", [2]int{0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			x := newSecond(t, test.first, test.second)
			x.requireAnswers(0)
			if name != "none of the second" && name != "tables" { // the guard drops these answers, which leave over eth0
				x.requireAnswers(1)
			}
			require.Equal(t, test.sources[1], x.sources(), x.rules())
			if test.used != "" {
				for to, family := range map[netip.Addr]string{hostAddress4: "-4", hostAddress6: "-6"} {
					require.Contains(t, x.ip(family+" route get "+to.String()), " dev "+test.used+" ")
				}
			}
			require.NoError(t, x.do("CHECK", 0))
			require.NoError(t, x.do("CHECK", 1))
			x.del(1)
			require.Equal(t, test.sources[0], x.sources(), x.rules())
			x.requireAnswers(0)
			x.results[1] = x.add(x.at[1], test.second)
			awaitCarrier(t, x.at[1], test.second)
			x.del(0)
			require.Equal(t, test.sources[1]-test.sources[0], x.sources(), x.rules())
			if name != "none of the second" && name != "tables" {
				x.requireAnswers(1)
			}
			x.del(1)
			require.Zero(t, x.sources())
			require.NotContains(t, x.rules(), "table 107")
		})
	}
}

// TestSourceRulesAreRemoved: whatever is known of an attachment, its DEL deletes its source rules,
// and no other ones.
func TestSourceRulesAreRemoved(t *testing.T) {
	for name, del := range map[string]func(x *second) error{
		"with the result":    func(x *second) error { return x.do("DEL", 1) },
		"without the result": func(x *second) error { _, err := x.run("DEL", x.at[1], x.confs[1]); return err },
		"after the link": func(x *second) error {
			output(x.t, "ip", "link", "del", hostEnd(x.results[1]))
			return x.do("DEL", 1)
		},
		"result of an old runtime": func(x *second) error { // it does not know the priorities of routes
			text, err := json.Marshal(x.results[1])
			require.NoError(x.t, err)
			priority := fmt.Sprintf(`,"priority":%d`, x.table("eth1"))
			require.Contains(x.t, string(text), priority)
			var known object
			require.NoError(x.t, json.Unmarshal([]byte(strings.ReplaceAll(string(text), priority, "")), &known))
			g := &guardTest{t: x.t.(*testing.T), native: x.runner}
			g.asDropIn()
			return g.run("DEL", x.at[1], x.confs[1], known)
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := newSecond(t, withRoutes(ptpOf("net", 9), object{"dst": "0.0.0.0/0"}, object{"dst": "::/0", "priority": 5000}), bridgeOf("back", "br0", 8))
			x.ip("rule add from 10.8.0.77 lookup 100")
			require.Equal(t, 2, x.sources(), x.rules()) // one of each
			require.NoError(t, del(x))
			require.Equal(t, 1, x.sources(), x.rules())
			require.Contains(t, x.rules(), "from 10.8.0.77 lookup 100")
			require.NoError(t, x.do("CHECK", 0))
			x.del(0)
			require.Zero(t, x.sources(), x.rules())
		})
	}
}

// TestSourceRulesOfAnother: a DEL whose path leads to the namespace of another container leaves the
// source rules there.
func TestSourceRulesOfAnother(t *testing.T) {
	x := newSecond(t, ptpOf("net", 9), bridgeOf("back", "br0", 8))
	before := x.rules()
	other := sandboxed(t, "other")
	other.ifName = "eth1"
	result := x.add(other, x.confs[1])
	elsewhere := other
	elsewhere.netns = x.at[1].netns
	for _, conf := range []object{x.confs[1], withResult(t, x.confs[1], result)} {
		_, err := x.run("DEL", elsewhere, conf)
		require.NoError(t, err)
		require.Equal(t, before, x.rules())
	}
	x.del(1)
	x.del(0)
}

// TestSourceRulesOfAFailedADD: an ADD that fails after it has made source rules deletes them.
func TestSourceRulesOfAFailedADD(t *testing.T) {
	x := newSecond(t, ptpOf("net", 9), bridgeOf("back", "br0", 8))
	output(t, "ip", "route", "add", "10.6.0.2", "dev", "br0")
	third := x.at[0]
	third.ifName = "eth2"
	before := x.rules()
	for finding, conf := range map[string]object{
		"already has the address": bridgeOf("third", "br0", 7),
		"has another route":       ptpOf("third", 6),
	} {
		_, err := x.run("ADD", third, conf)
		require.ErrorContains(t, err, finding)
		require.Equal(t, before, x.rules())
	}
	x.del(1)
	x.del(0)
}

// TestSourceRulesAreRestored: CHECK finds what is missing of the source rules, and Repair restores it.
// Attachments with priorities of the configuration that have none are those of earlier versions.
func TestSourceRulesAreRestored(t *testing.T) {
	x := newSecond(t, withRoutes(bridgeOf("net", "br0", 9), object{"dst": "0.0.0.0/0", "priority": 50}), ptpOf("back", 8))
	require.Equal(t, 1, x.sources(), x.rules())
	whole := x.rules()
	table := x.table("eth0")
	for finding, damage := range map[string]string{
		fmt.Sprintf("no rule from 10.9.0.2 lookup %d", table):             "rule del pref 30000",
		fmt.Sprintf("table %d of the sandbox has no route to 0.0", table): fmt.Sprintf("route flush table %d", table),
	} {
		x.ip(damage)
		require.ErrorContains(t, x.do("CHECK", 0), finding)
		require.NoError(t, x.do("CHECK", 1))
		require.NoError(t, x.do(sdk.Repair, 0))
		require.NoError(t, x.do("CHECK", 0))
		require.Equal(t, whole, x.rules())
	}
	x.ip("rule del pref 30000")
	x.ip(fmt.Sprintf("route flush table %d", table))
	require.NoError(t, x.do("CHECK", 0))
	require.NoError(t, x.do(sdk.Repair, 0))
	require.Equal(t, whole, x.rules())
	x.del(1)
	x.del(0)
}

// TestSourceRulesBesideSBR: the plugin sbr of the reference moves the routes of the interface to a table
// of its own, with a rule. The container still answers, and CHECK and DEL succeed.
func TestSourceRulesBesideSBR(t *testing.T) {
	x := newSecond(t, ptpOf("net", 9), bridgeOf("back", "br0", 8))
	before := x.sources()
	for family, address := range map[string]string{"-4": "10.8.0.2", "-6": "fd00:8::2"} {
		x.ip(family + " rule add from " + address + " lookup 100")
		for line := range strings.Lines(x.ip(family + " route show dev eth1 table main")) {
			if strings.HasPrefix(line, "fe80") {
				continue
			}
			x.ip(family + " route replace " + strings.TrimSpace(line) + " dev eth1 table 100")
			x.ip(family + " route del " + strings.TrimSpace(line) + " dev eth1 table main")
		}
	}
	x.requireAnswers(0)
	x.requireAnswers(1)
	require.NoError(t, x.do("CHECK", 1))
	for range 2 { // the DEL of sbr, which runs first, deletes all rules from the address
		x.ip("rule del from 10.8.0.2")
	}
	x.ip("-6 rule del from fd00:8::2")
	require.Equal(t, 2, before)
	x.del(1)
	require.Zero(t, x.sources())
	x.del(0)
	require.NoError(t, os.RemoveAll("/var/lib/cni/networks"))
}
