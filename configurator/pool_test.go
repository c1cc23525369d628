package configurator

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// pooledHost is a native host with a pool, which is full.
func pooledHost(t *testing.T, size int) (h *testHost, leases string) {
	h, leases = nativeHost(t, "1.0.0", `{"type":"firewall"}`, `{"type":"portmap","capabilities":{"portMappings":true}}`)
	cfg := h.cfg
	cfg.Network, cfg.Pools = "", []Pool{{Network: "net", Size: size}}
	h.Configurator = newConfigurator(t, cfg)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	h.full()
	return h, filepath.Join(leases, "net")
}

// full waits until the pool is full.
func (h *testHost) full() {
	h.t.Helper()
	require.Eventually(h.t, func() bool { s := h.Pools()[0]; return s.Ready == s.Size }, time.Minute, time.Millisecond)
}

// untilReady is a context that ends when all of a slot is set up.
type untilReady struct {
	context.Context
	of *slot
}

func (c untilReady) Err() error {
	if c.of.Phase == record.Ready {
		return context.Canceled
	}
	return nil
}

func (c untilReady) Done() <-chan struct{} {
	if c.Err() == nil {
		return nil
	}
	ended := make(chan struct{})
	close(ended)
	return ended
}

// TestPoolClosedWhileASlotIsMade: nothing is left of a slot whose pool is closed between its ADD and
// the moment at which it can be taken.
func TestPoolClosedWhileASlotIsMade(t *testing.T) {
	h, leases := pooledHost(t, 1)
	ns, err := sandbox.New()
	require.NoError(t, err)
	s, err := h.planSlot(h.pools[0], ns)
	require.NoError(t, err)
	require.ErrorIs(t, h.setUpSlot(untilReady{t.Context(), s}, s), context.Canceled)
	require.NoError(t, ns.Close())
	require.NotContains(t, leaseHolders(t, leases), s.ID)
	require.Nil(t, h.linkOf(s.ID))
	records, err := h.store.IDs()
	require.NoError(t, err)
	require.NotContains(t, records, s.ID)
	require.Len(t, records, 1, "the slot of the pool")
}

// TestSetupFromPool: an allocation from a pool is one like any other.
func TestSetupFromPool(t *testing.T) {
	h, leases := pooledHost(t, 2)
	a := Allocation{ID: "a", OwnNetns: true, Ports: []portmap.Port{{Value: 8080, To: 80}}}
	ordinary := Allocation{ID: "b", OwnNetns: true, Ports: []portmap.Port{{Value: 8081, To: 80}}, Args: map[string]string{"MAC": "02:00:00:00:00:07"}}
	s, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	like, err := h.Setup(t.Context(), ordinary)
	require.NoError(t, err)
	require.Equal(t, uint64(1), h.Pools()[0].Taken, "arguments that a plugin reads are not served by a pool")
	require.True(t, s.Created)
	require.Equal(t, len(like.Interfaces), len(s.Interfaces))
	for i := range s.Interfaces {
		require.Equal(t, like.Interfaces[i].Sandbox == "", s.Interfaces[i].Sandbox == "")
		require.Equal(t, len(like.Interfaces[i].Addresses), len(s.Interfaces[i].Addresses))
	}
	require.Equal(t, filepath.Join(h.cfg.NetnsDir, "a"), s.Interfaces[2].Sandbox)
	require.NoError(t, h.Check(t.Context(), a))
	r, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Contains(t, leaseHolders(t, leases), r.ContainerID, "that of the slot")
	require.NotNil(t, h.linkOf(r.ContainerID))
	require.Equal(t, PhaseReady, r.Phase)
	require.Equal(t, found(s), r.Status)
	again, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, found(s), again)
	list, err := h.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 2, "slots are not listed")
	serve(t, a, 80)
	require.NoError(t, dial("127.0.0.1:8080"))

	require.NoError(t, h.Teardown(t.Context(), a))
	require.Error(t, dial("127.0.0.1:8080"))
	ordinary.Wait = true
	require.NoError(t, h.Teardown(t.Context(), ordinary))
	require.NoError(t, h.Close())
	require.Empty(t, leaseHolders(t, leases))
	require.Nil(t, h.linkOf(r.ContainerID))
	records, err := h.store.IDs()
	require.NoError(t, err)
	require.Empty(t, records)
	sandboxes, err := h.store.WithSandboxes()
	require.NoError(t, err)
	require.Empty(t, sandboxes)
	require.NoFileExists(t, filepath.Join(h.cfg.NetnsDir, "a"))
}

