package configurator

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// attachHost is a native host with an allocation a and a second network "more".
func attachHost(t *testing.T, more string) (h *testHost, a Allocation, leases string) {
	t.Helper()
	h, _ = nativeHost(t, "1.0.0", `{"type":"portmap","capabilities":{"portMappings":true}}`)
	leases = t.TempDir()
	if more == "" {
		more = `{"type":"ptp","ipMasq":true,"ipam":{"type":"host-local","dataDir":"` + leases + `","subnet":"10.78.0.0/24"}},
			{"type":"portmap","capabilities":{"portMappings":true}}`
	}
	h.file("more.conflist", `{"cniVersion":"1.0.0","name":"more","plugins":[`+more+`]}`)
	a = h.alloc("a")
	a.Ports = []portmap.Port{tcpPort(8080, 80)}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	return h, a, leases
}

// requireInterfaces fails unless the namespace of an allocation has these interfaces.
func requireInterfaces(t *testing.T, a Allocation, want ...string) {
	t.Helper()
	s, err := sandbox.Open(a.Netns)
	require.NoError(t, err)
	defer s.Close()
	var names []string
	require.NoError(t, s.Do(func() error {
		for _, l := range hostLinks(t) {
			if name := l.Attrs().Name; name != "lo" {
				names = append(names, name)
			}
		}
		return nil
	}))
	slices.Sort(names)
	require.Equal(t, want, names)
}

// addInside makes a foreign interface in the namespace of an allocation.
func addInside(t *testing.T, a Allocation, name string) {
	t.Helper()
	s, err := sandbox.Open(a.Netns)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Do(func() error { return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}) }))
}

// end tears the allocation down, which must leave nothing.
func (h *testHost) end(a Allocation, leases string) {
	h.t.Helper()
	require.NoError(h.t, h.Teardown(context.Background(), a))
	h.settle()
	h.requireNoRecords()
	for _, file := range h.tree(leases) {
		require.NotContains(h.t, file, "10.78.0.2")
	}
}

// TestAttachRefused: nothing has changed.
func TestAttachRefused(t *testing.T) {
	h, a, leases := attachHost(t, "")
	h.file("lo.conflist", `{"cniVersion":"1.0.0","name":"lo","plugins":[{"type":"loopback"}]}`)
	h.file("binary.conflist", `{"cniVersion":"1.0.0","name":"binary","plugins":[{"type":"fake"}]}`)
	addInside(t, a, "foreign0")
	before := h.tree(h.cfg.StateDir)
	for name, c := range map[string]struct {
		id, network string
		options     AttachOptions
		want        error
	}{
		"absent allocation":   {"b", "more", AttachOptions{}, ErrNotFound},
		"unknown network":     {"a", "none", AttachOptions{}, ErrUnknownNetwork},
		"attached already":    {"a", "net", AttachOptions{}, ErrInvalidAllocation},
		"the default network": {"a", "", AttachOptions{}, ErrInvalidAllocation},
		"loopback":            {"a", "lo", AttachOptions{}, ErrInvalidAllocation},
		"binary":              {"a", "binary", AttachOptions{}, ErrCannotUpdate},
		"interface taken":     {"a", "more", AttachOptions{Interface: "eth0"}, ErrInUse},
		"foreign interface":   {"a", "more", AttachOptions{Interface: "foreign0"}, ErrInUse},
		"pattern":             {"a", "more", AttachOptions{Interface: "a%d"}, ErrInvalidAllocation},
		"invalid, attached":   {"a", "net", AttachOptions{Interface: "abcdefghijklmnop"}, ErrInvalidAllocation},
		"invalid interface":   {"a", "more", AttachOptions{Interface: "a/b"}, ErrInvalidAllocation},
		"other revision":      {"a", "more", AttachOptions{Revision: "0-0"}, ErrRevision},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.Attach(t.Context(), c.id, c.network, c.options)
			if c.options.Interface != "" {
				require.ErrorContains(t, err, "interface")
			}
			require.ErrorIs(t, err, c.want)
			require.Equal(t, before, h.tree(h.cfg.StateDir))
		})
	}
	for name, c := range map[string]struct {
		interfaceName, revision string
		want                    error
	}{
		"no such interface": {"eth1", "", ErrNotFound},
		"first network":     {"eth0", "", ErrCannotUpdate},
		"other revision":    {"eth0", "0-0", ErrRevision},
	} {
		t.Run("detach, "+name, func(t *testing.T) {
			_, err := h.Detach(t.Context(), "a", c.interfaceName, c.revision)
			require.ErrorIs(t, err, c.want)
			require.Equal(t, before, h.tree(h.cfg.StateDir))
		})
	}
	h.end(a, leases)
}

