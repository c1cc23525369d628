package crash

import (
	"fmt"
	"slices"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// The operations that change the limits of the subject: one changes the direction that has a
// limit, the other one changes a rate, adds a limit, and changes host port and label as well.
const (
	limit     = "limit"
	limitMore = "limit and publish"
)

var (
	sent     = configurator.Bandwidth{EgressRate: 80_000_000, EgressBurst: 8_000_000}
	received = configurator.Bandwidth{IngressRate: 160_000_000, IngressBurst: 8_000_000}
	both     = configurator.Bandwidth{IngressRate: 240_000_000, IngressBurst: 8_000_000, EgressRate: 320_000_000, EgressBurst: 8_000_000}
)

// limited sets up the subject with limits.
func limited(limits configurator.Bandwidth) func(h *host) {
	return func(h *host) {
		h.t.Helper()
		h.a.Bandwidth = &limits
		h.mustSetUp(h.a)
		h.requireReachable(h.a)
		require.Equal(h.t, ratesWith(limits), h.rates())
	}
}

// newLimits is the change of an allocation that limited has set up.
func newLimits(a configurator.Allocation) configurator.Change {
	if *a.Bandwidth == sent {
		return configurator.Change{Bandwidth: &received}
	}
	c := change(a)
	c.Bandwidth = &both
	return c
}

// requireEitherLimits requires, after an update of limits, that they can be finished to those
// from before or those from after it, together with host port and label. Every other time, it
// does so, and reverses the update; the other times, it tears the allocation down as it is.
func (h *host) requireEitherLimits() {
	h.t.Helper()
	h.updates++
	if h.updates%2 == 0 {
		require.NoError(h.t, h.Teardown(h.ctx(), h.a))
		_, err := h.Recover(h.ctx()) // a reservation may be stale until then
		require.NoError(h.t, err)
		return
	}
	_, err := h.Recover(h.ctx())
	require.NoError(h.t, err)
	if !h.requireLimits() {
		return
	}
	back := configurator.Change{Bandwidth: h.a.Bandwidth}
	if c := newLimits(h.a); len(c.Publish) > 0 {
		back.Unpublish, back.Publish, back.Labels = c.Publish, h.a.Ports, map[string]*string{"updated": nil}
		back.Policy = h.a.Policy
	}
	_, err = h.Update(h.ctx(), h.a.ID, back)
	require.NoError(h.t, err)
	require.False(h.t, h.requireLimits())
}

// requireLimits requires that the subject has everything from before its update of limits or
// everything from after it. It reports whether it has the latter.
func (h *host) requireLimits() (updated bool) {
	h.t.Helper()
	require.NoError(h.t, h.CheckOnly(h.ctx(), h.a))
	r, err := h.Get(h.ctx(), h.a.ID)
	require.NoError(h.t, err)
	require.NotNil(h.t, r.Bandwidth)
	require.Equal(h.t, ratesWith(*r.Bandwidth), h.rates(), "the kernel has those of the record")
	c := newLimits(h.a)
	updated = *r.Bandwidth == *c.Bandwidth
	if !updated {
		require.Equal(h.t, h.a.Bandwidth, r.Bandwidth)
	}
	now := h.a
	if len(c.Publish) > 0 {
		require.Equal(h.t, updated, r.Labels["updated"] == "yes")
		require.Equal(h.t, map[bool]*policy.Policy{true: c.Policy, false: h.a.Policy}[updated], r.Policy)
		for _, ports := range [][]portmap.Port{h.a.Ports, c.Publish} {
			one := h.a
			one.Ports = ports
			require.Equal(h.t, updated == (ports[0].Value == updatedPort), h.answers(one))
		}
		if updated {
			now.Ports = c.Publish
		}
	}
	h.requireReachable(now)
	return updated
}

// rates returns the limits that the kernel has on links of the host, in bits per second, sorted,
// and every ifb.
func (h *host) rates() (rates []string) {
	h.t.Helper()
	links, err := retry.List(netlink.LinkList)
	require.NoError(h.t, err)
	for _, l := range links {
		if l.Type() == "ifb" {
			rates = append(rates, "ifb")
		}
		qdiscs, err := netlink.QdiscList(l)
		require.NoError(h.t, err)
		for _, q := range qdiscs {
			if tbf, ok := q.(*netlink.Tbf); ok {
				rates = append(rates, fmt.Sprint(l.Type(), " ", 8*tbf.Rate))
			}
		}
	}
	slices.Sort(rates)
	return rates
}

// ratesWith returns the rates of a host with one allocation with limits.
func ratesWith(b configurator.Bandwidth) (rates []string) {
	if b.EgressRate > 0 {
		rates = append(rates, "ifb", fmt.Sprint("ifb ", b.EgressRate))
	}
	if b.IngressRate > 0 {
		rates = append(rates, fmt.Sprint("veth ", b.IngressRate))
	}
	return rates
}
