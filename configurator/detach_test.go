package configurator

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/plan"
	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// bridged writes a conflist with one fake plugin. Its type is one that cleanup
// knows, and its leases are in the returned directory.
func (h *testHost) bridged(name string, b behaviours) (leases string) {
	h.t.Helper()
	require.NoError(h.t, fakeplugin.Install(h.bin, "bridge", "host-local"))
	dir := filepath.Join(h.dir, "leases")
	text := strings.Replace(h.conflist(name, "1.0.0", nil, b), `"type":"one"`,
		fmt.Sprintf(`"type":"bridge","ipam":{"type":"host-local","dataDir":%q}`, dir), 1)
	h.file(name+".conflist", text)
	leases = filepath.Join(dir, name)
	require.NoError(h.t, os.MkdirAll(leases, 0o755))
	return leases
}

// writeLease writes a lease of an allocation in host-local's format.
func writeLease(t *testing.T, dir, ip, id string) string {
	t.Helper()
	file := filepath.Join(dir, ip)
	require.NoError(t, os.WriteFile(file, []byte(id+"\r\neth0"), 0o600))
	return file
}

// TestInterruptedIsSaidToTheEngine: the engine searches for running plugins
// only after a crash.
func TestInterruptedIsSaidToTheEngine(t *testing.T) {
	for name, c := range map[string]struct {
		before func(*testing.T, *testHost)
		want   bool
	}{
		"an orderly end":     {func(*testing.T, *testHost) {}, false},
		"a crash in ADD":     {func(t *testing.T, h *testHost) { h.setPhase("a", record.Adding) }, true},
		"a crash in DEL":     {func(t *testing.T, h *testHost) { h.setPhase("a", record.Deleting) }, true},
		"the record is lost": {func(t *testing.T, h *testHost) { require.NoError(t, h.store.Delete("a")) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			h.network("net", "1.0.0", adds())
			a := h.alloc("a")
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			c.before(t, h)
			spy := h.spy()
			var got []bool
			spy.del = func(_ context.Context, r *engine.Request) error {
				got = append(got, r.Interrupted)
				return nil
			}
			require.NoError(t, h.Teardown(t.Context(), a))
			require.Equal(t, []bool{c.want}, got)
		})
	}
}

func (h *testHost) setPhase(id string, phase record.Phase) {
	h.t.Helper()
	h.changeRecord(id, func(r *record.Record) { r.Phase = phase })
}

// changeRecord changes an allocation's record, as another version or a crash
// may leave it.
func (h *testHost) changeRecord(id string, change func(*record.Record)) {
	h.t.Helper()
	r, err := h.store.Get(id)
	require.NoError(h.t, err)
	change(r)
	require.NoError(h.t, h.store.Put(r))
}

// TestCorruptRecordIsKept: a corrupt record is kept until all objects of its
// allocation are gone.
func TestCorruptRecordIsKept(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds(behaviours{"DEL": {Code: 100, Msg: "del trouble", Only: 2}}))
	file := filepath.Join(h.cfg.StateDir, "allocs", "a.json")
	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrIncomplete)
	require.FileExists(t, file)
	require.NotContains(t, h.commands(), "one ADD")
	require.ErrorIs(t, h.Teardown(t.Context(), a), ErrIncomplete)
	require.FileExists(t, file)
	require.NoError(t, h.Teardown(t.Context(), a))
	require.NoFileExists(t, file)
}

// TestAddressesAreRecordedBeforeDel: if no result contains the addresses, they
// are recorded before DEL. DEL releases the lease, the only other place that
// has them, and may fail afterwards.
func TestAddressesAreRecordedBeforeDel(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.Retry.Attempts = 1 })
	leases := h.bridged("net", adds(behaviours{"ADD": {Code: 7, Msg: "no"}}))
	writeLease(t, leases, "10.9.9.9", "a")
	spy := h.spy()
	var known [][]cleanup.Address
	spy.del = func(context.Context, *engine.Request) error {
		r, err := h.store.Get("a")
		require.NoError(t, err)
		known = append(known, r.Addresses)
		return errors.New("del trouble")
	}
	_, err := h.Setup(t.Context(), h.alloc("a"))
	require.ErrorContains(t, err, "no")
	require.Equal(t, [][]cleanup.Address{{{Network: "net", IP: netip.MustParseAddr("10.9.9.9")}}}, known)
	require.NoFileExists(t, filepath.Join(leases, "10.9.9.9"), "force gave it back")
}