// TestAttachPassesOver interfaces that others have made.
func TestAttachPassesOver(t *testing.T) {
	h, a, leases := attachHost(t, "")
	addInside(t, a, "eth1")
	s, err := h.Attach(t.Context(), "a", "more", AttachOptions{})
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(s.Interfaces, func(i Interface) bool { return i.Name == "eth2" && i.Network == "more" }), s.Interfaces)
	_, err = h.Detach(t.Context(), "a", "eth2", "")
	require.NoError(t, err)
	requireInterfaces(t, a, "eth0", "eth1")
	h.end(a, leases)
}

// TestAttachWithoutTheRequestedAddresses: the address and the MAC address in CNI_ARGS stay with the network
// that got them in Setup, for ADD and for CHECK.
func TestAttachWithoutTheRequestedAddresses(t *testing.T) {
	tuned := `,{"type":"tuning"}`
	h, _, leases := attachHost(t, "")
	h.file("tuned.conflist", `{"cniVersion":"1.0.0","name":"tuned","plugins":[{"type":"ptp","ipam":{"type":"host-local","dataDir":"`+leases+`","subnet":"10.79.0.0/24"}}`+tuned+`]}`)
	b := h.alloc("b")
	b.Args = map[string]string{"IP": "10.77.0.77", "MAC": "02:00:00:00:00:77"}
	_, err := h.Setup(t.Context(), b)
	require.NoError(t, err)
	status, err := h.Attach(t.Context(), "b", "tuned", AttachOptions{})
	require.NoError(t, err)
	require.Equal(t, "10.77.0.77", status.Address)
	last := status.Interfaces[len(status.Interfaces)-1]
	require.NotEqual(t, "02:00:00:00:00:77", last.MAC)
	require.NoError(t, h.CheckOnly(t.Context(), b))
	b.Wait = true
	require.NoError(t, h.Teardown(t.Context(), b))
	requireNothingOwned(t, "b")
}

// TestAttachFails: an ADD that fails is rolled back alone.
func TestAttachFails(t *testing.T) {
	h, a, leases := attachHost(t, `{"type":"ptp","ipam":{"type":"host-local","subnet":"10.78.0.0/24",
		"routes":[{"dst":"192.0.2.0/24","gw":"203.0.113.1"}]}}`)
	first, err := h.store.Get("a")
	require.NoError(t, err)
	_, err = h.Attach(t.Context(), "a", "more", AttachOptions{})
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrIncomplete)
	requireInterfaces(t, a, "eth0")
	now, err := h.store.Get("a")
	require.NoError(t, err)
	now.Updated = first.Updated
	require.Equal(t, first, now)
	require.NoError(t, h.CheckOnly(t.Context(), a))
	h.end(a, leases)
}

// TestSetupAfterDetach: an allocation that has the networks of the configuration again is the
// same, whether it names them or not.
func TestSetupAfterDetach(t *testing.T) {
	h, a, leases := attachHost(t, "")
	named := a
	named.Networks = []string{"net"}
	for range 2 {
		for _, request := range []Allocation{a, named} {
			s, err := h.Setup(t.Context(), request)
			require.NoError(t, err)
			require.False(t, s.Created)
		}
		_, err := h.Attach(t.Context(), "a", "more", AttachOptions{})
		require.NoError(t, err)
		for _, request := range []Allocation{a, named} {
			_, err := h.Setup(t.Context(), request)
			require.ErrorIs(t, err, ErrDifferent)
		}
		_, err = h.Detach(t.Context(), "a", "eth1", "")
		require.NoError(t, err)
	}
	h.end(a, leases)
}

// requireInterrupted requires that all ways to run CHECK report an interrupted change.
func (h *testHost) requireInterrupted(a Allocation) {
	h.t.Helper()
	health := h.CheckAll(h.t.Context(), []string{a.ID})
	require.Contains(h.t, health, a.ID)
	for _, err := range []error{h.Check(h.t.Context(), a), h.CheckOnly(h.t.Context(), a), health[a.ID]} {
		require.ErrorIs(h.t, err, ErrUnhealthy)
		require.ErrorContains(h.t, err, "an update, attach or detach was interrupted")
	}
}

// TestUpdateInterruptedIsUnhealthy: the same applies to an Update.
func TestUpdateInterruptedIsUnhealthy(t *testing.T) {
	h, a := updateHost(t, "")
	h.changeRecord("a", func(r *record.Record) { r.Update = &record.Aim{Ports: r.Ports} })
	h.requireInterrupted(a)
	repaired, err := h.CheckAndRepair(t.Context(), "a")
	require.NoError(t, err)
	require.False(t, repaired)
	require.NoError(t, h.CheckOnly(t.Context(), a))
}

