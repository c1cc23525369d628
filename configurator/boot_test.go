package configurator

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// bootHost is a native host in boot "one", on which the network reclaims leases of earlier
// boots. backend is that of its firewall plugin, "" for the tables of allocnet.
func bootHost(t *testing.T, backend string) (h *testHost, leases string) {
	h, leases = nativeHost(t, "1.0.0", `{"type":"firewall","backend":"`+backend+`"}`, `{"type":"portmap","capabilities":{"portMappings":true}}`)
	file := filepath.Join(h.conf, "net.conflist")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	text = []byte(strings.Replace(string(text), `"type":"bridge",`, `"type":"bridge","capabilities":{"ips":true},`, 1))
	h.file("net.conflist", strings.Replace(string(text), `"type":"host-local",`, `"type":"host-local","reclaimOnBoot":true,`, 1))
	h.Configurator = h.booted("one")
	return h, filepath.Join(leases, "net")
}

// booted returns the configurator of another process with the same state, in a boot.
func (h *testHost) booted(id string) *Configurator {
	cfg := h.cfg
	cfg.Network, cfg.Pools = "", nil // Networks contains the network
	c := newConfigurator(h.t, cfg)
	c.boot = func() (string, error) { return id, nil }
	h.t.Cleanup(func() { require.NoError(h.t, c.Close()) })
	return c
}

// reboot removes the links and rules of the host, as a reboot does, and then runs the
// configurator in another boot. The network namespaces of the allocations stay, which
// stands for new ones at the same paths and with the same identities: the kernel of the next
// boot assigns the same numbers.
func (h *testHost) reboot(id string) {
	h.t.Helper()
	require.NoError(h.t, h.Close())
	h.powerOff()
	h.Configurator = h.booted(id)
}

func (h *testHost) powerOff() {
	h.t.Helper()
	for _, l := range hostLinks(h.t) {
		if l.Type() == "veth" || l.Type() == "bridge" {
			require.NoError(h.t, ignoreNoLink(netlink.LinkDel(l)))
		}
	}
	privhost.FlushRuleset(h.t)
}

// ignoreNoLink ignores that a link is gone, with its peer.
func ignoreNoLink(err error) error {
	if err != nil && strings.Contains(err.Error(), "no such device") {
		return nil
	}
	return err
}

// TestSetupAfterReboot: a record of an earlier boot does not count as a network, even if the
// path leads to a namespace of the same identity. Its Setup gets the same address again,
// although others come first.
func TestSetupAfterReboot(t *testing.T) {
	h, leases := bootHost(t, "")
	a, b := h.alloc("a"), h.alloc("b")
	was := map[string]string{}
	for _, one := range []Allocation{a, b} {
		s, err := h.Setup(t.Context(), one)
		require.NoError(t, err)
		was[one.ID] = s.Address
	}
	require.NoError(t, os.WriteFile(filepath.Join(leases, "10.77.0.99"), []byte("podman\r\neth0"), 0o600))

	h.reboot("two")
	require.ErrorIs(t, h.Check(t.Context(), a), ErrUnhealthy)
	r, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.True(t, r.NetnsGone)
	other, err := h.Setup(t.Context(), h.alloc("other"))
	require.NoError(t, err)
	require.NotContains(t, []string{was["a"], was["b"]}, other.Address)
	require.Equal(t, []string{"other", "podman"}, leaseHolders(t, leases))
	for _, one := range []Allocation{b, a} {
		s, err := h.Setup(t.Context(), one)
		require.NoError(t, err)
		require.True(t, s.Created)
		require.Equal(t, was[one.ID], s.Address)
		require.NoError(t, h.Check(t.Context(), one))
	}
	require.Equal(t, []string{"a", "b", "other", "podman"}, leaseHolders(t, leases))
}

// TestSetupAfterRebootWithoutRecord: so it is if the records were on a tmpfs.
func TestSetupAfterRebootWithoutRecord(t *testing.T) {
	h, leases := bootHost(t, "")
	a, b := h.alloc("a"), h.alloc("b")
	wanted := "10.77.0.50"
	b.IPs = []string{wanted}
	first, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	_, err = h.Setup(t.Context(), b)
	require.NoError(t, err)

	require.NoError(t, h.Close())
	require.NoError(t, os.RemoveAll(h.cfg.StateDir))
	h.reboot("two")
	_, err = h.Recover(t.Context())
	require.NoError(t, err)
	require.Empty(t, leaseHolders(t, leases), "Recover has reclaimed them")
	s, err := h.Setup(t.Context(), b)
	require.NoError(t, err)
	require.Equal(t, wanted, s.Address, "the requested address")
	s, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, first.Address, s.Address)
}