// TestAddressesThatCannotBeRecorded: if addresses cannot be recorded, a
// successful DEL is still sufficient.
func TestAddressesThatCannotBeRecorded(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.Retry.Attempts = 1 })
	h.network("net", "1.0.0", adds())
	leases := "/var/lib/cni/networks/net" // possible place for leases of an unknown plugin
	require.NoError(t, os.MkdirAll(leases, 0o755))
	held := writeLease(t, leases, "10.9.9.9", "a")
	records := filepath.Join(h.cfg.StateDir, "allocs")
	spy := h.spy()
	spy.add = func(context.Context, *engine.Request) ([]*types100.Result, error) {
		require.NoError(t, unix.Mount("", records, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
		return []*types100.Result{nil}, errors.New("add trouble")
	}
	spy.del = func(context.Context, *engine.Request) error {
		require.NoError(t, os.Remove(held))
		return unix.Mount("", records, "", unix.MS_REMOUNT|unix.MS_BIND, "")
	}
	require.NoError(t, os.MkdirAll(records, 0o700))
	require.NoError(t, unix.Mount(records, records, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(records, unix.MNT_DETACH)) })
	_, err := h.Setup(t.Context(), h.alloc("a"))
	require.ErrorContains(t, err, "add trouble")
	require.NotErrorIs(t, err, ErrIncomplete)
	h.requireNoRecords()
}

// TestForceAfterTheDeadline: forced cleanup has some time of its own after the
// deadline.
func TestForceAfterTheDeadline(t *testing.T) {
	var forced []Leftover
	h := newTestHost(t, func(c *Config) { c.OnForced = func(_ string, l []Leftover) { forced = append(forced, l...) } })
	leases := h.bridged("net", adds())
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	held := writeLease(t, leases, "10.9.9.9", "a")
	ctx, cancel := context.WithCancel(t.Context())
	h.spy().del = func(ctx context.Context, _ *engine.Request) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}
	require.NoError(t, h.Teardown(ctx, a), "nothing is left, whatever became of DEL")
	require.NoFileExists(t, held)
	require.Len(t, forced, 1)
	h.requireNoRecords()
}

// TestAuditAfterADelThatLies: an audit follows a DEL that wrongly reports
// success.
func TestAuditAfterADelThatLies(t *testing.T) {
	h := newTestHost(t)
	leases := h.bridged("net", adds())
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	held := writeLease(t, leases, "10.9.9.9", "a")
	require.NoError(t, h.Teardown(t.Context(), a))
	require.NoFileExists(t, held)
}

// TestWhatNobodyCanRemove: objects that cannot be removed are named in the
// error, and the record is kept.
func TestWhatNobodyCanRemove(t *testing.T) {
	h := newTestHost(t)
	leases := h.bridged("net", adds())
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, unix.Mount("tmpfs", leases, "tmpfs", 0, ""))
	defer unix.Unmount(leases, unix.MNT_DETACH)
	held := writeLease(t, leases, "10.9.9.9", "a")
	require.NoError(t, unix.Mount("", leases, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	err = h.Teardown(t.Context(), a)
	require.ErrorIs(t, err, ErrIncomplete)
	require.ErrorIs(t, err, unix.EROFS)
	var left *LeftoverError
	require.ErrorAs(t, err, &left)
	require.Equal(t, "a", left.ID)
	require.Equal(t, held, filepath.Join(left.Leftovers[0].Where, filepath.Base(left.Leftovers[0].Object)))
	require.ErrorContains(t, err, "10.9.9.9")
	r, err := h.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, PhaseDeleting, r.Phase)
	removed, err := h.Force(t.Context(), a)
	require.ErrorIs(t, err, ErrIncomplete)
	require.Empty(t, removed)

	require.NoError(t, unix.Mount("", leases, "", unix.MS_REMOUNT, ""))
	removed, err = h.Force(t.Context(), a)
	require.NoError(t, err)
	require.Len(t, removed, 1)
	h.requireNoRecords()
}

// TestConntrackIsFlushed: a client's UDP stream must not continue to the
// address of a removed allocation.
func TestConntrackIsFlushed(t *testing.T) {
	for name, end := range map[string]func(*testHost, Allocation) error{
		"Teardown": func(h *testHost, a Allocation) error { return h.Teardown(h.t.Context(), a) },
		"Force": func(h *testHost, a Allocation) error {
			h.setPhase(a.ID, record.Deleting)
			_, err := h.Force(h.t.Context(), a)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t, func(c *Config) {
				c.OnForced = func(_ string, l []Leftover) { t.Errorf("%v is no fault of DEL", l) }
			})
			h.bridged("net", adds(behaviours{"ADD": {Result: []byte(strings.ReplaceAll(result, "127.0.0.1/8", "10.9.9.9/24"))}}))
			a := h.alloc("a")
			a.Ports = []portmap.Port{{Value: 5353, Protocols: []string{"udp"}}}
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			host, client, own := net.IPv4(192, 0, 2, 1).To4(), net.IPv4(192, 0, 2, 9).To4(), net.IPv4(10, 9, 9, 9).To4()
			flow := &netlink.ConntrackFlow{
				FamilyType: unix.AF_INET, TimeOut: 600,
				Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: client, SrcPort: 999, DstIP: host, DstPort: 5353},
				Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: own, SrcPort: 5353, DstIP: client, DstPort: 999},
			}
			require.NoError(t, netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, flow))
			require.NoError(t, end(h, a))
			flows, err := retry.List(func() ([]*netlink.ConntrackFlow, error) {
				return netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
			})
			require.NoError(t, err)
			for _, f := range flows {
				require.NotEqual(t, uint16(999), f.Forward.SrcPort)
			}
		})
	}
}