// TestTakenRecordLost: the network of a slot names the slot. If the record of the allocation
// is lost, Teardown finds the slot in the note about the network namespace, or by the links that
// lead into it, and GC spares it.
func TestTakenRecordLost(t *testing.T) {
	for name, lose := range map[string]func(file string) error{
		"removed":        os.Remove,
		"with all state": func(file string) error { return os.RemoveAll(filepath.Dir(filepath.Dir(file))) },
		"unreadable":     func(file string) error { return os.WriteFile(file, []byte("{"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			h, leases := pooledHost(t, 1)
			a := Allocation{ID: "a", OwnNetns: true, Ports: []portmap.Port{{Value: 8080, To: 80}}}
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			r, err := h.Get(t.Context(), "a")
			require.NoError(t, err)
			require.NoError(t, h.ClosePools())
			t.Cleanup(func() { require.NoError(t, sandbox.Destroy(r.Netns)) }) // nothing but the state says that allocnet made it
			require.NoError(t, lose(filepath.Join(h.cfg.StateDir, "allocs", "a.json")))
			_, _ = h.GC(t.Context(), []string{"a"}) // reports the record that cannot be read
			require.NotNil(t, h.linkOf(r.ContainerID))
			require.Contains(t, leaseHolders(t, leases), r.ContainerID)

			a.Wait, a.Netns = true, r.Netns
			require.NoError(t, h.Teardown(t.Context(), a))
			require.NoError(t, h.Close())
			require.Nil(t, h.linkOf(r.ContainerID))
			require.Empty(t, leaseHolders(t, leases))
		})
	}
}

// serve accepts connections in the network namespace of an allocation.
func serve(t *testing.T, a Allocation, port int) {
	s, err := sandbox.Open(filepath.Join(sandbox.DefaultDir, a.ID))
	require.NoError(t, err)
	defer s.Close()
	answerOn(t, s, port)
}

func dial(address string) error {
	c, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err == nil {
		err = c.Close()
	}
	return err
}

// TestPoolOfTheDefaultNetwork: a network is the same one by its name and as the default network,
// in the pool and in the request.
func TestPoolOfTheDefaultNetwork(t *testing.T) {
	for pooled, requested := range map[string][]string{"net": nil, "": {"net"}} {
		t.Run(pooled, func(t *testing.T) {
			h, _ := nativeHost(t, "1.0.0")
			cfg := h.cfg
			cfg.Network, cfg.Networks, cfg.Pools = "", nil, []Pool{{Network: pooled, Size: 1}}
			h.Configurator = newConfigurator(t, cfg)
			t.Cleanup(func() { require.NoError(t, h.Close()) })
			h.full()
			a := Allocation{ID: "a", OwnNetns: true, Networks: requested}
			other := Allocation{ID: "other", OwnNetns: true, Networks: []string{"allocnet"}}
			for _, one := range []Allocation{a, other} {
				s, err := h.Setup(t.Context(), one)
				require.NoError(t, err)
				again, err := h.Setup(t.Context(), one)
				require.NoError(t, err)
				require.Equal(t, found(s), again)
			}
			require.Equal(t, uint64(1), h.Pools()[0].Taken)
			for _, one := range []Allocation{a, other} {
				one.Wait = true
				require.NoError(t, h.Teardown(t.Context(), one))
			}
		})
	}
}

// TestPoolDry: without a slot, Setup is an ordinary one.
func TestPoolDry(t *testing.T) {
	h, _ := pooledHost(t, 1)
	for h.Pools()[0].Dry == 0 {
		a := Allocation{ID: "a", OwnNetns: true}
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		require.NoError(t, h.Check(t.Context(), a))
		b := Allocation{ID: "b", OwnNetns: true}
		_, err = h.Setup(t.Context(), b)
		require.NoError(t, err)
		for _, one := range []Allocation{a, b} {
			one.Wait = true
			require.NoError(t, h.Teardown(t.Context(), one))
		}
	}
	h.full()
}

// TestPoolNoticesFlush: slots without their rules are not handed out.
func TestPoolNoticesFlush(t *testing.T) {
	h, _ := pooledHost(t, 2)
	privhost.FlushRuleset(t)
	a := Allocation{ID: "a", OwnNetns: true, Ports: []portmap.Port{{Value: 8080, To: 80}}}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, h.Check(t.Context(), a))
	require.Positive(t, h.Pools()[0].Discarded)
	serve(t, a, 80)
	require.NoError(t, dial("127.0.0.1:8080"))
	a.Wait = true
	require.NoError(t, h.Teardown(t.Context(), a))
}

