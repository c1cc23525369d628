package configurator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// TestSlotsGiveDescriptors: the slots of a pool do not keep operations from working in a process that has no other
// descriptor left, and nothing is left of those that were given back.
func TestSlotsGiveDescriptors(t *testing.T) {
	for name, a := range map[string]Allocation{
		"from the pool":     {ID: "a", OwnNetns: true, Ports: []portmap.Port{{Value: 8080, To: 80}}},
		"not from the pool": {ID: "a", OwnNetns: true, Args: map[string]string{"MAC": "02:00:00:00:00:07"}},
	} {
		t.Run(name, func(t *testing.T) {
			h, leases := pooledHost(t, 30)
			former := Allocation{ID: "former", OwnNetns: true, Wait: true}
			_, err := h.Setup(t.Context(), former)
			require.NoError(t, err)
			h.full()
			require.NoError(t, withDescriptors(t, firstDescriptor(t), func() error {
				_, err := h.Setup(t.Context(), a)
				return errors.Join(err, h.Check(t.Context(), a), h.Teardown(t.Context(), former))
			}))
			s := h.Pools()[0]
			require.Less(t, s.Ready, s.Size)
			require.Positive(t, s.Ready, "no more than necessary is given back")
			require.NoError(t, h.Check(t.Context(), a))
			a.Wait = true
			require.NoError(t, h.Teardown(t.Context(), a))
			require.NoError(t, h.Close())
			require.Empty(t, leaseHolders(t, leases))
			h.requireNoRecords()
		})
	}
}

// TestTeardownWithoutDescriptors: a Teardown, too, gets the descriptors of slots.
func TestTeardownWithoutDescriptors(t *testing.T) {
	h, leases := pooledHost(t, 30)
	a := Allocation{ID: "a", OwnNetns: true, Wait: true}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.full()
	require.NoError(t, withDescriptors(t, firstDescriptor(t), func() error { return h.Teardown(t.Context(), a) }))
	require.NoError(t, h.Close())
	require.Empty(t, leaseHolders(t, leases))
	h.requireNoRecords()
}

// TestPoolLargerThanTheLimit: a pool that uses up the descriptors leaves some for the Setups, and does not try to get
// them again at once.
func TestPoolLargerThanTheLimit(t *testing.T) {
	h, leases := nativeHost(t, "1.0.0")
	cfg := h.cfg
	cfg.Network, cfg.Pools = "", []Pool{{Network: "net", Size: 100}}
	a := Allocation{ID: "a", OwnNetns: true}
	require.NoError(t, withDescriptors(t, firstDescriptor(t)+80, func() error {
		var err error
		if h.Configurator, err = New(cfg); err != nil {
			return err
		}
		if err = h.awaitPause(); err != nil {
			return err
		}
		_, err = h.Setup(t.Context(), a)
		return err
	}))
	s := h.Pools()[0]
	require.Less(t, s.Ready, s.Size)
	require.Positive(t, s.Ready)
	a.Wait = true
	require.NoError(t, h.Teardown(t.Context(), a))
	require.NoError(t, h.Close())
	require.Empty(t, leaseHolders(t, filepath.Join(leases, "net")))
	h.requireNoRecords()
}

// awaitPause waits until the pool has given slots back.
func (h *testHost) awaitPause() error {
	p := h.pools[0]
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		p.mu.Lock()
		paused := time.Until(p.paused) > roomPause/2
		p.mu.Unlock()
		if paused {
			return nil
		}
	}
	return errors.New("the pool has not given slots back")
}

// TestPoolRefillsAfterAPause: what was given back is prepared again, and the rest of the former slots is removed.
func TestPoolRefillsAfterAPause(t *testing.T) {
	h, leases := pooledHost(t, 10)
	h.room.mu.Lock()
	h.room.pause = time.Millisecond
	h.room.mu.Unlock()
	cause := os.NewSyscallError("open", unix.ENFILE)
	require.False(t, h.giveRoom(t.Context(), 0, errors.New("another error")))
	require.True(t, h.giveRoom(t.Context(), 0, cause))
	require.True(t, h.giveRoom(t.Context(), 0, cause), "another attempt makes sense")
	h.full()
	require.Equal(t, uint64(leastShed), h.Pools()[0].Discarded, "nothing was given back twice")
	require.Len(t, leaseHolders(t, leases), 10)
}

// TestSlotsGiveNamespaces: slots do not keep a Setup on another network from making its network namespace.
func TestSlotsGiveNamespaces(t *testing.T) {
	h, _ := pooledHost(t, 9)
	refused := fmt.Errorf("%w: %w", ErrLimit, os.NewSyscallError("unshare", unix.ENOSPC))
	require.True(t, lacksNamespaces(refused))
	require.False(t, lacksNamespaces(os.NewSyscallError("mount", unix.ENOSPC)), "slots have no mounts")
	attempts := 0
	setup := h.yielding("setup", func(context.Context) error {
		if attempts++; h.Pools()[0].Ready > 0 {
			return refused
		}
		return nil
	})
	require.NoError(t, setup(t.Context()))
	require.Equal(t, 3, attempts)
	require.ErrorIs(t, h.yielding("setup", func(context.Context) error { return refused })(t.Context()), ErrLimit, "there are no slots left")
	require.ErrorIs(t, h.yielding("update", func(context.Context) error { return refused })(t.Context()), ErrLimit)
}

// TestShedSlotOfAReusedDescriptor: the path of a slot that was shed leads to another network namespace, which its
// removal leaves alone.
func TestShedSlotOfAReusedDescriptor(t *testing.T) {
	h, leases := pooledHost(t, 1)
	p := h.pools[0]
	p.mu.Lock()
	shed := p.slots[0]
	p.mu.Unlock()
	number, err := strconv.Atoi(filepath.Base(shed.Netns))
	require.NoError(t, err)
	other, err := sandbox.New()
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, other.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"})
	}))
	require.NoError(t, other.With(func(fd int) error {
		require.Equal(t, 1, p.shed(time.Minute))
		again, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, number)
		require.Equal(t, number, again)
		return err
	}))
	defer unix.Close(number)
	require.Eventually(t, func() bool { return h.Pools()[0].Discarded == 1 }, 10*time.Second, time.Millisecond)
	require.NoError(t, other.Do(func() error {
		_, err := netlink.LinkByName("eth0")
		return err
	}))
	require.Empty(t, leaseHolders(t, leases))
	_, err = h.store.Get(shed.ID)
	require.ErrorIs(t, err, fs.ErrNotExist)
}
