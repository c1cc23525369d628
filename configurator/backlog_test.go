package configurator

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// pausedHost is a native host whose backlog begins no batch unless somebody waits for one.
func pausedHost(t *testing.T) (h *testHost, leases string) {
	h, leases = nativeHost(t, "1.0.0", `{"type":"firewall"}`, `{"type":"portmap","capabilities":{"portMappings":true}}`)
	h.backlog.quietTime, h.backlog.longestPause = time.Hour, time.Hour
	return h, filepath.Join(leases, "net")
}

// hostLinks returns the links of the host. It lists them again if some changed meanwhile,
// such as links that the kernel deletes after their network namespace.
func hostLinks(t *testing.T) []netlink.Link {
	t.Helper()
	links, err := retry.List(netlink.LinkList)
	require.NoError(t, err)
	return links
}

// linkOf returns the host's end of an allocation, or nil if there is none. The kernel may still
// be deleting the link of an allocation with the same ID in an earlier test.
func (h *testHost) linkOf(id string) netlink.Link {
	for _, l := range hostLinks(h.t) {
		if owner, ok := names.ParseOwner(l.Attrs().Alias); ok && owner.OfID(id) && owner.Instance == h.instance {
			return l
		}
	}
	return nil
}

func requireNoElements(t *testing.T, id string) {
	rules, err := ruleset.Open()
	require.NoError(t, err)
	defer rules.Close()
	elements, err := rules.Owned(t.Context(), func(o names.Owner) bool { return o.OfID(id) })
	require.NoError(t, err)
	require.Empty(t, elements)
}

// TestTeardownAcknowledged: when Teardown returns, the allocation is disconnected and its
// host port is free. Its link and its lease exist until the backlog deletes them.
func TestTeardownAcknowledged(t *testing.T) {
	h, leases := pausedHost(t)
	a, b := h.alloc("a"), h.alloc("b")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	b.Ports = a.Ports
	first, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), a))

	r, err := h.store.Get("a")
	require.NoError(t, err)
	require.Equal(t, record.Deleting, r.Phase)
	require.True(t, r.Acknowledged)
	require.ErrorIs(t, h.Check(t.Context(), Allocation{ID: "a"}), ErrNotFound)
	require.Empty(t, r.Ports)
	requireNoElements(t, "a")
	require.NotNil(t, h.linkOf("a"))
	require.Contains(t, leaseHolders(t, leases), "a")
	require.NoError(t, h.Teardown(t.Context(), a), "again")

	second, err := h.Setup(t.Context(), b)
	require.NoError(t, err, "the host port")
	require.NotEqual(t, first.Address, second.Address)
	report, err := h.Repair(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, report.Healthy)

	h.settle()
	require.Nil(t, h.linkOf("a"))
	require.NotContains(t, leaseHolders(t, leases), "a")
	_, err = h.Get(t.Context(), "a")
	require.ErrorIs(t, err, ErrNotFound)
	require.NoError(t, h.Check(t.Context(), b), "what the removal of a has left alone")
	b.Wait = true
	require.NoError(t, h.Teardown(t.Context(), b))
	require.Nil(t, h.linkOf("b"))
	h.requireNoRecords()
}

// TestSetupAfterAcknowledgement: a Setup that needs what a removal still has waits for it.
func TestSetupAfterAcknowledgement(t *testing.T) {
	h, _ := pausedHost(t)
	a := h.alloc("a")
	other := h.restarted()
	for name, next := range map[string]Allocation{
		"same ID":                       a,
		"same namespace":                {ID: "b", Netns: a.Netns},
		"same ID, other process":        a,
		"same namespace, other process": {ID: "b", Netns: a.Netns},
	} {
		by := h.Configurator
		if strings.Contains(name, "process") {
			by = other
		}
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		require.NoError(t, h.Teardown(t.Context(), a))
		s, err := by.Setup(t.Context(), next)
		require.NoError(t, err, name)
		require.True(t, s.Created)
		require.NoError(t, by.Check(t.Context(), next))
		next.Wait = true
		require.NoError(t, by.Teardown(t.Context(), next))
	}
	h.requireNoRecords()
}