// TestPoolOfRoutes: the addresses of slots are announced while they wait, and a take restores
// what another program has removed.
func TestPoolOfRoutes(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"routes","table":100}`)
	cfg := h.cfg
	cfg.Network, cfg.Pools = "", []Pool{{Network: "net", Size: 2}}
	h.Configurator = newConfigurator(t, cfg)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	announced := func() int {
		out, _ := exec.Command("ip", "route", "show", "table", "100").Output() // fails without the table
		return strings.Count(string(out), "proto 91")
	}
	h.full()
	require.Equal(t, 2, announced())
	a := Allocation{ID: "a", OwnNetns: true}
	for taken := range uint64(2) {
		h.full()
		if taken == 1 {
			require.NoError(t, exec.Command("ip", "route", "flush", "table", "100").Run())
		}
		status, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, taken+1, h.Pools()[0].Taken)
		require.NoError(t, h.Check(t.Context(), a))
		require.NoError(t, h.Teardown(t.Context(), a))
		out, err := exec.Command("ip", "route", "show", "table", "100", status.Address).CombinedOutput()
		require.NoError(t, err)
		require.Empty(t, string(out), "Teardown has returned")
	}
	require.NoError(t, h.Close())
	require.Zero(t, announced())
}

// TestPoolDrains: when the configuration of a network changes, or the network is removed, its
// slots go.
func TestPoolDrains(t *testing.T) {
	h, leases := pooledHost(t, 2)
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"brtest","isGateway":true,"mtu":1400,
		"ipam":{"type":"host-local","dataDir":"`+filepath.Dir(leases)+`","subnet":"10.77.0.0/24"}}]}`)
	a := Allocation{ID: "a", OwnNetns: true}
	s, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, 1400, s.Interfaces[2].MTU)
	require.Eventually(t, func() bool { return h.Pools()[0].Discarded == 2 }, 10*time.Second, 5*time.Millisecond)
	h.full()
	require.NoError(t, os.Remove(filepath.Join(h.conf, "net.conflist")))
	require.Eventually(t, func() bool { return h.Pools()[0].Discarded == 4 }, 10*time.Second, 5*time.Millisecond)
	a.Wait = true
	require.NoError(t, h.Teardown(t.Context(), a))
	require.Empty(t, leaseHolders(t, leases))
}

