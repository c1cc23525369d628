package configurator

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// watchPrograms puts wrappers before programs that count their runs.
func watchPrograms(tb testing.TB, names ...string) (runs func() int) {
	tb.Helper()
	dir := tb.TempDir()
	log := filepath.Join(dir, "log")
	for _, name := range names {
		program, err := exec.LookPath(name)
		require.NoError(tb, err)
		script := fmt.Sprintf("#!/bin/sh\necho %s >>%s\nexec %s \"$@\"\n", name, log, program)
		require.NoError(tb, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755))
	}
	tb.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() int {
		data, err := os.ReadFile(log)
		if !os.IsNotExist(err) {
			require.NoError(tb, err)
		}
		_ = os.Remove(log)
		return strings.Count(string(data), "\n")
	}
}

// TestRepairLooksOnce: Repair reads what all allocations share once, while each
// CHECK reads it itself.
func TestRepairLooksOnce(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"firewall"}`)
	var allocs []Allocation
	for i := range 4 {
		a := h.alloc(fmt.Sprint("a", i))
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, h.Teardown(context.Background(), a)) })
		allocs = append(allocs, a)
	}
	runs := watchPrograms(t, "iptables", "iptables-restore")
	require.NoError(t, h.Check(t.Context(), allocs[0])) // includes the version of iptables
	require.NotZero(t, runs())
	require.NoError(t, h.Check(t.Context(), allocs[0]))
	once := runs()
	require.NotZero(t, once)
	report, err := h.Repair(t.Context())
	require.NoError(t, err)
	require.Len(t, report.Healthy, 4)
	require.Equal(t, once, runs(), "as one CHECK")

	shut := func() {
		require.NoError(t, exec.Command("iptables", "-D", "FORWARD", "-m", "comment", "--comment", "allocnet", "-j", iptables.AcceptChain).Run())
		runs()
	}
	shut()
	require.ErrorIs(t, h.Check(t.Context(), allocs[0]), ErrUnhealthy)
	report, err = h.Repair(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"a0"}, report.Repaired)
	require.Len(t, report.Healthy, 3)
	shut()
	report, err = h.Repair(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"a0"}, report.Repaired, "nothing is kept from one to the next")
}

// TestRepairWithoutItsProgram: the error names what could not be repaired. A
// missing program does not mean that an allocation was torn down.
func TestRepairWithoutItsProgram(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"firewall"}`)
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Teardown(context.Background(), a)) })
	require.NoError(t, exec.Command("iptables", "-D", "FORWARD", "-m", "comment", "--comment", "allocnet", "-j", iptables.AcceptChain).Run())
	watchPrograms(t, "iptables") // without iptables-restore in the same directory
	report, err := h.Repair(t.Context())
	require.ErrorContains(t, err, "iptables-restore")
	require.Equal(t, []string{"a"}, report.Broken)
}

// atStep is an Observer that calls a function when a step begins.
type atStep struct {
	observed
	name string
	do   func()
}

func (o *atStep) Begin(ctx context.Context, s Step) context.Context {
	if s.Name == o.name {
		o.do()
	}
	return o.observed.Begin(ctx, s)
}

// TestRepairOfWhatIsTornDownMeanwhile: an allocation that is torn down during
// Repair is not reported.
func TestRepairOfWhatIsTornDownMeanwhile(t *testing.T) {
	o := &atStep{name: StepCheck}
	h := newTestHost(t, func(c *Config) { c.Observer = o })
	h.checks = 1
	h.network("net", "1.0.0", adds())
	o.do = func() { require.NoError(t, h.store.Delete("b")) }
	for _, id := range []string{"a", "b"} {
		_, err := h.Setup(t.Context(), h.alloc(id))
		require.NoError(t, err)
	}
	report, err := h.Repair(t.Context())
	require.NoError(t, err)
	require.Equal(t, &RepairReport{Healthy: []string{"a"}, Repaired: []string{}, Broken: []string{}}, report)
}

// TestForeignRouteToAnAddress: CHECK finds another program's route to the address of an allocation on a
// bridge. It stays, and the error says how to delete it.
func TestForeignRouteToAnAddress(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0")
	a := h.alloc("a")
	status, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, exec.Command("ip", "route", "add", "unreachable", status.Address, "metric", "50").Run())
	for range 2 {
		err := h.Check(t.Context(), a)
		require.ErrorIs(t, err, ErrUnhealthy)
		require.ErrorContains(t, err, fmt.Sprintf(`the host has no route to %[1]s over "brtest": a route of another program is in its place, which has the type unreachable; delete it: ip route del unreachable %[1]s`, status.Address))
		report, err := h.Repair(t.Context())
		require.Error(t, err)
		require.Equal(t, []string{"a"}, report.Broken)
	}
	require.NoError(t, exec.Command("ip", "route", "del", "unreachable", status.Address).Run())
	require.NoError(t, exec.Command("ip", "route", "add", status.Address, "dev", "brtest").Run())
	require.NoError(t, h.Check(t.Context(), a), "the way is the same")
	require.NoError(t, h.Teardown(t.Context(), a))
}