// TestAttachInterruptedWithoutState: an Attach that was interrupted is finished only if that can be recorded.
func TestAttachInterruptedWithoutState(t *testing.T) {
	h, a, leases := attachHost(t, "")
	_, err := h.Attach(t.Context(), "a", "more", AttachOptions{})
	require.NoError(t, err)
	h.changeRecord("a", func(r *record.Record) { r.Pending, r.Attachments = &r.Attachments[1], r.Attachments[:1] })
	writable := h.recordsReadOnly()
	for range 2 {
		repaired, err := h.CheckAndRepair(t.Context(), "a")
		require.ErrorIs(t, err, ErrStateDir)
		require.ErrorIs(t, err, ErrUnhealthy, "as a CHECK without a repair")
		require.False(t, repaired)
		h.requireInterrupted(a)
		_, err = h.Setup(t.Context(), a)
		require.ErrorIs(t, err, ErrStateDir)
		_, err = h.Update(t.Context(), "a", Change{})
		require.ErrorIs(t, err, ErrStateDir)
		_, err = h.Detach(t.Context(), "a", "eth1", "")
		require.ErrorIs(t, err, ErrStateDir)
		_, err = h.Recover(t.Context())
		require.ErrorIs(t, err, ErrStateDir)
	}
	writable()
	h.requireInterrupted(a)
	_, err = h.Repair(t.Context())
	require.NoError(t, err)
	require.NoError(t, h.Check(t.Context(), a))
	requireInterfaces(t, a, "eth0")
	r, err := h.store.Get("a")
	require.NoError(t, err)
	require.Nil(t, r.Pending)
	h.end(a, leases)
}

// TestAttachInterrupted: what a process leaves that dies during an Attach or a Detach is removed
// by whatever comes next.
func TestAttachInterrupted(t *testing.T) {
	for _, attached := range []bool{true, false} { // whether ADD has run
		for name, next := range map[string]func(*testHost, Allocation){
			"recover": func(h *testHost, _ Allocation) {
				report, err := h.Recover(h.t.Context())
				require.NoError(h.t, err)
				require.Empty(h.t, report.Removed)
			},
			"repair": func(h *testHost, _ Allocation) {
				_, err := h.Repair(h.t.Context())
				require.NoError(h.t, err)
			},
			"setup": func(h *testHost, a Allocation) {
				s, err := h.Setup(h.t.Context(), a)
				require.NoError(h.t, err)
				require.False(h.t, s.Created)
			},
			"update": func(h *testHost, _ Allocation) {
				_, err := h.Update(h.t.Context(), "a", Change{})
				require.NoError(h.t, err)
			},
			"attach": func(h *testHost, _ Allocation) {
				_, err := h.Attach(h.t.Context(), "a", "none", AttachOptions{})
				require.ErrorIs(h.t, err, ErrUnknownNetwork)
				_, err = h.Detach(h.t.Context(), "a", "eth2", "")
				require.ErrorIs(h.t, err, ErrNotFound)
			},
			"teardown": func(*testHost, Allocation) {},
			"teardown, interrupted": func(h *testHost, _ Allocation) {
				r, err := h.store.Get("a")
				require.NoError(h.t, err)
				h.recordDeleting(h.planToRemove(r).Record)
				s, err := h.Get(h.t.Context(), "a")
				require.NoError(h.t, err)
				require.Equal(h.t, PhaseDeleting, s.Phase)
			},
			"gc": func(h *testHost, _ Allocation) { _, err := h.GC(h.t.Context(), nil); require.NoError(h.t, err) },
		} {
			t.Run(name, func(t *testing.T) {
				h, a, leases := attachHost(t, "")
				requested, err := h.store.Get("a")
				require.NoError(t, err)
				s, err := h.Attach(t.Context(), "a", "more", AttachOptions{})
				require.NoError(t, err)
				require.Len(t, s.Ports, 1)
				if !attached {
					_, err := h.Detach(t.Context(), "a", "eth1", s.Revision)
					require.NoError(t, err)
				}
				h.changeRecord("a", func(r *record.Record) {
					pending := record.Attachment{Network: "more", IfName: "eth1", Config: []byte(h.read("more.conflist"))}
					if attached {
						pending = r.Attachments[1]
					}
					r.Pending, r.Attachments, r.Requested = &pending, r.Attachments[:1], requested.Requested
				})
				h.requireInterrupted(a)
				status, err := h.Get(t.Context(), "a")
				require.NoError(t, err)
				require.Len(t, status.Networks, 1)
				next(h, a)
				if name != "gc" && !strings.HasPrefix(name, "teardown") {
					requireInterfaces(t, a, "eth0")
					r, err := h.store.Get("a")
					require.NoError(t, err)
					require.Nil(t, r.Pending)
				}
				h.end(a, leases)
			})
		}
	}
}