// TestTeardownAfterReboot: the removal of a record of an earlier boot does not touch the
// allocation that has its address by now, nor its connections.
func TestTeardownAfterReboot(t *testing.T) {
	for _, backend := range []string{"", "iptables"} {
		for name, teardown := range map[string]func(ctx context.Context, h *testHost, a Allocation) error{
			"teardown": func(ctx context.Context, h *testHost, a Allocation) error { return h.Teardown(ctx, a) },
			"gc": func(ctx context.Context, h *testHost, _ Allocation) error {
				_, err := h.GC(ctx, []string{"heir"})
				return err
			},
		} {
			t.Run(name+" "+backend, func(t *testing.T) { testTeardownAfterReboot(t, backend, teardown) })
		}
	}
}

func testTeardownAfterReboot(t *testing.T, backend string, teardown func(context.Context, *testHost, Allocation) error) {
	if backend == "iptables" {
		privhost.Require(t, "iptables")
	}
	h, leases := bootHost(t, backend)
	a := h.alloc("a")
	a.Ports = []portmap.Port{{Value: 8080, To: 80}}
	s, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.reboot("two")
	heir := h.alloc("heir")
	heir.IPs, heir.Ports = []string{s.Address}, []portmap.Port{{Value: 8081, To: 80}}
	got, err := h.Setup(t.Context(), heir)
	require.NoError(t, err)
	require.Equal(t, s.Address, got.Address)
	say := echo(t, heir, "127.0.0.1:8081")
	say("before")

	report, err := h.Repair(t.Context())
	require.Error(t, err, "a has no network any more")
	require.Equal(t, []string{"a"}, report.Broken)
	require.Error(t, dial("127.0.0.1:8080"), "the host port of a does not lead to the other allocation")
	require.NoError(t, teardown(t.Context(), h, a))
	h.settle()
	require.NoError(t, h.Check(t.Context(), heir))
	say("after")
	require.Equal(t, []string{"heir"}, leaseHolders(t, leases))
	ids, err := h.store.IDs()
	require.NoError(t, err)
	require.Equal(t, []string{"heir"}, ids)
}

// echo serves one connection in the network namespace of an allocation, and connects to it.
// The result sends a text over the connection and waits for the echo.
func echo(t *testing.T, a Allocation, address string) (say func(string)) {
	t.Helper()
	s, err := sandbox.Open(a.Netns)
	require.NoError(t, err)
	defer s.Close()
	var l net.Listener
	require.NoError(t, s.Do(func() (err error) {
		l, err = net.ListenTCP("tcp", &net.TCPAddr{Port: 80})
		return err
	}))
	t.Cleanup(func() { l.Close() })
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = io.Copy(c, c)
			c.Close()
		}
	}()
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return func(text string) {
		t.Helper()
		require.NoError(t, c.SetDeadline(time.Now().Add(5*time.Second)))
		_, err := c.Write([]byte(text))
		require.NoError(t, err)
		got := make([]byte, len(text))
		_, err = io.ReadFull(c, got)
		require.NoError(t, err)
		require.Equal(t, text, string(got))
	}
}

// TestSetupAfterRebootWithoutLink: a network without links on the host shows no sign of the
// reboot but the boot in the record.
func TestSetupAfterRebootWithoutLink(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.Network = "net" })
	h.network("net", "1.0.0", adds())
	h.Configurator = h.booted("one")
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, []string{"one ADD"}, h.commands())
	h.Configurator = h.booted("two")
	s, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.True(t, s.Created)
	require.Equal(t, []string{"one DEL", "one ADD"}, h.commands())
}

// TestForeignNetnsAfterReboot: a namespace that has the path and the identity of one of an
// earlier boot belongs to another allocation.
func TestForeignNetnsAfterReboot(t *testing.T) {
	h, _ := bootHost(t, "")
	a := Allocation{ID: "a", OwnNetns: true}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	path := filepath.Join(h.cfg.NetnsDir, "a")
	t.Cleanup(func() { _ = sandbox.Destroy(path) })
	h.reboot("two")
	report, err := h.PlanGC(t.Context(), Scope{DestroyNetns: true})
	require.NoError(t, err)
	require.Empty(t, report.Destroyed)
	_, err = h.Setup(t.Context(), Allocation{ID: "b", Netns: path})
	require.NoError(t, err, "it is not the namespace of a")
	require.NoError(t, h.Teardown(t.Context(), a))
	require.FileExists(t, path)
	require.NoError(t, h.Check(t.Context(), Allocation{ID: "b"}))
}

