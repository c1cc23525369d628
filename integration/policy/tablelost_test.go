package policy

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
)

// TestPolicyFloodWithoutTable: if another program removes only the tables of policies, or what is in them, or those of a
// family, nothing that they deny passes a bridge, neither before the repair nor during it, whichever it is, but packets
// that are between the rules at that moment. Other allocations go on.
func TestPolicyFloodWithoutTable(t *testing.T) {
	h := newHost(t, configurator.EngineNative)
	testbed.SetSysctls(t, "", testbed.Quick)
	h.Network("net", policed("bridge", testbed.Dual)...)
	var received, answered atomic.Int64
	sink, closed, other := h.Alloc("sink"), h.Alloc("closed"), h.Alloc("other")
	closed.Policy = mustPolicy(t, `{"egress":{"default":"deny"},"ingress":{"default":"deny"}}`)
	toSink, toClosed, toOther := floodSink(t, h, sink, &received), floodSink(t, h, closed, &received), floodSink(t, h, other, &answered)
	six := func(a configurator.Allocation) string {
		r, err := h.Get(h.Context(), a.ID)
		require.NoError(t, err)
		return testbed.At(netip.MustParseAddr(r.Status.AddressIPv6), 9)
	}
	all := []*flooding{
		flood(t, closed.Netns, "udp4", toSink), flood(t, closed.Netns, "udp6", six(sink)),
		flood(t, sink.Netns, "udp4", toClosed), flood(t, sink.Netns, "udp6", six(closed)),
	}
	more := func() {
		for _, f := range all {
			f.awaitMore()
		}
	}
	label := "web"
	const deletion = "nft delete table ip allocnet_policy; nft delete table ip6 allocnet_policy"
	for damage, repair := range map[string]func() error{
		deletion: func() error { _, err := h.Repair(h.Context()); return err },
		"nft flush table ip allocnet_policy; nft flush table ip6 allocnet_policy": func() error { return h.repairOne("closed") },
		"nft flush ruleset ip; nft flush ruleset ip6": func() error {
			_, err := h.Update(h.Context(), "closed", configurator.Change{Labels: map[string]*string{"app": &label}})
			return err
		},
	} {
		testbed.Shell(t, damage)
		more()
		require.LessOrEqual(t, received.Swap(0), int64(64), "packets that a policy denies, at %s", damage) // a batch of the kernel
		more()
		require.Zero(t, received.Load(), "packets that a policy denies, after %s", damage)
		require.NoError(t, repair())
		more()
		require.Zero(t, received.Load(), "packets that a policy denies, after the repair of %s", damage)
		_, err := h.Repair(h.Context())
		require.NoError(t, err)
		require.NoError(t, h.CheckOnly(h.Context(), closed))
	}
	testbed.Shell(t, deletion)
	answered.Store(0)
	unrelated := flood(t, sink.Netns, "udp4", toOther)
	require.Eventually(t, func() bool { return answered.Load() > 0 }, 3*testbed.Timeout, time.Millisecond, "without a policy")
	for _, f := range append(all, unrelated) {
		f.stop()
	}
	h.TearDown(sink, closed, other)
}

// awaitMore waits until further bursts have left the socket.
func (f *flooding) awaitMore() {
	f.t.Helper()
	before := f.sent.Load()
	require.Eventually(f.t, func() bool { return f.sent.Load() > before+2*floodBurst }, 3*testbed.Timeout, time.Millisecond)
}