// TestBridgeWithSTP: with STP, a bridge forwards through a new port after some seconds. Setup returns after
// that, or says so.
func TestBridgeWithSTP(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"portmap","capabilities":{"portMappings":true}}`)
	require.NoError(t, exec.Command("ip", "link", "add", "brtest", "type", "bridge", "stp_state", "1", "forward_delay", "3000").Run())
	a, b := h.alloc("a"), h.alloc("b")
	var err error
	for deadline := enough(t); deadline < time.Minute; deadline *= 2 { // until one leads to the wait for the bridge
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		_, err = h.Setup(ctx, a)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if strings.Contains(err.Error(), "STP") {
			break
		}
	}
	require.ErrorContains(t, err, `bridge "brtest" uses STP, and does not forward through port`)
	require.ErrorContains(t, err, `which takes 1m0s: shorten it (ip link set dev brtest type bridge forward_delay 200), switch STP off (stp_state 0), or use a longer timeout: context deadline exceeded`)
	require.NoError(t, exec.Command("ip", "link", "set", "brtest", "type", "bridge", "forward_delay", "200").Run())
	for _, alloc := range []Allocation{a, b} { // the second one with a bridge that has a carrier
		status, err := h.Setup(t.Context(), alloc)
		require.NoError(t, err)
		port, err := netlink.LinkByName(names.Owner{Network: "net", ID: alloc.ID, IfName: "eth0", Instance: h.instance}.Veth())
		require.NoError(t, err)
		out, err := exec.Command("bridge", "-d", "link", "show", "dev", port.Attrs().Name).CombinedOutput()
		require.NoError(t, err)
		require.Contains(t, string(out), "state forwarding", status.Address)
	}
	for _, alloc := range []Allocation{a, b} {
		require.NoError(t, h.Teardown(t.Context(), alloc))
	}
}

// TestSetupEnablesIPv6OfTheBridge: an ADD enables IPv6 on the bridge if another program has disabled it.
func TestSetupEnablesIPv6OfTheBridge(t *testing.T) {
	h, leases := nativeHost(t, "1.0.0")
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"brtest","isGateway":true,
		"ipam":{"type":"host-local","dataDir":"`+leases+`","ranges":[[{"subnet":"10.77.0.0/24"}],[{"subnet":"fd00:77::/64"}]]}}]}`)
	require.NoError(t, exec.Command("ip", "link", "add", "brtest", "type", "bridge").Run())
	require.NoError(t, os.WriteFile("/proc/sys/net/ipv6/conf/brtest/disable_ipv6", []byte("1"), 0o600))
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, h.Check(t.Context(), a))
	require.NoError(t, h.Teardown(t.Context(), a))
}

