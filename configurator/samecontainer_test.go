package configurator

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// elementsOf returns the elements of an interface of a container.
func elementsOf(t *testing.T, container, ifName string) (list []string) {
	t.Helper()
	require.NoError(t, ruleset.Lend(func(r *ruleset.Ruleset) (err error) {
		list, err = r.Owned(t.Context(), func(o names.Owner) bool { return o.OfID(container) && o.IfName == ifName })
		return err
	}))
	return list
}

// ofContainer returns an interface of the container of an allocation, as runtimes request it.
func ofContainer(c Allocation, ifName string) Allocation {
	return Allocation{ID: c.ID + "." + ifName, ContainerID: c.ID, Interface: ifName, Netns: c.Netns}
}

// TestInterfacesOfOneContainer: whatever happens to one interface of a container, and to an ID that is
// only its container's, the other interface in the same network keeps all that it has.
func TestInterfacesOfOneContainer(t *testing.T) {
	for name, act := range map[string]func(context.Context, *testHost, Allocation) error{
		"failed ADD": func(ctx context.Context, h *testHost, c Allocation) error {
			b := ofContainer(c, "eth1")
			b.Args = map[string]string{"IP": "10.99.0.1"} // not in the range
			_, err := h.Setup(ctx, b)
			require.ErrorIs(h.t, err, ErrAddressUnavailable)
			return nil
		},
		"interrupted ADD": func(ctx context.Context, h *testHost, c Allocation) error {
			b := ofContainer(c, "eth1")
			_, err := h.Setup(ctx, b)
			require.NoError(h.t, err)
			h.setPhase(b.ID, record.Adding)
			_, err = h.Recover(ctx)
			return err
		},
		"forced": func(ctx context.Context, h *testHost, c Allocation) error {
			b := ofContainer(c, "eth1")
			_, err := h.Setup(ctx, b)
			require.NoError(h.t, err)
			h.setPhase(b.ID, record.Deleting)
			_, err = h.Force(ctx, Allocation{ID: b.ID})
			return err
		},
		"repeated DEL": func(ctx context.Context, h *testHost, c Allocation) error {
			return h.restarted().Teardown(ctx, ofContainer(c, "eth1"))
		},
		"DEL without the network's file": func(ctx context.Context, h *testHost, c Allocation) error {
			b := ofContainer(c, "eth1")
			b.Networks = []string{"gone"}
			return h.Teardown(ctx, b)
		},
		"teardown of the container's ID": func(ctx context.Context, h *testHost, c Allocation) error {
			return h.Teardown(ctx, Allocation{ID: "c"})
		},
		"force of the container's ID": func(ctx context.Context, h *testHost, c Allocation) error {
			_, err := h.Audit(ctx, Allocation{ID: "c"})
			require.ErrorIs(h.t, err, ErrSetUp)
			_, err = h.Force(ctx, Allocation{ID: "c"})
			require.EqualError(h.t, err, `allocation is set up: "c" is the container of allocation "c.eth0"`)
			return nil
		},
		"setup of the container's ID": func(ctx context.Context, h *testHost, c Allocation) error {
			other := h.alloc("other")
			other.ID = "c"
			_, err := h.Setup(ctx, other)
			require.ErrorIs(h.t, err, ErrInvalidAllocation)
			require.ErrorContains(h.t, err, `container "c" of allocation "c" is that of allocation "c.eth0"`)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := nativeHost(t, "1.0.0", `{"type":"portmap","capabilities":{"portMappings":true}}`, `{"type":"policy","capabilities":{"policy":true}}`)
			c := h.alloc("c")
			a := ofContainer(c, "eth0")
			a.Ports = []portmap.Port{{Value: 8080, To: 80}}
			a.Policy = &policy.Policy{Ingress: &policy.Direction{Default: policy.Deny}}
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			before := elementsOf(t, "c", "eth0")
			require.NotEmpty(t, before)
			require.NoError(t, act(t.Context(), h, c))
			require.Equal(t, before, elementsOf(t, "c", "eth0"))
			require.Empty(t, elementsOf(t, "c", "eth1"))
			require.NoError(t, h.Check(t.Context(), a))
			a.Wait = true
			require.NoError(t, h.Teardown(t.Context(), a))
			requireNothingOwned(t, "c")
			h.requireNoRecords()
		})
	}
}

// TestAttachToAContainer: an allocation cannot attach an interface that another one has in the container,
// whatever the namespace looks like, and no ADD gets one that is being attached. So what the death of a
// process leaves is removed without the other's interface.
func TestAttachToAContainer(t *testing.T) {
	h, c, _ := attachHost(t, "")
	c.ID = "c"
	c.Netns = h.alloc("c").Netns
	a, b := ofContainer(c, "eth0"), ofContainer(c, "eth1")
	a.Networks, b.Networks = []string{"net"}, []string{"more"}
	for _, one := range []Allocation{a, b} {
		_, err := h.Setup(t.Context(), one)
		require.NoError(t, err)
	}
	more, err := h.lookup("more")
	require.NoError(t, err)
	begin := func(ifName string) error {
		r, err := h.store.Get(a.ID)
		require.NoError(t, err)
		intent := *r
		intent.Pending = &record.Attachment{Network: "more", IfName: ifName, Attached: true, Config: more.Bytes}
		return h.reserve(t.Context(), &plan.Plan{Record: &intent})
	}
	require.ErrorIs(t, begin("eth1"), ErrInUse)
	_, err = h.Attach(t.Context(), a.ID, "more", AttachOptions{Interface: "eth1"})
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, `the interface of allocation "c.eth0" in container "c" is that of allocation "c.eth1"`)
	require.NoError(t, begin("eth2"))
	_, err = h.Setup(t.Context(), func() Allocation { other := ofContainer(c, "eth2"); other.Networks = b.Networks; return other }())
	require.ErrorIs(t, err, ErrInUse)
	_, err = h.Recover(t.Context())
	require.NoError(t, err)
	require.NoError(t, h.CheckOnly(t.Context(), a))
	require.NoError(t, h.CheckOnly(t.Context(), b))
	h.file("third.conflist", `{"cniVersion":"1.0.0","name":"third","plugins":[{"type":"ptp","ipam":{"type":"static","addresses":[{"address":"10.79.0.2/24","gateway":"10.79.0.1"}]}}]}`)
	status, err := h.Attach(t.Context(), a.ID, "third", AttachOptions{})
	require.NoError(t, err)
	require.Equal(t, "eth2", status.Interfaces[len(status.Interfaces)-1].Name, "eth1 is passed over")
}