// TestCleanupTarget: cleanup gets everything that the record contains.
func TestCleanupTarget(t *testing.T) {
	address := cleanup.Address{Network: "a", IP: netip.MustParseAddr("10.0.0.2")}
	port := portmap.Mapping{HostPort: 1, ContainerPort: 2, Protocol: "tcp"}
	a := newTestHost(t).alloc("x")
	ns, err := sandbox.Open(a.Netns)
	require.NoError(t, err)
	defer ns.Close()
	got := (&Configurator{}).cleanupTarget(&plan.Plan{Record: &record.Record{
		ID: "x", Netns: a.Netns, Sandbox: ns, Ports: []portmap.Mapping{port}, Addresses: []cleanup.Address{address},
		Attachments: []record.Attachment{{Network: "a", IfName: "eth0", Config: []byte("{}"), Result: []byte("{ }")}, {Network: "b", IfName: "eth1"}},
	}})
	require.Equal(t, cleanup.Target{
		ID: "x", Netns: ns.ProcPath(), Ports: []portmap.Mapping{port}, Addresses: []cleanup.Address{address},
		Attachments: []cleanup.Attachment{{Network: "a", IfName: "eth0", Config: []byte("{}"), Result: []byte("{ }")}, {Network: "b", IfName: "eth1"}},
		Instance:    new(string),
		CacheDirs:   []string{libcni.CacheDir},
	}, got)
}

// TestGCSparesWhatWasSetUpAgain: GC keeps an allocation that was set up after
// GC began, under an ID that was not live before.
func TestGCSparesWhatWasSetUpAgain(t *testing.T) {
	h := newTestHost(t)
	h.concurrency = 1
	h.network("net", "1.0.0", adds())
	again := h.alloc("b")
	for _, a := range []Allocation{h.alloc("a"), again} {
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
	}
	other := newConfigurator(t, h.cfg)
	spy := h.spy()
	once := false
	spy.del = func(ctx context.Context, r *engine.Request) error {
		if r.ID == "a" && !once {
			once = true
			require.NoError(t, other.Teardown(t.Context(), again))
			_, err := other.Setup(t.Context(), again)
			require.NoError(t, err)
		}
		return spy.Engine.Del(ctx, r)
	}
	report, err := h.GC(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, report.Removed)
	require.Equal(t, []string{"b"}, report.Kept)
	require.NoError(t, h.Check(t.Context(), again))
}

func TestGCSparesWhatIsNoRecord(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	file := filepath.Join(h.cfg.StateDir, "allocs", "-x.json")
	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	report, err := h.GC(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, report.Removed)
	require.Empty(t, h.commands())
	require.FileExists(t, file)
}

// TestGCOfANetworkThatLeftTheDirectory: GC runs the plugins of a network whose
// file was removed, because they may have resources of its allocations.
func TestGCOfANetworkThatLeftTheDirectory(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.1.0", adds())
	_, err := h.Setup(t.Context(), h.alloc("a"))
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(h.conf, "net.conflist")))
	h.commands()
	_, err = newConfigurator(t, h.cfg).GC(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"one DEL", "one GC"}, h.commands())
}

func TestGCTellsWhatItForced(t *testing.T) {
	var forced []string
	h := newTestHost(t, func(c *Config) {
		c.OnForced = func(id string, l []Leftover) { forced = append(forced, fmt.Sprint(id, len(l))) }
	})
	leases := h.bridged("net", adds())
	_, err := h.Setup(t.Context(), h.alloc("a"))
	require.NoError(t, err)
	writeLease(t, leases, "10.9.9.9", "a")
	report, err := h.GC(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"a1"}, forced)
	require.Len(t, report.Forced, 1)
}