// TestSetupWithoutIPv6OfNewLinks: a host that switches IPv6 off for its links is no obstacle for those of allocations,
// first and second time, in a Setup and in a repair.
func TestSetupWithoutIPv6OfNewLinks(t *testing.T) {
	for name, plugin := range map[string]string{"bridge": `{"type":"bridge","bridge":"brtest","isGateway":true`, "ptp": `{"type":"ptp"`} {
		for _, which := range []string{"default", "all"} {
			t.Run(name+" "+which, func(t *testing.T) {
				h, leases := nativeHost(t, "1.0.0")
				h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[`+plugin+`,"ipam":{"type":"host-local","dataDir":"`+leases+`",
					"ranges":[[{"subnet":"10.77.0.0/24"}],[{"subnet":"fd00:77::/64"}]]}}]}`)
				require.NoError(t, rtnl.SetSysctl("net/ipv6/conf/"+which+"/disable_ipv6", "1"))
				t.Cleanup(func() {
					for _, name := range []string{"all", "default", "lo"} {
						require.NoError(t, rtnl.SetSysctl("net/ipv6/conf/"+name+"/disable_ipv6", "0"))
					}
				})
				for _, id := range []string{"a", "b"} {
					a := h.alloc(id)
					status, err := h.Setup(t.Context(), a)
					require.NoError(t, err)
					require.NoError(t, h.Check(t.Context(), a))
					out, err := exec.Command("ip", "-6", "route", "get", status.AddressIPv6).CombinedOutput()
					require.NoError(t, err, "%s", out)
					if name == "ptp" {
						require.NoError(t, rtnl.SetSysctl("net/ipv6/conf/"+h.linkOf(id).Attrs().Name+"/disable_ipv6", "1"))
						require.Error(t, h.CheckOnly(t.Context(), a))
						_, err = h.Repair(t.Context())
						require.NoError(t, err)
						require.NoError(t, h.CheckOnly(t.Context(), a))
					}
				}
				for _, id := range []string{"a", "b"} {
					require.NoError(t, h.Teardown(t.Context(), Allocation{ID: id}))
				}
			})
		}
	}
}

// TestSetupRestoresTheRoute: a Setup restores a route of the host that another program has deleted.
func TestSetupRestoresTheRoute(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0")
	a, b := h.alloc("a"), h.alloc("b")
	for _, alloc := range []Allocation{a, a, b} {
		c := h.restarted() // which remembers nothing of the bridge
		_, err := c.Setup(t.Context(), alloc)
		require.NoError(t, err)
		require.NoError(t, c.Check(t.Context(), alloc))
		require.NoError(t, exec.Command("ip", "route", "del", "10.77.0.0/24").Run())
		require.ErrorIs(t, c.Check(t.Context(), alloc), ErrUnhealthy)
	}
	for _, alloc := range []Allocation{a, b} {
		require.NoError(t, h.Teardown(t.Context(), alloc))
	}
}

// TestRepairOfLeases: a lost lease comes back, unless another container has got the address.
func TestRepairOfLeases(t *testing.T) {
	for name, plugin := range map[string]string{"bridge": `{"type":"bridge","bridge":"brtest","isGateway":true`, "ptp": `{"type":"ptp"`} {
		t.Run(name, func(t *testing.T) {
			h, leases := nativeHost(t, "1.0.0")
			h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[`+plugin+`,"ipam":{"type":"host-local","dataDir":"`+leases+`",
				"ranges":[[{"subnet":"10.77.0.0/24"}],[{"subnet":"fd00:77::/64"}]]}}]}`)
			a := h.alloc("a")
			before, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			file := filepath.Join(leases, "net", before.Address)
			text, err := os.ReadFile(file)
			require.NoError(t, err)

			require.NoError(t, os.RemoveAll(leases))
			require.ErrorIs(t, h.CheckOnly(t.Context(), a), ErrUnhealthy)
			report, err := h.Repair(t.Context())
			require.NoError(t, err)
			require.Equal(t, []string{"a"}, report.Repaired)
			now, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(text), string(now))
			again, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.Equal(t, found(before), again)

			require.NoError(t, os.WriteFile(file, []byte("other\r\neth0"), 0o600))
			report, err = h.Repair(t.Context())
			require.ErrorContains(t, err, "address "+before.Address+` of network "net": it is leased already`)
			require.Equal(t, []string{"a"}, report.Broken)
			again, err = h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.True(t, again.SetUpAgain)
			require.NotEqual(t, before.Address, again.Address)
			require.NoError(t, h.Teardown(context.Background(), a))
			require.FileExists(t, file, "it is that of another container")
		})
	}
}

