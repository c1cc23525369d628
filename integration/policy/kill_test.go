package policy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/sandbox"
)

// The IDs that make the loop work with policies: it updates an allocation, or sets up and tears
// down one, or takes one from a pool.
const (
	policyUpdateLoop = "policy-update"
	policyLifeLoop   = "policy-life"
	policyPoolLoop   = "policy-pool"
)

// onePort returns a policy that allows one port of UDP in both directions, with a peer that the
// other end's label selects, and outside by its network.
func onePort(port int) *policy.Policy {
	d := func() *policy.Direction {
		services := []policy.Service{{Protocol: "udp", Ports: fmt.Sprint(port)}}
		return &policy.Direction{Default: policy.Deny, Rules: []policy.Rule{
			{Peers: []policy.Peer{{Name: "world"}, {CIDR: testhost.Outside6.Masked()}}, Services: services},
			{Peers: []policy.Peer{{Selector: &policy.Selector{Labels: map[string]string{"app": "peer"}}}}, Services: services},
		}}
	}
	return &policy.Policy{Ingress: d(), Egress: d()}
}

// loop works with policies until it is killed.
func loop() {
	c, id := testbed.Loop(policyPoolLoop)
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	ctx := context.Background()
	a := configurator.Allocation{ID: id, Netns: "/run/netns/" + id, Labels: map[string]string{"app": "subject"}}
	if id == policyPoolLoop {
		a.Netns, a.OwnNetns = "", true
	}
	fmt.Println("ready")
	for i := 0; ; i++ {
		p := onePort(80 + i%2)
		if id == policyUpdateLoop {
			_, err := c.Update(ctx, id, configurator.Change{Policy: p, Labels: map[string]*string{"round": new(fmt.Sprint(i % 3))}})
			check(err)
			continue
		}
		a.Policy = p
		_, err := c.Setup(ctx, a)
		check(err)
		fmt.Println(testbed.Acknowledged)
		check(c.Teardown(ctx, a))
		fmt.Println("removed")
	}
}

// TestPolicyUpdateKilled kills a process that updates a policy in a loop at random moments. The
// kernel applies either the former or the latter policy, to all new connections. Recover finishes
// the update, and ends the connections that it denies.
func TestPolicyUpdateKilled(t *testing.T) {
	testhost.EachElsewhere(t, []string{"ptp", "bridge"}, testPolicyUpdateKilled)
}

func testPolicyUpdateKilled(t *testing.T, main string) {
	h := newHost(t, configurator.EngineNative)
	h.connectOutside()
	h.Network("net", policed(main, testbed.Dual)...)
	a, peer := h.Alloc(policyUpdateLoop), h.Alloc("peer")
	a.Policy, peer.Labels = onePort(80), map[string]string{"app": "peer"}
	addresses := map[string][2]netip.Addr{"outside": {testhost.Outside4.Addr(), testhost.Outside6.Addr()}}
	for _, one := range []configurator.Allocation{a, peer} {
		testbed.SetSysctls(t, one.Netns, testbed.Quick)
		answerAll(t, one.Netns, 80, 81)
		s := h.SetUp(one)
		addresses[one.ID] = [2]netip.Addr{netip.MustParseAddr(s.Address), netip.MustParseAddr(s.AddressIPv6)}
	}
	netns := map[string]string{a.ID: a.Netns, peer.ID: peer.Netns, "outside": h.Outside.Path()}
	// The flows of a round have source ports that no round before had: the connections that an
	// interrupted update denies go on until Recover ends them.
	flows := func(round int) (list []*flow) {
		for _, pair := range [][2]string{{a.ID, "peer"}, {"peer", a.ID}, {a.ID, "outside"}, {"outside", a.ID}} {
			for i, to := range addresses[pair[1]] {
				for _, port := range []uint16{80, 81} {
					f := &flow{name: pair[0], netns: netns[pair[0]], source: addresses[pair[0]][i], protocol: "udp", to: netip.AddrPortFrom(to, port)}
					f.from = uint16(10000 + 16*round + len(list))
					list = append(list, f)
				}
			}
		}
		return list
	}
	rnd := rand.New(rand.NewPCG(testbed.CampaignSeed(t), 0))
	seen := map[uint16]int{}
	most := 60 * time.Millisecond
	rounds := testbed.CampaignSize(40, 200)
	if testing.Short() {
		rounds = 10 // integration/crash kills the operations at chosen points
	}
	for round := 0; round < rounds || len(seen) < 2 && round < 4*rounds; round++ {
		if round%3 == 2 && len(seen) < 2 {
			most = min(2*most, 20*time.Second) // on a slow or busy machine, no update ends in that time
		}
		h.KillLoop(a, 10*time.Millisecond+time.Duration(rnd.Int64N(int64(most))))
		h.requireOnePort(flows(round))
		_, err := h.Recover(h.Context())
		require.NoError(t, err)
		r, err := h.Get(h.Context(), a.ID)
		require.NoError(t, err)
		open := h.requireOnePort(flows(round))
		require.Equal(t, onePort(int(open)), r.Policy, "the recorded policy is that in the kernel")
		is := configurator.Allocation{ID: a.ID, Netns: a.Netns, Policy: r.Policy, Labels: r.Labels}
		require.NoError(t, h.CheckOnly(h.Context(), is))
		seen[open]++
	}
	t.Logf("times at which a port was open at the end: %v", seen)
	require.Len(t, seen, 2)
	h.TearDown(a, peer)
	h.requireNoPolicies()
}