// TestMustBeNewAfterReboot: an allocation of an earlier boot counts as leftovers.
func TestMustBeNewAfterReboot(t *testing.T) {
	h, _ := bootHost(t, "")
	a := h.alloc("a")
	a.MustBeNew = true
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	_, err = h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrExists)
	h.reboot("two")
	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	differs := a
	differs.MustBeNew, differs.Args = false, map[string]string{"K": "v"}
	h.reboot("three")
	_, err = h.Setup(t.Context(), differs)
	require.ErrorIs(t, err, ErrDifferent)
	require.ErrorContains(t, err, "CNI_ARGS")
}

// TestPoolAfterReboot: the slots of an earlier boot disappear with their leases, and an
// allocation of that boot gets its address again instead of a slot.
func TestPoolAfterReboot(t *testing.T) {
	t.Setenv("TMPDIR", "/var/tmp") // a disk, while that of the other tests may be in memory
	h, leases := bootHost(t, "")
	h.pooled(2)
	n, err := h.lookup("net")
	require.NoError(t, err)
	skip.Unless(t, h.leasesSurvive(n), "%s is on a tmpfs, so no lease survives a reboot", leases)
	a := Allocation{ID: "a", OwnNetns: true}
	s, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, uint64(1), h.Pools()[0].Taken)
	h.full()
	ids, err := h.store.IDs()
	require.NoError(t, err)
	require.Len(t, ids, 3)

	// The host stops at once: nothing is removed in an orderly way.
	stopped := h.Configurator
	for _, p := range stopped.pools {
		p.stop()
		p.ended.Wait()
		for _, one := range p.takeAll(&p.slots) {
			require.NoError(t, one.sandbox.Close())
		}
		p.closed = true
		p.unlock()
	}
	require.NoError(t, sandbox.Destroy(filepath.Join(h.cfg.NetnsDir, "a")))
	h.reboot("two")
	_, err = h.Recover(t.Context())
	require.NoError(t, err)
	ids, err = h.store.IDs()
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, ids)
	require.Empty(t, leaseHolders(t, leases))

	require.NoError(t, h.Teardown(t.Context(), a)) // so that a pool could serve it
	h.pooled(2)
	again, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.Equal(t, s.Address, again.Address)
	require.Zero(t, h.Pools()[0].Taken)
	_, err = h.Setup(t.Context(), Allocation{ID: "new", OwnNetns: true})
	require.NoError(t, err)
	require.Equal(t, uint64(1), h.Pools()[0].Taken)
	for _, id := range []string{"a", "new"} {
		require.NoError(t, h.Teardown(t.Context(), Allocation{ID: id, OwnNetns: true}))
	}
}

// pooled gives the host's configurator a pool, which is full.
func (h *testHost) pooled(size int) {
	h.t.Helper()
	h.cfg.Pools = []Pool{{Network: "net", Size: size}}
	require.NoError(h.t, h.openPools())
	h.full()
}

// TestNoReclaimWithoutOptIn: in other networks, leases of earlier boots stay.
func TestNoReclaimWithoutOptIn(t *testing.T) {
	h, leases := nativeHost(t, "1.0.0")
	h.Configurator = h.booted("one")
	_, err := h.Setup(t.Context(), h.alloc("a"))
	require.NoError(t, err)
	require.NoError(t, h.Close())
	require.NoError(t, os.RemoveAll(h.cfg.StateDir))
	h.reboot("two")
	_, err = h.Recover(t.Context())
	require.NoError(t, err)
	_, err = h.Setup(t.Context(), h.alloc("b"))
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, leaseHolders(t, filepath.Join(leases, "net")))
}

// TestRecordNamesBoot: records of older versions, which name no boot, are not of an earlier
// one.
func TestRecordNamesBoot(t *testing.T) {
	h, _ := bootHost(t, "")
	_, err := h.Setup(t.Context(), h.alloc("a"))
	require.NoError(t, err)
	for boot, former := range map[string]bool{"": false, "one": false, "zero": true} {
		r, err := h.store.Get("a")
		require.NoError(t, err)
		r.Boot, r.Phase = boot, record.Ready
		require.NoError(t, h.store.Put(r))
		r, err = h.store.Get("a")
		require.NoError(t, err)
		require.Equal(t, former, r.FormerBoot, boot)
		list, err := h.store.List()
		require.NoError(t, err)
		require.True(t, slices.ContainsFunc(list, func(r *record.Record) bool { return r.ID == "a" && r.FormerBoot == former }))
	}
}