// TestRepairOnCheck: with the setting, CHECK restores rules and reports what
// cannot be restored. Without the setting it changes nothing.
func TestRepairOnCheck(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"firewall"}`, `{"type":"portmap","capabilities":{"portMappings":true}}`)
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	status, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	flush := func() { privhost.FlushRuleset(t) }
	flush()
	require.ErrorIs(t, h.Check(t.Context(), a), ErrUnhealthy)
	require.ErrorIs(t, h.Check(t.Context(), a), ErrUnhealthy)

	h.cfg.RepairOnCheck = true
	repairs := h.restarted()
	require.NoError(t, repairs.Check(t.Context(), a))
	require.NoError(t, h.Check(t.Context(), a))
	flush()
	s, err := sandbox.Open(a.Netns)
	require.NoError(t, err)
	require.NoError(t, s.Do(func() error { return exec.Command("ip", "address", "flush", "eth0").Run() }))
	require.NoError(t, s.Close())
	require.NoError(t, repairs.Check(t.Context(), a))
	do(t, "ip route add unreachable "+status.Address)
	require.ErrorIs(t, repairs.Check(t.Context(), a), ErrUnhealthy)
	do(t, "ip route del unreachable "+status.Address)

	// Another namespace, while the allocation's own one exists.
	other := a
	other.Netns = h.alloc("b").Netns
	_, err = repairs.Setup(t.Context(), other)
	require.ErrorIs(t, err, ErrDifferent)
	require.ErrorContains(t, err, "in another network namespace")
	a.Wait = true
	require.NoError(t, repairs.Teardown(t.Context(), a))
	h.requireNoRecords()
}

// TestContextEndsDuringRepair: Setup leaves an allocation in place that it could not repair in
// time. If it is already being set up again, because it cannot be repaired, that is completed.
func TestContextEndsDuringRepair(t *testing.T) {
	flush := func(t *testing.T, _ *testHost) { privhost.FlushRuleset(t) }
	unplug := func(t *testing.T, h *testHost) { require.NoError(t, netlink.LinkDel(h.linkOf("a"))) }
	for name, c := range map[string]struct {
		damage func(t *testing.T, h *testHost)
		step   string
		again  bool // whether Setup sets the allocation up again
	}{
		"before CHECK":  {damage: flush, step: StepCheck},
		"before repair": {damage: flush, step: StepRepair},
		"before DEL":    {damage: unplug, step: StepDel, again: true},
		"before ADD":    {damage: unplug, step: StepAdd, again: true},
	} {
		t.Run(name, func(t *testing.T) {
			o := &atStep{do: func() {}}
			h, _ := nativeHost(t, "1.0.0", `{"type":"firewall"}`, `{"type":"portmap","capabilities":{"portMappings":true}}`)
			h.cfg.Observer = o
			h.Configurator = h.restarted()
			a := h.alloc("a")
			a.Ports = []portmap.Port{{Value: 8080, To: 80}}
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			veth := h.linkOf("a").Attrs().Name
			c.damage(t, h)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			o.name, o.do = c.step, cancel
			s, err := h.Setup(ctx, a)
			require.ErrorIs(t, ctx.Err(), context.Canceled, "the step was reached")
			if c.again {
				require.NoError(t, err)
				require.True(t, s.SetUpAgain)
			} else {
				require.ErrorIs(t, err, context.Canceled)
				requireLink(t, veth)
			}
			r, err := h.Get(t.Context(), "a")
			require.NoError(t, err)
			require.Equal(t, PhaseReady, r.Phase)
			s, err = h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.False(t, s.SetUpAgain)
			require.NoError(t, h.Check(t.Context(), a))
			require.NoError(t, h.Teardown(t.Context(), a))
			h.requireNoRecords()
		})
	}
}

// recordsReadOnly makes records read-only until writable is called, or the test ends.
func (h *testHost) recordsReadOnly() (writable func()) {
	h.t.Helper()
	records := filepath.Join(h.cfg.StateDir, "allocs")
	require.NoError(h.t, unix.Mount(records, records, "", unix.MS_BIND, ""))
	writable = sync.OnceFunc(func() { require.NoError(h.t, unix.Unmount(records, unix.MNT_DETACH)) })
	h.t.Cleanup(writable)
	require.NoError(h.t, unix.Mount("", records, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	return writable
}

// TestSetUpAgainWithoutState: Setup does not remove what it could not record.
func TestSetUpAgainWithoutState(t *testing.T) {
	h, leases := nativeHost(t, "1.0.0")
	a := h.alloc("a")
	before, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	lease := filepath.Join(leases, "net", before.Address)
	require.NoError(t, netlink.LinkDel(h.linkOf("a")))
	writable := h.recordsReadOnly()
	_, err = h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrStateDir)
	require.FileExists(t, lease)
	writable()
	s, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.True(t, s.SetUpAgain)
	require.NoError(t, h.Teardown(t.Context(), a))
}

// TestRepairAfterTheAddressChangedHands: Repair of an allocation whose address another one has
// by now takes nothing of that one.
func TestRepairAfterTheAddressChangedHands(t *testing.T) {
	for name, plugin := range map[string]string{"bridge": `{"type":"bridge","bridge":"brtest","isGateway":true`, "ptp": `{"type":"ptp"`} {
		t.Run(name, func(t *testing.T) {
			h, leases := nativeHost(t, "1.0.0")
			h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[`+plugin+`,"ipMasq":true,"ipam":{"type":"host-local",
				"dataDir":"`+leases+`","subnet":"10.77.0.0/24"}},{"type":"firewall"},{"type":"portmap","capabilities":{"portMappings":true}}]}`)
			a, b := h.alloc("a"), h.alloc("b")
			a.Ports, b.Ports = []portmap.Port{{Value: 8080, To: 80}}, []portmap.Port{{Value: 8081, To: 80}}
			before, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.NoError(t, netlink.LinkDel(h.linkOf("a")))
			require.NoError(t, os.RemoveAll(leases))
			privhost.FlushRuleset(t)
			b.Args = map[string]string{"IP": before.Address}
			after, err := h.Setup(t.Context(), b)
			require.NoError(t, err)
			require.Equal(t, before.Address, after.Address)

			report, err := h.Repair(t.Context())
			require.Error(t, err)
			require.Equal(t, []string{"a"}, report.Broken)
			require.Equal(t, []string{"b"}, report.Healthy)
			require.NoError(t, h.Check(t.Context(), b))
			again, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.NotEqual(t, before.Address, again.Address)
			for _, one := range []Allocation{b, a} {
				require.NoError(t, h.Check(t.Context(), one))
				require.NoError(t, h.Teardown(t.Context(), one))
			}
			h.requireNoRecords()
		})
	}
}

