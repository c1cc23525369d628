package daemon

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
)

// awaitUnhealthy waits until the daemon counts one unhealthy allocation.
func (d *healingHost) awaitUnhealthy() {
	d.h.T.Helper()
	d.within("the metric", func() error {
		if n := d.metric("unhealthy_allocations"); n != 1 {
			return fmt.Errorf("%v are unhealthy", n)
		}
		return nil
	})
}

// requireReported requires that check and repair name the cause and the remedy of damage that they
// cannot restore.
func (d *healingHost) requireReported(cause, remedy string) {
	d.h.T.Helper()
	id := d.allocs[0].ID
	check := d.allocnet("check", id)
	require.NotZero(d.h.T, check.exit)
	require.Contains(d.h.T, check.err, cause)
	require.Contains(d.h.T, check.err, remedy)
	require.Contains(d.h.T, check.err, "hint: run the command that the error names")
	repair := d.allocnet("repair")
	require.NotZero(d.h.T, repair.exit)
	require.Contains(d.h.T, repair.out, cause)
	require.Contains(d.h.T, repair.out, remedy)
	require.Contains(d.h.T, repair.err, "hint: run the command that the error names")
}

// TestHealForeignRoute: a route of another program that has replaced one to an allocation stays, and
// is reported. When it is deleted, the daemon restores its own at once.
func TestHealForeignRoute(t *testing.T) {
	for name, test := range map[string]struct {
		plugins              []map[string]any
		replace, named, away string
	}{
		"ptp":    {testbed.Chain("ptp", testbed.Dual, ""), "ip route replace 10.99.0.2 dev lo", `which leads to "lo"`, "ip route del 10.99.0.2 dev lo"},
		"ptp6":   {testbed.Chain("ptp", testbed.Dual, ""), "ip -6 route replace ADDR6 dev lo metric 1024", `which leads to "lo"`, "ip -6 route del ADDR6 dev lo"},
		"bridge": {testbed.Chain("bridge", testbed.V4Only, ""), "ip route replace 10.99.0.0/24 dev lo", `which leads to "lo"`, "ip route del 10.99.0.0/24 dev lo"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newHealingHost(t, onlyNotified, test.plugins)
			r, err := d.client().Get(t.Context(), "a0")
			require.NoError(t, err)
			with := strings.NewReplacer("ADDR6", r.Status.AddressIPv6)
			testbed.Shell(t, with.Replace(test.replace))
			d.awaitUnhealthy()
			d.requireReported(test.named, with.Replace(test.away))
			testbed.Shell(t, with.Replace(test.away))
			// Whether the repair of the notification or another try of the failed one restores the
			// route depends on which comes first.
			d.awaitHealthy()
			d.within("the metric", func() error {
				if d.metric("unhealthy_allocations") != 0 {
					return errors.New("unhealthy")
				}
				return nil
			})
		})
	}
}

// TestHealSmallMTU: with a small MTU the kernel disables IPv6. The daemon restores that of a link that a Setup has made.
func TestHealSmallMTU(t *testing.T) {
	for _, plugin := range []string{"bridge", "ptp"} {
		t.Run(plugin, func(t *testing.T) {
			if bridge, err := netlink.LinkByName("br-test"); err == nil { // a former test's is the host's
				require.NoError(t, netlink.LinkDel(bridge))
			}
			d := newHealingHost(t, onlyNotified, testbed.Chain(plugin, testbed.Dual, ""))
			link, answers := d.veth(0), d.overIPv6()
			if plugin == "bridge" {
				link = "br-test"
			}
			d.within("IPv6", answers)
			heals := d.heals()
			testbed.Shell(t, "ip link set "+link+" mtu 1200")
			d.awaitHeal(heals, func(h *client.Heal) bool { return h.Restored > 0 })
			d.awaitHealthy()
			d.within("IPv6", answers)
		})
	}
}

// overIPv6 returns a function that connects to the allocation over IPv6.
func (d *healingHost) overIPv6() func() error {
	d.h.T.Helper()
	r, err := d.client().Get(d.h.T.Context(), "a0")
	require.NoError(d.h.T, err)
	return func() error {
		_, err := testbed.Ask(testbed.Silence, "", "tcp", "["+r.Status.AddressIPv6+"]:80")
		return err
	}
}

// TestHealSmallMTUOfTheHost: that of a bridge of the host is reported, IPv4 is restored, and IPv6 when the MTU is large
// again.
func TestHealSmallMTUOfTheHost(t *testing.T) {
	h := newHost(t, testbed.Native.Engine)
	testbed.Shell(t, "ip link add br-test type bridge; ip link set br-test up")
	d := startHealing(t, h, onlyNotified, testbed.Chain("bridge", testbed.Dual, ""))
	const link = "br-test"
	answers := d.overIPv6()
	d.within("IPv6", answers)
	heals := d.heals()
	testbed.Shell(t, "ip link set "+link+" mtu 1200")
	d.awaitUnhealthy()
	cause, remedy := fmt.Sprintf("the MTU is too small for IPv6: that of %q is 1200, and the kernel disables IPv6 below 1280 (RFC 8200)", link), "ip link set dev "+link+" mtu 1500"
	d.requireReported(cause, remedy)
	testbed.Shell(t, "ip -4 address flush dev "+link)
	d.within("the IPv4 address", func() error { // a CHECK may restore it before the notification
		return testbed.Command("sh", "-c", "ip -4 address show dev "+link+" | grep inet")
	})
	a := d.h.Alloc("new")
	a.Networks = []string{"net0"}
	_, err := d.client().Setup(t.Context(), a)
	require.ErrorContains(t, err, cause)
	require.ErrorContains(t, err, remedy)
	require.ErrorIs(t, d.client().Check(t.Context(), a), configurator.ErrNotFound)
	testbed.Shell(t, remedy)
	d.awaitHealthy()
	d.within("IPv6", answers)
	// A repair of the IPv4 address that has not ended may have restored IPv6 as well.
	byItself := func() bool {
		return d.hasHealed(heals, func(h *client.Heal) bool {
			return h.Restored == 1 && strings.Contains(h.Change, fmt.Sprintf("IPv6 is enabled again on link %q", link))
		})
	}
	for began := time.Now(); !byItself(); {
		require.Less(t, time.Since(began), time.Minute)
		testbed.Shell(t, "ip link set "+link+" mtu 1200")
		d.awaitUnhealthy()
		testbed.Shell(t, remedy)
		d.awaitHealthy()
		d.within("IPv6", answers)
	}
}
