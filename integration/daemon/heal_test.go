package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/testing/firewalldtest"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// healingHost is a host with a daemon and published allocations, which repairs only what
// it is notified of.
type healingHost struct {
	*daemonProcess
	allocs []configurator.Allocation
}

const onlyNotified = "repair_on_check = false\nheal {\n check_interval = \"0s\"\n}"

// newHealingHost sets up one allocation in each network, with the host ports from 8080 on.
func newHealingHost(t *testing.T, settings string, networks ...[]map[string]any) *healingHost {
	t.Helper()
	return startHealing(t, newHost(t, testbed.Native.Engine), settings, networks...)
}

func startHealing(t *testing.T, h *host, settings string, networks ...[]map[string]any) *healingHost {
	t.Helper()
	for i, plugins := range networks {
		h.Network(fmt.Sprint("net", i), plugins...)
	}
	d := &healingHost{daemonProcess: h.startDaemon(settings)}
	if !strings.Contains(settings, "enabled = false") {
		d.awaitFirstComparison()
	}
	for i := range networks {
		a := h.Alloc(fmt.Sprint("a", i))
		a.Networks, a.Ports = []string{fmt.Sprint("net", i)}, []portmap.Port{{Value: 8080 + i, To: 80}}
		_, err := d.client().Setup(t.Context(), a)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.client().Teardown(context.Background(), a)) })
		testbed.Serve(t, a.Netns, "tcp", 80, a.ID)
		d.allocs = append(d.allocs, a)
	}
	d.awaitHealthy()
	return d
}

// awaitFirstComparison waits until the daemon listens to the kernel and has compared what it missed before that:
// the comparison restores what a test has damaged meanwhile. One with another cause can be earlier.
func (d *healingHost) awaitFirstComparison() {
	d.h.T.Helper()
	d.within("the first comparison", func() error {
		if d.metric(`heal_comparisons_total{cause="lost"}`) == 0 {
			return errors.New("none so far")
		}
		return nil
	})
}

// within polls until a condition holds. Its time is long, because the machine may be
// busy. It polls for half of the time at most: a CHECK keeps the daemon from a repair.
func (d *healingHost) within(what string, holds func() error) {
	d.h.T.Helper()
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		began := time.Now()
		if err = holds(); err == nil {
			return
		}
		time.Sleep(max(20*time.Millisecond, time.Since(began)))
	}
	require.NoError(d.h.T, err, what)
}

// awaitHealthy waits until every allocation answers from outside and CHECK finds nothing.
func (d *healingHost) awaitHealthy() {
	d.h.T.Helper()
	for i, a := range d.allocs {
		d.within("a connection from outside", func() error {
			answer, err := testbed.Ask(testbed.Silence, d.h.Outside.Path(), "tcp", testbed.At(testhost.Host4.Addr(), 8080+i))
			if err == nil && !strings.HasPrefix(answer, a.ID+" ") {
				err = fmt.Errorf("got %q", answer)
			}
			return err
		})
		d.within("CHECK", func() error { return d.client().Check(d.h.T.Context(), a) })
	}
}

// veth returns the name of the host's end of an allocation's veth.
func (d *healingHost) veth(i int) string {
	return names.Owner{Network: d.allocs[i].Networks[0], ID: d.allocs[i].ID, IfName: "eth0"}.Veth()
}

// metric returns the values of the metrics whose name and labels begin with a text, added up.
func (d *healingHost) metric(prefix string) (sum float64) {
	d.h.T.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", configurator.DefaultStateDir+"/allocnetd.sock")
	}}}
	response, err := c.Get("http://allocnetd/metrics")
	require.NoError(d.h.T, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(d.h.T, err)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "allocnet_"+prefix) {
			var one float64
			_, err := fmt.Sscan(line[strings.LastIndex(line, " "):], &one)
			require.NoError(d.h.T, err)
			sum += one
		}
	}
	return sum
}

// heals returns the repairs that the daemon publishes from now on.
func (d *healingHost) heals() <-chan *client.Heal {
	d.h.T.Helper()
	heals := make(chan *client.Heal, 1000)
	began := make(chan struct{})
	go func() {
		defer close(heals)
		started := false
		for e, err := range d.client().Events(d.h.T.Context(), 1) { // all that are kept
			if err != nil {
				return
			}
			if !started {
				started = true
				close(began)
			}
			if h, ok := e.Data.(*client.Heal); ok {
				heals <- h
			}
		}
	}()
	<-began
	return heals
}

// awaitHeal waits for a repair of which a condition holds.
func (d *healingHost) awaitHeal(heals <-chan *client.Heal, is func(*client.Heal) bool) {
	d.h.T.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case h, ok := <-heals:
			require.True(d.h.T, ok, "the events have ended")
			if is(h) {
				return
			}
		case <-deadline:
			require.Fail(d.h.T, "no such event")
		}
	}
}