// TestAddressWithoutLeaseAndElements: an ADD does not use an address that an allocation of another
// state directory has, although its lease is elsewhere and its elements are gone.
func TestAddressWithoutLeaseAndElements(t *testing.T) {
	h, leases := nativeHost(t, "1.0.0")
	conflist := func(leases string) string {
		return `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"ptp","ipMasq":true,"ipam":{"type":"host-local","dataDir":"` + leases + `",
			"ranges":[[{"subnet":"10.77.0.0/24"}],[{"subnet":"fd00:77::/64"}]]}}]}`
	}
	h.file("net.conflist", conflist(leases))
	before, err := h.Setup(t.Context(), h.alloc("a"))
	require.NoError(t, err)
	privhost.FlushRuleset(t)
	cfg := h.cfg
	cfg.Network, cfg.StateDir, cfg.Retry.Delay, cfg.Retry.Jitter = "", t.TempDir(), -1, -1
	other := newConfigurator(t, cfg)
	h.file("net.conflist", conflist(leases+"-other"))
	b := h.alloc("b")
	after, err := other.Setup(t.Context(), b)
	require.NoError(t, err)
	require.NotEqual(t, before.Address, after.Address)
	require.NotEqual(t, before.AddressIPv6, after.AddressIPv6)
	report, err := h.Repair(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, report.Repaired)
	require.NoError(t, other.Check(t.Context(), b))
	require.NoError(t, other.Teardown(t.Context(), b))
	require.NoError(t, other.Close())
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a"}))
}

// TestRepairWithoutCheck: what a flush has removed of a network without CHECK is restored, also if no
// CHECK finds it.
func TestRepairWithoutCheck(t *testing.T) {
	for name, edit := range map[string]func(string) string{
		"version":  func(text string) string { return strings.Replace(text, `"1.0.0"`, `"0.3.1"`, 1) },
		"disabled": func(text string) string { return strings.Replace(text, `"name"`, `"disableCheck":true,"name"`, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := nativeHost(t, "1.0.0", `{"type":"firewall"}`, `{"type":"portmap","capabilities":{"portMappings":true}}`)
			h.cfg.RepairOnCheck = true
			h.file("net.conflist", edit(h.read("net.conflist")))
			a := h.alloc("a")
			a.Ports = []portmap.Port{tcpPort(8080, 80)}
			status, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			for operation, repair := range map[string]func(){
				"Repair": func() {
					report, err := h.Repair(t.Context())
					require.NoError(t, err)
					require.Equal(t, &RepairReport{Healthy: []string{}, Repaired: []string{"a"}, Broken: []string{}}, report)
					report, err = h.Repair(t.Context())
					require.NoError(t, err)
					require.Equal(t, &RepairReport{Healthy: []string{"a"}, Repaired: []string{}, Broken: []string{}}, report)
				},
				"CheckAndRepair": func() {
					repaired, err := h.CheckAndRepair(t.Context(), "a")
					require.NoError(t, err)
					require.True(t, repaired)
					repaired, err = h.CheckAndRepair(t.Context(), "a")
					require.NoError(t, err)
					require.False(t, repaired)
				},
				"Check": func() { require.NoError(t, h.Check(t.Context(), a)) },
				"Setup": func() {
					_, err := h.Setup(t.Context(), a)
					require.NoError(t, err)
				},
			} {
				privhost.FlushRuleset(t)
				if name == "disabled" { // native plugins check networks of 0.3.1 themselves
					require.Equal(t, map[string]error{"a": nil}, h.CheckAll(t.Context(), []string{"a"}), operation)
				}
				repair()
				requirePublished(t, status, 8080, 80)
			}
			require.NoError(t, h.Teardown(t.Context(), a))
		})
	}
}