// TestPluginsAreCollectedAlone: no ADD or DEL on the network runs during GC.
// Operations on other networks do not wait, even if an operation on this
// network hangs.
func TestPluginsAreCollectedAlone(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.1.0", adds(behaviours{"GC": {Hang: true}, "CHECK": {Hang: true}}))
	h.network("other", "1.1.0", adds())
	live, other := h.alloc("live"), h.alloc("other")
	other.Networks = []string{"other"}
	_, err := h.Setup(t.Context(), live)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := h.GC(ctx, []string{"live"}); done <- err }()
	h.waitForCommand("one GC")
	short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	require.ErrorIs(t, h.Teardown(short, live), context.DeadlineExceeded)
	otherUpAndDown := func() {
		_, err := h.Setup(t.Context(), other)
		require.NoError(t, err)
		require.NoError(t, h.Teardown(t.Context(), other))
	}
	otherUpAndDown()
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)

	// The same for a GC that waits for an operation that hangs.
	ctx, cancel = context.WithCancel(t.Context())
	hung := make(chan error, 1)
	go func() { _, err := h.Setup(ctx, live); hung <- err }()
	h.waitForCommand("one CHECK")
	go func() { _, err := h.GC(ctx, []string{"live"}); done <- err }()
	require.Eventually(t, func() bool { // a waiting GC keeps new operations out
		short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer stop()
		unlock, err := h.store.Share(short, []string{"net"})
		if err == nil {
			unlock()
		}
		return err != nil
	}, 10*time.Second, time.Millisecond)
	otherUpAndDown()
	cancel()
	require.Error(t, <-hung)
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, h.Teardown(t.Context(), live))
}

// TestGCWaitsForEach: each network has its own time limit, so an operation that
// hangs on one network does not keep GC from another.
func TestGCWaitsForEach(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.Networks = []string{"x", "y", "z"} })
	for _, name := range h.cfg.Networks {
		h.network(name, "1.1.0", adds())
	}
	d := deadlines{h.exec, map[string]time.Time{}}
	h.exec = d
	_, err := h.GC(t.Context(), nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	for _, name := range h.cfg.Networks {
		require.ErrorContains(t, err, `GC of the plugins of network "`+name+`"`)
		require.Contains(t, d.of, "GC "+name)
		require.Less(t, time.Until(d.of["GC "+name]), gcTimeout)
	}
	require.NotEqual(t, d.of["GC x"], d.of["GC y"], "a time limit of its own")
	require.NotEqual(t, d.of["GC y"], d.of["GC z"], "a time limit of its own")
}

// TestGCEndsWithItsContext: GC ends when its context ends, also between two
// networks.
func TestGCEndsWithItsContext(t *testing.T) {
	h := newTestHost(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n, err := conflist.Parse([]byte(h.conflist("net", "1.1.0", nil, adds())))
	require.NoError(t, err)
	err = h.gcPlugins(ctx, []*conflist.Network{n}, Scope{}, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, `"net"`)
	require.Empty(t, h.commands())
}

// TestGCSweepsClaims: GC removes reservations that a crash left and that are in
// no record.
func TestGCSweepsClaims(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	claims := filepath.Join(h.cfg.StateDir, "claims")
	before := h.tree(claims)
	require.NoError(t, os.Mkdir(filepath.Join(claims, "port-80"), 0o700))
	require.NoError(t, os.Symlink("*", filepath.Join(claims, "port-80", "a")))

	_, err = h.GCScope(t.Context(), Scope{Name: "other"})
	require.NoError(t, err)
	require.NotEqual(t, before, h.tree(claims), "it is of everything only that it looks at what others have")
	_, err = h.GC(t.Context(), []string{"a"})
	require.NoError(t, err)
	require.Equal(t, before, h.tree(claims))
}

// tree returns all paths below a directory.
func (h *testHost) tree(dir string) []string {
	h.t.Helper()
	var paths []string
	require.NoError(h.t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	}))
	return paths
}

// TestGCDoesNotTellPluginsHalf: plugins never get an incomplete list of valid
// attachments.
func TestGCDoesNotTellPluginsHalf(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.1.0", adds())
	require.NoError(t, os.WriteFile(filepath.Join(h.cfg.StateDir, "allocs", "live.json"), []byte("{"), 0o600))
	_, err := h.GC(t.Context(), []string{"live"})
	require.ErrorContains(t, err, `"live"`)
	require.Empty(t, h.commands())
}

func TestValidationComesFirst(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	a.Args = map[string]string{"K": "a;CNI_COMMAND=DEL"}
	_, err := h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrInvalidAllocation)
	require.Empty(t, h.commands())
	h.requireNoRecords()
	bad := Allocation{ID: "../a", Netns: a.Netns}
	for name, err := range map[string]error{
		"Check":    h.Check(t.Context(), bad),
		"Teardown": h.Teardown(t.Context(), bad),
		"Force":    func() error { _, err := h.Force(t.Context(), bad); return err }(),
		"Audit":    func() error { _, err := h.Audit(t.Context(), bad); return err }(),
		"Get":      func() error { _, err := h.Get(t.Context(), "../a"); return err }(),
	} {
		require.ErrorIs(t, err, ErrInvalidAllocation, name)
	}
}