// hasHealed reports whether a condition holds of one of the repairs so far.
func (d *healingHost) hasHealed(heals <-chan *client.Heal, is func(*client.Heal) bool) bool {
	d.h.T.Helper()
	for {
		select {
		case h, ok := <-heals:
			require.True(d.h.T, ok, "the events have ended")
			if is(h) {
				return true
			}
		default:
			return false
		}
	}
}

// TestHeal: allocations are reachable again after whatever another program has removed,
// without anybody asking for it.
func TestHeal(t *testing.T) {
	announcing := func(plugins []map[string]any, subnets bool) []map[string]any {
		return append(plugins, map[string]any{"type": "routes", "table": 100, "subnets": subnets})
	}
	type damages []struct{ name, damage string }
	// Each group has a host of its own, because allocnetd waits longer each time before it
	// repairs a table that is damaged again and again: see TestHealInsistingTool.
	for _, group := range []damages{{
		{"flush of the ruleset", "nft flush ruleset"},
		{"a table", "nft delete table ip allocnet"},
		{"the guard", "nft delete table ip allocnet_guard"},
		{"the guard of ports", "nft delete table bridge allocnet"},
	}, {
		{"a chain", "nft delete chain ip allocnet postrouting"},
		{"the rules of a chain", "nft flush chain ip allocnet host_ports_dnat"},
		{"a rule that drops", "nft insert rule ip allocnet forward drop"},
	}, {
		{"the elements of a map", "nft flush map ip allocnet host_ports"},
		{"an element", "nft delete element ip allocnet host_ports '{ tcp . 8081 }'"},
		{"the MACs of ports", "nft flush set bridge allocnet port_macs"},
	}, {
		{"the address of a bridge", "ip address flush dev br-test"},
		{"a bridge", "ip link del br-test"},
		{"a bridge that is down", "ip link set br-test down"},
		{"a port without its bridge", "ip link set VETH0 nomaster"},
		{"the route to a network", "ip route del 10.99.0.0/24"},
		{"the route of ptp", "ip route flush dev VETH1"},
		{"the announced address", "ip route del 10.99.0.2 table 100"},
		{"the announced network", "ip route del unreachable 10.98.0.0/24 table 100"},
		{"all announced routes", "ip route flush table 100"},
		{"the address of ptp", "ip address flush dev VETH1"},
		{"forwarding", "sysctl -qw net.ipv4.ip_forward=0"},
		{"forwarding of a link", "sysctl -qw net.ipv4.conf.VETH1.forwarding=0"},
		{"iptables-restore", `printf '*filter\n:FORWARD DROP\nCOMMIT\n' | iptables-restore`},
	}} {
		t.Run(group[0].name, func(t *testing.T) {
			d := newHealingHost(t, onlyNotified, announcing(testbed.Chain("bridge", testbed.V4Only, ""), false), announcing(testbed.Chain("ptp", testbed.Families{V4: "10.98.0.0/24"}, ""), true))
			for _, test := range group {
				t.Run(test.name, func(t *testing.T) {
					heals := d.heals()
					testbed.Shell(t, strings.NewReplacer("VETH0", d.veth(0), "VETH1", d.veth(1)).Replace(test.damage))
					d.awaitHeal(heals, func(h *client.Heal) bool { return h.Restored > 0 })
					d.awaitHealthy()
				})
			}
			require.Zero(t, d.metric("unhealthy_allocations"))
			require.Positive(t, d.metric("heal_restored_allocations_total"))
			testbed.Shell(t, "iptables -P FORWARD ACCEPT")
		})
	}
}

// TestHealOff: with the setting off, nothing is repaired.
func TestHealOff(t *testing.T) {
	d := newHealingHost(t, strings.Replace(onlyNotified, "heal {", "heal {\n enabled = false", 1), testbed.Chain("bridge", testbed.V4Only, ""))
	privhost.FlushRuleset(t)
	testbed.RequireSilence(t, d.h.Outside.Path(), "tcp", testbed.At(testhost.Host4.Addr(), 8080))
	require.ErrorIs(t, d.client().Check(t.Context(), d.allocs[0]), configurator.ErrUnhealthy)
	report, err := d.client().Repair(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"a0"}, report.Repaired)
	d.awaitHealthy()
}