// TestSlotsOfOthers: GC, Recover and Repair, of all scopes and of one, leave the slots of a
// living process alone, and Recover and GC remove those of a dead one.
func TestSlotsOfOthers(t *testing.T) {
	recover := func(s Scope) func(*testing.T, *Configurator) []string {
		return func(t *testing.T, c *Configurator) []string {
			report, err := c.RecoverScope(t.Context(), s)
			require.NoError(t, err)
			return report.Removed
		}
	}
	collect := func(s Scope) func(*testing.T, *Configurator) []string {
		return func(t *testing.T, c *Configurator) []string {
			report, err := c.GCScope(t.Context(), s)
			require.NoError(t, err)
			return report.Removed
		}
	}
	for name, remove := range map[string]func(*testing.T, *Configurator) []string{
		"recover": recover(Scope{}), "recover scope": recover(Scope{Name: "other"}),
		"gc": collect(Scope{}), "gc scope": collect(Scope{Name: "other"}),
	} {
		t.Run(name, func(t *testing.T) {
			h, leases := pooledHost(t, 2)
			other := h.restarted()
			require.NoError(t, other.ClosePools())
			for range 2 {
				require.Empty(t, remove(t, other))
				_, err := other.Repair(t.Context())
				require.NoError(t, err)
			}
			require.Len(t, leaseHolders(t, leases), 2)
			h.abandonPool(t)
			_, err := other.RepairScope(t.Context(), Scope{Name: "other"})
			require.NoError(t, err)
			require.Len(t, remove(t, other), 2)
			require.Empty(t, leaseHolders(t, leases))
			ids, err := other.store.IDs()
			require.NoError(t, err)
			require.Empty(t, ids)
		})
	}
}

// abandonPool releases what the kernel releases when the process of a pool dies: its lock
// and its descriptors.
func (h *testHost) abandonPool(t *testing.T) {
	t.Helper()
	p := h.pools[0]
	p.stop()
	p.ended.Wait()
	for _, s := range p.takeAll(&p.slots) {
		require.NoError(t, s.sandbox.Close())
	}
	p.unlock()
	p.closed = true
}

// TestTakeRefused: a request that an ordinary Setup refuses leaves the pool as it was.
func TestTakeRefused(t *testing.T) {
	h, _ := pooledHost(t, 1)
	a := Allocation{ID: "a", OwnNetns: true, Ports: []portmap.Port{{Value: 8080, To: 80}}}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.full()
	b := a
	b.ID = "b"
	_, err = h.Setup(t.Context(), b)
	require.ErrorIs(t, err, portmap.ErrConflict)
	s := h.Pools()[0]
	require.Equal(t, []uint64{1, 0}, []uint64{s.Taken, s.Discarded})
	require.Equal(t, 1, s.Ready)
	require.NoFileExists(t, filepath.Join(h.cfg.NetnsDir, "b"))
	_, err = h.store.Get("b")
	require.Error(t, err)
	slots, err := h.store.IDs()
	require.NoError(t, err)
	require.Len(t, slots, 2, "the allocation and the slot")
	a.Wait = true
	require.NoError(t, h.Teardown(t.Context(), a))
}