// TestSetupsOfOneNamespace: two allocations of one network namespace are torn down, and then both are
// set up at the same time. Each Setup holds the lock of its allocation, and waits until the removal
// of the other one has ended.
func TestSetupsOfOneNamespace(t *testing.T) {
	h, _ := pausedHost(t)
	a := h.alloc("a")
	b := a
	b.ID, b.Interface, a.ContainerID, b.ContainerID = "b", "eth1", "pod", "pod"
	for range 3 {
		both := []Allocation{a, b}
		for _, one := range both {
			_, err := h.Setup(t.Context(), one)
			require.NoError(t, err)
		}
		for _, one := range both {
			require.NoError(t, h.Teardown(t.Context(), one))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		errs := make(chan error)
		for _, one := range both {
			go func() {
				_, err := h.Setup(ctx, one)
				errs <- err
			}()
		}
		for range both {
			require.NoError(t, <-errs)
		}
		cancel()
		for _, one := range both {
			one.Wait = true
			require.NoError(t, h.Teardown(t.Context(), one))
		}
	}
	h.requireNoRecords()
}

// TestRemovalEndedBySetup: the backlog does not wait for the lock of an allocation whose removal has
// ended: a Setup that holds the lock may wait for the batch.
func TestRemovalEndedBySetup(t *testing.T) {
	h, _ := pausedHost(t)
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), a))
	h.backlog.mu.Lock()
	one := h.backlog.removals["a"]
	h.backlog.mu.Unlock()
	unlock, err := h.lock(t.Context(), "a")
	require.NoError(t, err)
	done := make(chan error)
	go func() { done <- h.finishRemoval(t.Context(), one) }()
	select {
	case err := <-done:
		t.Fatalf("it did not wait for the lock: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	h.backlog.removed("a")
	require.NoError(t, <-done)
	unlock()
	a.Wait = true
	require.NoError(t, h.Teardown(t.Context(), a))
	h.requireNoRecords()
}

// TestAddressAfterAcknowledgement: the only address of a network is given to the next
// allocation when the link of the previous one is gone.
func TestAddressAfterAcknowledgement(t *testing.T) {
	h, leases := pausedHost(t)
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"brtest","isGateway":true,
		"ipam":{"type":"host-local","dataDir":"`+filepath.Dir(leases)+`","ranges":[[{"subnet":"10.77.0.0/24","rangeStart":"10.77.0.9","rangeEnd":"10.77.0.9"}]]}}]}`)
	a, b := h.alloc("a"), h.alloc("b")
	for range 3 {
		for _, one := range []Allocation{a, b} {
			s, err := h.Setup(t.Context(), one)
			require.NoError(t, err)
			require.Equal(t, "10.77.0.9", s.Address)
			require.NoError(t, h.Teardown(t.Context(), one))
		}
	}
	h.requireNoRecords()
}

// TestTeardownWaits lists the cases in which nothing is left when Teardown returns.
func TestTeardownWaits(t *testing.T) {
	for name, change := range map[string]func(*testHost, *Allocation){
		"Wait":       func(_ *testHost, a *Allocation) { a.Wait = true },
		"full":       func(h *testHost, _ *Allocation) { h.backlog.limit = 1; require.True(t, h.backlog.take()) },
		"no backlog": func(h *testHost, _ *Allocation) { h.backlog.limit = 0 },
		"iptables": func(h *testHost, _ *Allocation) {
			h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"brtest","isGateway":true,"ipMasq":true,
				"ipMasqBackend":"iptables","ipam":{"type":"host-local","dataDir":"`+t.TempDir()+`","subnet":"10.77.0.0/24"}}]}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := pausedHost(t)
			a := h.alloc("a")
			change(h, &a)
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			require.NoError(t, h.Teardown(t.Context(), a))
			require.Nil(t, h.linkOf("a"))
			_, err = h.Get(t.Context(), "a")
			require.ErrorIs(t, err, ErrNotFound)
		})
	}
	for name, cfg := range map[string]Config{"OneShot": {OneShot: true}, "negative": {Backlog: -1}} {
		require.Zero(t, cfg.withDefaults().Backlog, name)
	}
	require.Equal(t, DefaultBacklog, Config{}.withDefaults().Backlog)
}

// TestRemovalFails: the record stays, and the removal is tried again.
func TestRemovalFails(t *testing.T) {
	h, leases := pausedHost(t)
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), a))
	require.NoError(t, os.Rename(leases, leases+".away"))
	require.NoError(t, os.WriteFile(leases, nil, 0o600))
	h.backlog.rush()
	require.Eventually(t, func() bool {
		h.backlog.mu.Lock()
		defer h.backlog.mu.Unlock()
		return len(h.backlog.removals) == 1 && h.backlog.removals["a"].fails > 0
	}, 10*time.Second, time.Millisecond)
	r, err := h.store.Get("a")
	require.NoError(t, err)
	require.True(t, r.Acknowledged)
	require.NoError(t, os.Remove(leases))
	require.NoError(t, os.Rename(leases+".away", leases))
	h.settle()
	require.Empty(t, leaseHolders(t, leases))
	h.requireNoRecords()
}

// TestCloseDrains: Close waits for the removals, but not for ever. What is left then has a
// record, with which Recover finishes it.
func TestCloseDrains(t *testing.T) {
	h, leases := pausedHost(t)
	for _, id := range []string{"a", "b"} {
		_, err := h.Setup(t.Context(), h.alloc(id))
		require.NoError(t, err)
	}
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a"}))
	require.NoError(t, h.Close())
	require.Nil(t, h.linkOf("a"))

	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "b"}))
	unlock, err := h.store.Lock(context.Background(), "b") // another process works on it
	require.NoError(t, err)
	h.backlog.drainTime = 10 * time.Millisecond
	require.ErrorContains(t, h.Close(), "1 allocations")
	unlock()
	require.NotNil(t, h.linkOf("b"))
	require.Contains(t, leaseHolders(t, leases), "b")

	report, err := h.restarted().Recover(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, report.Removed)
	require.Nil(t, h.linkOf("b"))
	require.Empty(t, leaseHolders(t, leases))
	h.requireNoRecords()
}

// TestOwnNetnsAcknowledged: the name of the namespace is free when Teardown returns.
func TestOwnNetnsAcknowledged(t *testing.T) {
	h, _ := pausedHost(t)
	a := Allocation{ID: "a", OwnNetns: true}
	s, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), a))
	require.NoFileExists(t, filepath.Join(h.cfg.NetnsDir, "a"))
	again, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.True(t, again.Created)
	require.Equal(t, s.InterfaceName, again.InterfaceName)
	require.NoError(t, h.Teardown(t.Context(), a))
	h.requireNoRecords()
}

// failingAdd is an engine whose ADDs fail.
type failingAdd struct {
	nativeEngine
	err   error
	calls int
	first func() // called by the first ADD
}

func (f *failingAdd) Add(context.Context, *engine.Request) ([]*types100.Result, error) {
	if f.calls++; f.calls == 1 && f.first != nil {
		f.first()
	}
	return nil, f.err
}

// TestRemovalsEndDuringAdd: an ADD that fails for want of an address is run once more also if the
// removals that had one have ended meanwhile.
func TestRemovalsEndDuringAdd(t *testing.T) {
	for name, add := range map[string]func(*testHost) error{
		"Setup":  func(h *testHost) error { _, err := h.Setup(h.t.Context(), h.alloc("b")); return err },
		"Attach": func(h *testHost) error { _, err := h.Attach(h.t.Context(), "c", "more", AttachOptions{}); return err },
	} {
		t.Run(name, func(t *testing.T) {
			h, _ := pausedHost(t)
			h.cfg.Retry.Attempts = 1
			h.file("more.conflist", `{"cniVersion":"1.0.0","name":"more","plugins":[{"type":"ptp"}]}`)
			for _, id := range []string{"a", "c"} {
				_, err := h.Setup(t.Context(), h.alloc(id))
				require.NoError(t, err)
			}
			require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a"}))
			f := &failingAdd{nativeEngine: h.native, err: ErrExhausted, first: func() {
				require.Equal(t, 1, h.Pending())
				h.settle()
			}}
			h.native = f
			require.ErrorIs(t, add(h), ErrExhausted)
			require.Equal(t, 2, f.calls)
			h.native = f.nativeEngine
			require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "c"}))
		})
	}
}

// TestAttachWaitsForRemovals: Attach gets the last address of a network, which a removal has.
func TestAttachWaitsForRemovals(t *testing.T) {
	h, _ := pausedHost(t)
	h.file("more.conflist", `{"cniVersion":"1.0.0","name":"more","plugins":[{"type":"ptp","ipam":{"type":"host-local",
		"dataDir":"`+h.dir+`","ranges":[[{"subnet":"10.79.0.0/24","rangeStart":"10.79.0.9","rangeEnd":"10.79.0.9"}]]}}]}`)
	more := h.alloc("more")
	more.Networks = []string{"more"}
	_, err := h.Setup(t.Context(), more)
	require.NoError(t, err)
	_, err = h.Setup(t.Context(), h.alloc("a"))
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), more))
	require.Equal(t, 1, h.Pending())
	s, err := h.Attach(t.Context(), "a", "more", AttachOptions{})
	require.NoError(t, err)
	require.Equal(t, "10.79.0.9/24", s.Interfaces[len(s.Interfaces)-1].Addresses[0].Address)
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a"}))
}

// TestOnlyWhatIsNotFreeWaitsForRemovals: while removals follow their Teardowns, an ADD that fails for
// want of an address is run once more after them, and any other error ends the Setup at once. All
// causes are reported.
func TestOnlyWhatIsNotFreeWaitsForRemovals(t *testing.T) {
	for err, calls := range map[error]int{
		types.NewError(types.ErrInvalidNetworkConfig, "it is wrong", ""): 1,
		lease.ErrNotInRange: 1, ErrExhausted: 2, ErrBridgeFull: 2, fmt.Errorf("x: %w", lease.ErrTaken): 2,
	} {
		t.Run(err.Error(), func(t *testing.T) {
			h, _ := pausedHost(t)
			h.cfg.Retry.Attempts = 1
			a := h.alloc("a")
			_, setupErr := h.Setup(t.Context(), a)
			require.NoError(t, setupErr)
			require.NoError(t, h.Teardown(t.Context(), a))
			f := &failingAdd{nativeEngine: h.native, err: err}
			h.native = f
			_, setupErr = h.Setup(t.Context(), h.alloc("b"))
			require.ErrorIs(t, setupErr, err)
			require.Equal(t, calls, f.calls)
			require.Equal(t, calls == 1, h.Pending() == 1, "the removal was not awaited")
			h.native = f.nativeEngine
		})
	}
}
