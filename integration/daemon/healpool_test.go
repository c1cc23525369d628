package daemon

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

const poolOfHealing = onlyNotified + "\npool \"net0\" {\n size = 4\n}"

// awaitSlots waits until the pool has so many slots other than those given by their links, which have
// all that their ADD adds at its end: what another program removes before that is no damage.
// The daemon counts slots only from time to time.
func (d *healingHost) awaitSlots(n int, former ...string) {
	d.h.T.Helper()
	d.within("the slots", func() error {
		links := testbed.SlotLinks(d.h.T)
		old := slices.ContainsFunc(links, func(l string) bool { return slices.Contains(former, l) })
		if old || len(links) != n {
			return fmt.Errorf("slots %v, formerly %v", links, former)
		}
		elements, err := testbed.Output("nft", "list", "set", "ip", "allocnet", "masqueraded")
		if made := strings.Count(elements, ":net0/pool-"); err == nil && made < n {
			err = fmt.Errorf("%d of %d slots are complete", made, n)
		}
		return err
	})
}

// requireFromPool checks that an allocation has the network of a slot.
func (d *healingHost) requireFromPool(a configurator.Allocation) {
	d.h.T.Helper()
	r, err := d.client().Get(d.h.T.Context(), a.ID)
	require.NoError(d.h.T, err)
	require.Contains(d.h.T, r.ContainerID, "pool-")
}

// TestHealPool: the daemon discards and replaces the slots that another program has damaged,
// without a Setup that wants one.
func TestHealPool(t *testing.T) {
	for main, list := range map[string][]string{
		"bridge": {"nft flush ruleset", "nft delete table ip6 allocnet", "ip link del VETH", "ip link del br-test", "ip link set VETH nomaster"},
		"ptp":    {"nft flush ruleset", "ip link del VETH", "ip address flush dev VETH"},
	} {
		t.Run(main, func(t *testing.T) {
			d := newHealingHost(t, poolOfHealing, testbed.Chain(main, testbed.Dual, ""))
			for i, line := range list {
				d.awaitSlots(4) // also that in place of the one that was taken
				former := testbed.SlotLinks(t)
				testbed.DamageSlots(t, line)
				d.awaitSlots(4, former...)
				d.awaitHealthy()
				a := configurator.Allocation{
					ID: fmt.Sprint("taken", i), Networks: []string{"net0"}, OwnNetns: true, Wait: true, Ports: []portmap.Port{{Value: 9000 + i, To: 80}},
				}
				_, err := d.client().Setup(t.Context(), a)
				require.NoError(t, err, line)
				d.requireFromPool(a)
				require.NoError(t, d.client().Check(t.Context(), a), line)
				testbed.Serve(t, "/run/netns/"+a.ID, "tcp", 80, a.ID)
				testbed.RequireAnswer(t, d.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 9000+i), a.ID)
				require.NoError(t, d.client().Teardown(t.Context(), a))
			}
		})
	}
}

// TestHealPoolUnderLoad: while other programs keep removing rules and links, allocations are
// set up from a pool at a high rate. Afterwards, every one has all that it needs.
func TestHealPoolUnderLoad(t *testing.T) {
	if os.Getenv("ALLOCNET_POOLS") == "" {
		skip.LeaveTo(t, "make pools")
	}
	for main, list := range map[string][]string{
		"bridge": {"nft flush ruleset", "ip link set br-test down", "nft delete table ip allocnet", "ip address flush dev br-test", "nft flush map ip allocnet host_ports"},
		"ptp":    {"nft flush ruleset", "nft delete table ip6 allocnet", "iptables -F", "nft flush set ip allocnet masqueraded"},
	} {
		t.Run(main, func(t *testing.T) { testHealPoolUnderLoad(t, main, list) })
	}
}

func testHealPoolUnderLoad(t *testing.T, main string, damage []string) {
	d := newHealingHost(t, strings.Replace(poolOfHealing, "size = 4", "size = 16", 1), testbed.Chain(main, testbed.Dual, ""))
	d.awaitSlots(16)
	total := testbed.CampaignSize(60, 1000)
	ctx, stop := context.WithCancel(t.Context())
	var others, setups sync.WaitGroup
	var next, done atomic.Int64
	others.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			_ = testbed.Command("sh", "-c", damage[i%len(damage)]) // what it is to remove may be gone
			from := done.Load()
			for done.Load() < from+5 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
		}
	})
	allocs := make([]configurator.Allocation, total)
	for range 4 {
		setups.Go(func() {
			for i := int(next.Add(1)) - 1; i < total; i = int(next.Add(1)) - 1 {
				a := configurator.Allocation{ID: fmt.Sprint("load", i), Networks: []string{"net0"}, OwnNetns: true, Wait: true, Ports: []portmap.Port{{Value: 10000 + i, To: 80}}}
				if _, err := d.client().Setup(t.Context(), a); err != nil {
					t.Errorf("setup %s: %v", a.ID, err)
				}
				allocs[i] = a
				done.Add(1)
			}
		})
	}
	setups.Wait()
	stop()
	others.Wait()
	d.requireAllHealthy(allocs)
	d.awaitSlots(16)
	for _, a := range allocs {
		require.NoError(t, d.client().Teardown(t.Context(), a))
	}
	d.awaitHealthy()
}

// requireAllHealthy waits until CHECK finds nothing wrong with any allocation, and connects
// to each over both families.
func (d *healingHost) requireAllHealthy(allocs []configurator.Allocation) {
	d.h.T.Helper()
	for i, a := range allocs {
		d.within("CHECK of "+a.ID, func() error { return d.client().Check(d.h.T.Context(), a) })
		testbed.Serve(d.h.T, "/run/netns/"+a.ID, "tcp", 80, a.ID)
		testbed.RequireAnswer(d.h.T, d.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host4, 10000+i), a.ID)
		testbed.RequireAnswer(d.h.T, d.h.Outside.Path(), "tcp", testbed.HostPort(testhost.Host6, 10000+i), a.ID)
	}
}