// TestSlotsYield: a network whose last addresses the pool has gives them to a Setup.
func TestSlotsYield(t *testing.T) {
	h, leases := pooledHost(t, 2)
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"brtest","isGateway":true,
		"ipam":{"type":"host-local","dataDir":"`+filepath.Dir(leases)+`","ranges":[[{"subnet":"10.77.0.0/24","rangeStart":"10.77.0.8","rangeEnd":"10.77.0.9"}]]}}]}`)
	require.Eventually(t, func() bool { return h.Pools()[0].Discarded == 2 }, 10*time.Second, 5*time.Millisecond)
	h.full()
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, uint64(4), h.Pools()[0].Discarded)
	a.Wait = true
	require.NoError(t, h.Teardown(t.Context(), a))
	h.full()
}

// TestDamagedSlots: Restore has the slots checked. Damaged ones are discarded and replaced, and
// the others stay.
func TestDamagedSlots(t *testing.T) {
	h, _ := pooledHost(t, 3)
	p := h.pools[0]
	p.mu.Lock()
	damaged, whole := p.slots[0], slices.Clone(p.slots[1:])
	p.mu.Unlock()
	require.NoError(t, netlink.LinkDel(h.linkOf(damaged.ID)))
	_, err := h.Restore(t.Context())
	require.NoError(t, err)
	require.Eventually(t, func() bool { s := h.Pools()[0]; return s.Discarded == 1 && s.Ready == 3 }, 10*time.Second, time.Millisecond)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range whole {
		require.Contains(t, p.slots, s)
	}
}

// TestDamagedSlotOfACheck: a notification about the link of a slot leads to CheckAndRepair,
// which has the slots checked.
func TestDamagedSlotOfACheck(t *testing.T) {
	h, _ := pooledHost(t, 1)
	id := h.pools[0].slots[0].ID
	require.NoError(t, netlink.LinkDel(h.linkOf(id)))
	_, err := h.CheckAndRepair(t.Context(), id)
	require.ErrorIs(t, err, ErrNotFound)
	require.Eventually(t, func() bool { s := h.Pools()[0]; return s.Discarded == 1 && s.Ready == 1 }, 10*time.Second, time.Millisecond)
}

// TestPoolImpossible: a network of which not all rules can be seen to be there has no slots, and
// leaves nothing. Setup is an ordinary one.
func TestPoolImpossible(t *testing.T) {
	h, leases := pooledHost(t, 1)
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"brtest","isGateway":true,"ipMasq":true,"ipMasqBackend":"iptables",
		"ipam":{"type":"host-local","dataDir":"`+filepath.Dir(leases)+`","subnet":"10.77.0.0/24"}}]}`)
	require.Eventually(t, func() bool { return h.Pools()[0].Err != nil }, 20*time.Second, time.Millisecond)
	require.ErrorContains(t, h.Pools()[0].Err, "cannot have a pool")
	a := Allocation{ID: "a", OwnNetns: true, Wait: true}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), a))
	require.NoError(t, h.ClosePools())
	require.Empty(t, leaseHolders(t, leases))
	ids, err := h.store.IDs()
	require.NoError(t, err)
	require.Empty(t, ids)
	notes, err := h.store.WithSandboxes()
	require.NoError(t, err)
	require.Empty(t, notes)
}