// TestHealDrift: the comparison in the background finds what is not notified.
func TestHealDrift(t *testing.T) {
	d := newHealingHost(t, "repair_on_check = false\nheal {\n enabled = false\n check_interval = \"1s\"\n}", testbed.Chain("bridge", testbed.V4Only, ""))
	for _, damage := range []func(){
		func() { privhost.FlushRuleset(t) },
		func() { testbed.Shell(t, "ip link set "+d.veth(0)+" mtu 1400") },
		func() { testbed.Shell(t, "ip -n a0 link set eth0 mtu 1400") },
	} {
		heals := d.heals()
		damage()
		d.awaitHeal(heals, func(h *client.Heal) bool { return h.Cause == "drift" && h.Restored == 1 })
		d.awaitHealthy()
	}
}

// TestHealOtherBackends: rules in the tables of iptables, and those of the reference
// plugins' layout, are restored one allocation after the other.
func TestHealOtherBackends(t *testing.T) {
	d := newHealingHost(t, onlyNotified, testbed.Chain("bridge", testbed.V4Only, "iptables"))
	testbed.Shell(t, `printf '*filter\nCOMMIT\n*nat\nCOMMIT\n' | iptables-restore`)
	d.awaitHealthy()
}

// TestHealFirewalld: a reload of firewalld drops the sources of its zones.
func TestHealFirewalld(t *testing.T) {
	h := newHost(t, testbed.Native.Engine)
	testbed.SetSysctls(t, "", testbed.Quick)
	firewall := firewalldtest.StartBus(t).Start("nftables")
	d := startHealing(t, h, onlyNotified, testbed.Chain("bridge", testbed.V4Only, ""))
	before := firewall.Sources("trusted")
	require.NotEmpty(t, before)
	firewall.Reload()
	d.within("the sources of the zone", func() error {
		if got := firewall.Sources("trusted"); len(got) != len(before) {
			return fmt.Errorf("%v instead of %v", got, before)
		}
		return nil
	})
	d.awaitHealthy()
}

// TestHealReportsWhatIsLost: a deleted veth cannot be restored. The allocation counts as
// unhealthy until it is torn down.
func TestHealReportsWhatIsLost(t *testing.T) {
	d := newHealingHost(t, onlyNotified, testbed.Chain("bridge", testbed.V4Only, ""))
	heals := d.heals()
	testbed.Shell(t, "ip link del "+d.veth(0))
	d.awaitHeal(heals, func(h *client.Heal) bool { return h.Unhealthy == "a0" && h.Error != "" })
	require.EqualValues(t, 1, d.metric("unhealthy_allocations"))
	require.NoError(t, d.client().Teardown(t.Context(), d.allocs[0]))
	d.within("the metric", func() error {
		if n := d.metric("unhealthy_allocations"); n != 0 {
			return fmt.Errorf("%v are unhealthy", n)
		}
		return nil
	})
}

// TestHealInsistingTool: the daemon repairs less often what another program keeps
// removing, and names that program. When the program has stopped, it repairs.
func TestHealInsistingTool(t *testing.T) {
	d := newHealingHost(t, onlyNotified, testbed.Chain("bridge", testbed.V4Only, ""))
	heals := d.heals()
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() {
		for ctx.Err() == nil {
			err := awaitTable(ctx)
			if err == nil {
				err = testbed.Command("nft", "flush", "ruleset")
			}
			if err != nil {
				stopped <- err
				return
			}
		}
		stopped <- nil
	}()
	d.awaitHeal(heals, func(h *client.Heal) bool { return h.BackOff > 1 && strings.Contains(h.Change, `by "nft" (PID `) })
	stop()
	require.NoError(t, <-stopped)
	require.GreaterOrEqual(t, d.metric("heal_backoffs_total"), 2.0)
	require.Contains(t, d.log(), "another program keeps removing")
	d.awaitHealthy()
}

// awaitTable waits until the host has allocnet's table, or the context ends.
func awaitTable(ctx context.Context) error {
	c, err := nftables.New()
	for err == nil {
		var tables []*nftables.Table
		tables, err = c.ListTablesOfFamily(nftables.TableFamilyIPv4)
		if err != nil || slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == "allocnet" }) {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
	return err
}

// TestHealLostNotifications: if notifications do not fit into the buffer, everything is
// compared.
func TestHealLostNotifications(t *testing.T) {
	d := newHealingHost(t, strings.Replace(onlyNotified, "heal {", "heal {\n receive_buffer = \"4KiB\"", 1), testbed.Chain("bridge", testbed.V4Only, ""))
	before := d.metric(`heal_comparisons_total{cause="lost"}`)
	for range 20 { // the daemon may read as fast as the kernel writes
		testbed.Shell(t, `{ for i in $(seq 500); do echo add table ip x$i; echo delete table ip x$i; done; echo delete table ip allocnet; } | nft -f -`)
		d.awaitHealthy()
		if d.metric(`heal_comparisons_total{cause="lost"}`) > before {
			return
		}
	}
	require.Fail(t, "no notification was lost")
}

