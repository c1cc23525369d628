package configurator

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/policy"
)

// TestSweepOfTheSetUp: an allocation that was set up after GC has listed the records keeps its
// labels and its policy, also if its container has another ID.
func TestSweepOfTheSetUp(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"policy","capabilities":{"policy":true}}`)
	a := h.alloc("c")
	a.ID, a.ContainerID, a.Interface, a.Labels = "c.eth0", "c", "eth0", map[string]string{"app": "web"}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	members, err := h.policies.Members("")
	require.NoError(t, err)
	require.Len(t, members, 1)
	require.NoError(t, h.sweepMember(t.Context(), members[0]))
	left, err := h.policies.Members("")
	require.NoError(t, err)
	require.Equal(t, members, left)
	require.NoError(t, h.Check(t.Context(), a))

	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: a.ID}))
	h.requireNoRecords()
	left, err = h.policies.Members("")
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestSetupWhilePoliciesAreLocked: a Setup returns soon after its deadline while another process holds the lock
// of the policies, also in the removal of what its ADD has made.
func TestSetupWhilePoliciesAreLocked(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"policy","capabilities":{"policy":true}}`)
	a := h.alloc("a")
	s, err := h.policies.Exclusive(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { _, err := h.Setup(ctx, a); ended <- err }()
	select {
	case err = <-ended:
		s.Unlock()
	case <-time.After(time.Minute):
		s.Unlock()
		<-ended
		t.Fatal("it waits for the lock")
	}
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: a.ID}))
	h.requireNoRecords()
}

// TestPolicyAfterFailedDEL: a DEL that fails leaves nothing of the allocation in the store of
// policies and in the kernel, so Teardown succeeds.
func TestPolicyAfterFailedDEL(t *testing.T) {
	o := &atStep{name: StepDel}
	h, _ := nativeHost(t, "1.0.0", `{"type":"policy","capabilities":{"policy":true}}`)
	h.cfg.Observer = o
	h.Configurator = h.restarted()
	keep, a := h.alloc("keep"), h.alloc("a")
	a.Labels, a.Policy = map[string]string{"app": "web"}, &policy.Policy{Presets: []policy.Preset{policy.Isolated}}
	keep.Labels, keep.Policy = a.Labels, a.Policy
	for _, one := range []Allocation{keep, a} {
		_, err := h.Setup(t.Context(), one)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.do = cancel
	require.NoError(t, h.Teardown(ctx, Allocation{ID: "a", Wait: true}))
	require.Error(t, ctx.Err())
	members, err := h.policies.Members("")
	require.NoError(t, err)
	require.Len(t, members, 1)
	require.Equal(t, "keep", members[0].Owner.ID)
	require.NoError(t, h.Check(t.Context(), keep))
	o.do = func() {}
	requireNothingOwned(t, "a")
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "keep"}))
	h.requireNoRecords()
}