// requireOnePort requires that one policy of onePort is active, for all flows, and returns its port.
func (h *host) requireOnePort(flows []*flow) (open uint16) {
	h.T.Helper()
	for _, f := range flows {
		f.want = true
	}
	h.open(flows)
	defer closeFlows(flows)
	awaitSome(flows, len(flows)/2)
	answers := map[uint16][]string{}
	for _, f := range flows {
		if f.answered {
			open = f.to.Port()
			answers[open] = append(answers[open], f.String())
		}
	}
	require.Len(h.T, answers, 1, "ports that answer: %v", answers)
	require.Len(h.T, answers[open], len(flows)/2, "flows that are answered: %v", answers)
	return open
}

// awaitSome waits until some flows are answered, and a little longer for others.
func awaitSome(flows []*flow, some int) {
	end, resend := time.Now().Add(2*testbed.Timeout), time.Now().Add(graceTime)
	for time.Now().Before(end) {
		answered := 0
		for _, f := range flows {
			if f.answered = f.answered || f.read(); f.answered {
				answered++
			}
		}
		if answered >= some && time.Until(end) > graceTime {
			end = time.Now().Add(graceTime / 5)
		}
		if time.Now().After(resend) {
			resend = time.Now().Add(graceTime)
			for _, f := range flows {
				if !f.answered {
					f.sendAgain()
				}
			}
		}
		time.Sleep(time.Millisecond)
	}
}

// requireNoPolicies requires that the store of policies has none.
func (h *host) requireNoPolicies() {
	h.T.Helper()
	var left []string
	require.NoError(h.T, filepath.WalkDir(filepath.Join(configurator.DefaultStateDir, "policies"), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && d.Name() != "lock" {
			left = append(left, path)
		}
		return err
	}))
	require.Empty(h.T, left)
}

// TestPolicyLifeKilled kills processes that set up and tear down allocations with policies, with
// and without a pool, at random moments. Recover and GC leave nothing.
func TestPolicyLifeKilled(t *testing.T) {
	testhost.EachElsewhere(t, []string{"ptp", "bridge"}, func(t *testing.T, main string) {
		for _, id := range []string{policyLifeLoop, policyPoolLoop} {
			t.Run(id, func(t *testing.T) { testPolicyLifeKilled(t, main, id) })
		}
	})
}

func testPolicyLifeKilled(t *testing.T, main, id string) {
	h := newHost(t, configurator.EngineNative)
	h.Network("net", policed(main, testbed.Dual)...)
	a := h.Alloc(policyLifeLoop)
	a.Policy = onePort(80)
	h.SetUp(a) // creates what the first use of a network leaves
	h.TearDown(a)
	before, err := hostsnap.Take(testbed.SnapshotOptions)
	require.NoError(t, err)
	rnd := rand.New(rand.NewPCG(testbed.CampaignSeed(t), 0))
	removed, rounds := 0, testbed.CampaignSize(15, 200)
	if testing.Short() {
		rounds = 5
	}
	for round := 0; round < rounds || removed == 0 && round < 20*rounds; round++ {
		slower := int64(1 + round/rounds) // until a kill has hit: a machine under load begins late
		h.KillLoop(configurator.Allocation{ID: id}, time.Duration(rnd.Int64N(slower*int64(80*time.Millisecond))))
		report, err := h.Recover(h.Context())
		require.NoError(t, err)
		removed += len(report.Removed)
		collected, err := h.GCScope(h.Context(), configurator.Scope{DestroyNetns: id == policyPoolLoop})
		require.NoError(t, err)
		removed += len(collected.Removed)
		h.requireNoPolicies()
		after, err := hostsnap.Take(testbed.SnapshotOptions)
		require.NoError(t, err)
		require.Empty(t, hostsnap.Diff(before, after))
		if id == policyPoolLoop { // GC may have destroyed it
			continue
		}
		_, err = os.Stat(filepath.Join(sandbox.DefaultDir, id))
		require.NoError(t, err)
	}
	require.Positive(t, removed, "at least one kill hit an operation")
}