// TestHealIgnoresOrdinaryWork: Setups and Teardowns lead to no comparison, although they
// remove links, addresses, routes and elements.
func TestHealIgnoresOrdinaryWork(t *testing.T) {
	d := newHealingHost(t, onlyNotified, append(testbed.Chain("bridge", testbed.Dual, ""), map[string]any{"type": "routes", "table": 100}),
		append(testbed.Chain("ptp", testbed.Families{V4: "10.98.0.0/24", V6: "fd00:98::/64"}, ""), map[string]any{"type": "routes", "table": 100}))
	count := func(cause string) float64 {
		return d.metric(fmt.Sprintf("heal_comparisons_total{cause=%q}", cause))
	}
	causes := []string{"link", "address", "route", "firewall"}
	before := map[string]float64{}
	for _, c := range append(causes, "rules") {
		before[c] = count(c)
	}
	for i := range 10 {
		for _, network := range []string{"net0", "net1"} {
			a := d.h.Alloc(fmt.Sprint("ordinary-", network, i))
			a.Networks, a.Ports = []string{network}, []portmap.Port{{Value: 9000, To: 80}}
			_, err := d.client().Setup(t.Context(), a)
			require.NoError(t, err)
			require.NoError(t, d.client().Teardown(t.Context(), a))
			d.within("the removal in the background", func() error {
				if _, err := d.client().Get(t.Context(), a.ID); !errors.Is(err, configurator.ErrNotFound) {
					return fmt.Errorf("record of %s: %v", a.ID, err)
				}
				return nil
			})
		}
	}
	heals := d.heals()
	testbed.Shell(t, "nft delete table ip allocnet; ip address flush dev br-test") // what was before has been noticed
	d.awaitHeal(heals, func(h *client.Heal) bool { return strings.Contains(h.Change, "deletion of table") })
	d.awaitHealthy()
	d.within("the address", func() error {
		if count("address") == before["address"] {
			return errors.New("not noticed")
		}
		return nil
	})
	require.LessOrEqual(t, count("rules"), before["rules"]+1)
	for _, c := range causes {
		if c != "address" && c != "route" { // the address's own route
			require.Equal(t, before[c], count(c), c)
		}
	}
}

// TestGuardIsHeld: the daemon holds the guard for allocations that others have set up, and for those of
// earlier runs from the moment at which it serves, whether it repairs at its start or not.
func TestGuardIsHeld(t *testing.T) {
	for name, settings := range map[string]string{"repair": "", "report": "reconcile {\n mode = \"report\"\n}"} {
		t.Run(name, func(t *testing.T) { testGuardIsHeld(t, settings) })
	}
}

func testGuardIsHeld(t *testing.T, settings string) {
	h := newHost(t, testbed.Native.Engine)
	main := map[string]any{"type": "policy", "capabilities": map[string]any{"policy": true}}
	h.Network("bridged", append(testbed.Chain("bridge", testbed.Dual, ""), main)...)
	h.Network("routed", append(testbed.Chain("ptp", testbed.Dual, ""), main)...)
	d := h.startDaemon(settings)
	missing := func() error {
		out, err := exec.Command("nft", "list", "tables").Output()
		for _, family := range []string{"ip", "ip6", "bridge"} {
			if table := "table " + family + " " + names.HeldGuardTable + "\n"; err == nil && !strings.Contains(string(out), table) {
				err = fmt.Errorf("no %s in %s", table, out)
			}
		}
		return err
	}
	require.Error(t, missing())
	file := filepath.Join(d.dir, "policy.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"presets":["isolated"]}`), 0o600))
	for _, network := range []string{"bridged", "routed"} {
		got := d.allocnet("setup", network, "--create", "--network", network, "--policy", file, "--no-daemon", "--conf-dir", h.ConfDir, "--plugin-dir", testbed.PluginDir)
		require.Zero(t, got.exit, got.err)
		t.Cleanup(func() {
			require.NoError(t, h.Teardown(context.Background(), configurator.Allocation{ID: network, OwnNetns: true, Wait: true}))
		})
	}
	require.Eventually(t, func() bool { return missing() == nil }, 10*time.Second, 10*time.Millisecond, "%v", missing())
	d.kill()
	require.Eventually(t, func() bool { return missing() != nil }, time.Minute, 10*time.Millisecond)
	d.begin()
	require.Eventually(t, func() bool { _, err := d.client().List(t.Context()); return err == nil }, time.Minute, time.Millisecond)
	require.NoError(t, missing(), "the daemon serves")
}