// TestPoolOfAnotherResolvConf: what Setup would now read differently is not handed out.
func TestPoolOfAnotherResolvConf(t *testing.T) {
	h, leases := pooledHost(t, 1)
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	require.NoError(t, os.WriteFile(resolv, []byte("nameserver 10.0.0.53\n"), 0o600))
	h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"brtest","isGateway":true,
		"ipam":{"type":"host-local","dataDir":"`+filepath.Dir(leases)+`","subnet":"10.77.0.0/24","resolvConf":"`+resolv+`"}}]}`)
	require.Eventually(t, func() bool { s := h.Pools()[0]; return s.Discarded == 1 && s.Ready == 1 }, 10*time.Second, time.Millisecond)
	require.NoError(t, os.WriteFile(resolv, []byte("nameserver 10.0.0.54\n"), 0o600))
	for range 3 {
		a := Allocation{ID: "a", OwnNetns: true, Wait: true}
		s, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, []string{"10.0.0.54"}, s.DNS.Servers)
		require.NoError(t, h.Teardown(t.Context(), a))
		h.full()
	}
}

// TestPoolNoticesLostLease: a slot whose lease was removed is not handed out. Another container can have its
// address, and keeps that.
func TestPoolNoticesLostLease(t *testing.T) {
	for _, others := range [][]string{nil, {"other"}} {
		h, leases := pooledHost(t, 1)
		addr := h.pools[0].slots[0].request.Attachments[0].Result.IPs[0].Address.IP.String()
		require.NoError(t, os.Remove(filepath.Join(leases, addr)))
		for _, other := range others {
			require.NoError(t, os.WriteFile(filepath.Join(leases, addr), []byte(other+"\r\neth0"), 0o600))
		}
		a := Allocation{ID: "a", OwnNetns: true, Wait: true}
		s, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		require.NoError(t, h.Check(t.Context(), a))
		require.NotEqual(t, addr, s.Address)
		require.Equal(t, uint64(1), h.Pools()[0].Discarded)
		require.NoError(t, h.Teardown(t.Context(), a))
		require.NoError(t, h.ClosePools())
		require.Equal(t, others, leaseHolders(t, leases))
		require.NoError(t, h.Close())
	}
}

// TestPutBackAfterClose: a slot that a Setup returns after the pools were closed is removed.
func TestPutBackAfterClose(t *testing.T) {
	h, leases := pooledHost(t, 1)
	p := h.pools[0]
	s := p.take()
	require.NoError(t, h.ClosePools())
	require.Len(t, leaseHolders(t, leases), 1)
	require.True(t, h.store.PoolAlive(p.key))
	h.putBack(p, s)
	require.False(t, h.store.PoolAlive(p.key))
	require.Empty(t, leaseHolders(t, leases))
	ids, err := h.store.IDs()
	require.NoError(t, err)
	require.Empty(t, ids)
}

// TestSlotWithoutRecord: a slot whose record is missing is discarded, and Setup makes the network
// itself.
func TestSlotWithoutRecord(t *testing.T) {
	h, leases := pooledHost(t, 1)
	lost := h.pools[0].slots[0].ID
	require.NoError(t, os.Remove(filepath.Join(h.cfg.StateDir, "allocs", lost+".json")))
	a := Allocation{ID: "a", OwnNetns: true, Ports: []portmap.Port{{Value: 8080, To: 80}}, Wait: true}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, h.Check(t.Context(), a))
	r, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Empty(t, r.ContainerID, "not from the pool")
	require.NotContains(t, leaseHolders(t, leases), lost)
	require.Nil(t, h.linkOf(lost))
	require.NoError(t, h.Teardown(t.Context(), a))

	h.full()
	taken := h.Pools()[0].Taken
	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, taken+1, h.Pools()[0].Taken)
	require.NoError(t, h.Check(t.Context(), a))
	require.NoError(t, h.Teardown(t.Context(), a))
}

// TestLockedSlot: a slot that another operation works on, which may remove it, is not taken.
func TestLockedSlot(t *testing.T) {
	h, _ := pooledHost(t, 1)
	id, other := h.pools[0].slots[0].ID, h.restarted()
	require.NoError(t, other.ClosePools())
	unlock, err := other.lock(t.Context(), id)
	require.NoError(t, err)
	r, err := other.store.Get(id)
	require.NoError(t, err)
	a := Allocation{ID: "a", OwnNetns: true, Wait: true}
	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, other.remove(t.Context(), other.planToRemove(r)))
	unlock()
	require.NoError(t, h.Check(t.Context(), a))
	b := Allocation{ID: "b", OwnNetns: true, Wait: true}
	_, err = h.Setup(t.Context(), b)
	require.NoError(t, err)
	for _, one := range []Allocation{a, b} {
		require.NoError(t, h.Check(t.Context(), one))
		require.NoError(t, h.Teardown(t.Context(), one))
	}
}

// atTake calls a function when a Setup has got a slot.
type atTake struct{ do func() }

func (o *atTake) Begin(ctx context.Context, s Step) context.Context {
	if s.Name == StepTake {
		o.do()
	}
	return ctx
}

func (*atTake) End(context.Context, Step, error) {}

// TestPoolClosedWhileASlotIsTaken: the slot stays that of a living pool until the Setup ends,
// also for other processes.
func TestPoolClosedWhileASlotIsTaken(t *testing.T) {
	h, leases := pooledHost(t, 1)
	o := &atTake{}
	other := h.restarted()
	require.NoError(t, other.ClosePools())
	key := h.pools[0].key
	o.do = func() {
		require.NoError(t, h.ClosePools())
		require.True(t, other.store.PoolAlive(key))
		report, err := other.GC(t.Context(), []string{"a"})
		require.NoError(t, err)
		require.Empty(t, report.Removed)
	}
	a := Allocation{ID: "a", OwnNetns: true, Wait: true}
	h.Configurator.cfg.Observer = o
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.False(t, other.store.PoolAlive(key))
	require.NoError(t, h.Check(t.Context(), a))
	r, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.NotEmpty(t, r.ContainerID, "from the pool")
	require.NoError(t, h.Teardown(t.Context(), a))
	require.Empty(t, leaseHolders(t, leases))
}

// TestPoolClosedWhileASlotFails: ClosePools also removes what is left of a slot whose preparation fails
// meanwhile.
func TestPoolClosedWhileASlotFails(t *testing.T) {
	h, leases := pooledHost(t, 1)
	p := h.pools[0]
	ns, err := sandbox.New()
	require.NoError(t, err)
	s, err := h.planSlot(p, ns)
	require.NoError(t, err)
	require.NoError(t, h.setUpSlot(t.Context(), s))
	p.mu.Lock()
	p.places++ // as in awaitRoom
	p.mu.Unlock()
	stop := p.stop
	p.stop = func() { stop(); p.giveUp(s, errors.New("not rolled back")) }
	require.NoError(t, h.ClosePools())
	require.Empty(t, leaseHolders(t, leases))
	require.Nil(t, h.linkOf(s.ID))
	h.requireNoRecords()
	other := h.restarted()
	require.NoError(t, other.ClosePools())
	require.False(t, other.store.PoolAlive(p.key))
}

// TestSlotsRouteLoopback: a slot is ready for a host port on 127.0.0.1, and guarded. If
// another program has changed its links since, Bind makes it ready again.
func TestSlotsRouteLoopback(t *testing.T) {
	for _, changed := range []bool{false, true} {
		h, _ := pooledHost(t, 1)
		file := "/proc/sys/net/ipv4/conf/brtest/route_localnet"
		value, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, "1\n", string(value))
		require.NoError(t, exec.Command("nft", "list", "table", "ip", names.GuardTable).Run())
		if changed {
			require.NoError(t, os.WriteFile(file, []byte("0"), 0o600))
			require.NoError(t, exec.Command("ip", "link", "set", "brtest", "down").Run())
			_, err := h.native.Restore(t.Context(), nil) // forgets what was found in place
			require.NoError(t, err)
		}
		a := Allocation{ID: "a", OwnNetns: true, Ports: []portmap.Port{{Value: 8080, To: 80}}, Wait: true}
		_, err = h.Setup(t.Context(), a)
		require.NoError(t, err)
		require.Equal(t, uint64(1), h.Pools()[0].Taken)
		serve(t, a, 80)
		require.NoError(t, dial("127.0.0.1:8080"))
		require.NoError(t, h.Teardown(t.Context(), a))
		require.NoError(t, h.Close())
	}
}

// TestSlotsUnchanged: what this process does with other allocations does not make a take look
// at the host; what another program does to the network does.
func TestSlotsUnchanged(t *testing.T) {
	h, _ := pooledHost(t, 2)
	unchanged := func() (n int) {
		p := h.pools[0]
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, s := range p.slots {
			if h.isUnchanged(s) {
				n++
			}
		}
		return n
	}
	require.Equal(t, 2, unchanged())
	for _, args := range []map[string]string{nil, {"MAC": "02:00:00:00:00:07"}} { // from the pool, and not
		a := Allocation{ID: "a", OwnNetns: true, Ports: []portmap.Port{{Value: 8080, To: 80}}, Args: args, Wait: true}
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		require.NoError(t, h.Teardown(t.Context(), a))
		h.full()
		require.Equal(t, 2, unchanged())
	}
	require.NoError(t, exec.Command("ip", "link", "set", "brtest", "down").Run())
	require.Zero(t, unchanged())
}

// TestPlaces: a slot has its place from the beginning of its preparation until it is bound or removed,
// whatever happens in between. So a pool never prepares more slots than its size.
func TestPlaces(t *testing.T) {
	p := &pool{Pool: Pool{Size: 1}, wake: make(chan struct{}, 1), tend: make(chan struct{}, 1)}
	room := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		return p.awaitRoom(ctx)
	}
	all := func(*slot) bool { return true }
	s := &slot{}
	require.True(t, room())
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"being prepared", func() {}},
		{"ready", func() { p.put(s) }},
		{"being checked", func() { require.True(t, p.borrow(s)) }},
		{"checked", func() { p.giveBack(s) }},
		{"with a Setup", func() { require.Equal(t, s, p.take()) }},
		{"not used", func() { require.True(t, p.putBack(s)) }},
		{"to be discarded", p.discardAll},
		{"being discarded", func() { require.Len(t, p.takeAll(&p.pending), 1) }},
		{"not removed", func() { p.notRemoved([]*slot{s}) }},
		{"being removed again", func() { require.Len(t, p.takeAll(&p.failed), 1) }},
		{"not removed again", func() { p.notRemoved([]*slot{s}) }},
	} {
		step.do()
		require.False(t, room(), step.name)
	}
	p.removed()
	require.True(t, room(), "removed")
	p.giveUp(s, nil)
	require.False(t, room(), "not prepared, but something is left")
	p.removed()
	require.True(t, room())
	p.giveUp(nil, nil)
	require.True(t, room(), "nothing is left")
	p.put(s)
	require.Len(t, p.takeIf(all), 1)
	require.False(t, room(), "of a former configuration")
	p.put(s)
	require.Equal(t, s, p.take())
	p.bound()
	require.True(t, room(), "bound")
}

// TestSlotNotRemoved: what a pool cannot remove of its slots, it removes later. Recover can as well, also
// while the process of the pool lives.
func TestSlotNotRemoved(t *testing.T) {
	for _, by := range []string{"the pool", "Recover", "Close and Recover"} {
		t.Run(by, func(t *testing.T) {
			h, leases := pooledHost(t, 2)
			slots, err := h.store.IDs()
			require.NoError(t, err)
			require.Len(t, slots, 2)
			require.NoError(t, os.Rename(leases, leases+".away"))
			require.NoError(t, os.WriteFile(leases, nil, 0o600))
			p := h.pools[0]
			notRemoved := func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				return len(p.failed) == len(slots)
			}
			p.discardAll()
			require.Eventually(t, notRemoved, 10*time.Second, time.Millisecond)
			ids, err := h.store.IDs()
			require.NoError(t, err)
			require.ElementsMatch(t, slots, ids, "no others were prepared")
			if by == "Close and Recover" {
				require.Error(t, h.ClosePools())
			}
			require.NoError(t, os.Remove(leases))
			require.NoError(t, os.Rename(leases+".away", leases))
			gone := func() bool {
				ids, err := h.store.IDs()
				require.NoError(t, err)
				return !slices.ContainsFunc(slots, func(id string) bool { return slices.Contains(ids, id) })
			}
			if by == "the pool" {
				require.Eventually(t, gone, 20*time.Second, 20*time.Millisecond)
			} else {
				other := h.restarted()
				require.NoError(t, other.ClosePools())
				_, err := other.Recover(t.Context())
				require.NoError(t, err)
				require.True(t, gone())
			}
			if by != "Close and Recover" {
				h.full()
			}
			require.NoError(t, h.Close())
			require.Empty(t, leaseHolders(t, leases))
			h.requireNoRecords()
		})
	}
}

// ended has the operations that have ended.
type ended struct {
	mu   sync.Mutex
	list []Step
}

func (e *ended) Begin(ctx context.Context, _ Step) context.Context { return ctx }

func (e *ended) End(_ context.Context, s Step, _ error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.Name == "" {
		e.list = append(e.list, s)
	}
}

// TestObserverOfATake: the Observer gets the networks and the engine of a Setup from a pool.
func TestObserverOfATake(t *testing.T) {
	h, _ := pooledHost(t, 1)
	observer := &ended{}
	h.cfg.Observer = observer
	a := Allocation{ID: "a", OwnNetns: true, Wait: true}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, uint64(1), h.Pools()[0].Taken)
	require.Equal(t, []Step{{Operation: "setup", ID: "a", Networks: []string{"net"}, Engine: EngineNative}}, observer.list)
	require.NoError(t, h.Teardown(t.Context(), a))
}
