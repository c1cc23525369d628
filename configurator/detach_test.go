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
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// bridged writes a conflist of one fake plugin that bears the name of one that
// cleanup knows, with leases in the returned directory.
func (w *world) bridged(name string, b behaviours) (leases string) {
	w.t.Helper()
	require.NoError(w.t, fakeplugin.Install(w.bin, "bridge", "host-local"))
	dir := filepath.Join(w.dir, "leases")
	text := strings.Replace(w.conflist(name, "1.0.0", nil, b), `"type":"one"`,
		fmt.Sprintf(`"type":"bridge","ipam":{"type":"host-local","dataDir":%q}`, dir), 1)
	w.file(name+".conflist", text)
	leases = filepath.Join(dir, name)
	require.NoError(w.t, os.MkdirAll(leases, 0o755))
	return leases
}

// lease lets an allocation hold an address, as host-local writes it down.
func lease(t *testing.T, dir, ip, id string) string {
	t.Helper()
	file := filepath.Join(dir, ip)
	require.NoError(t, os.WriteFile(file, []byte(id+"\r\neth0"), 0o600))
	return file
}

// TestInterruptedIsSaidToTheEngine: only after a crash need plugins be looked
// for that are still at work.
func TestInterruptedIsSaidToTheEngine(t *testing.T) {
	for name, c := range map[string]struct {
		before func(*testing.T, *world)
		want   bool
	}{
		"an orderly end":     {func(*testing.T, *world) {}, false},
		"a crash in ADD":     {func(t *testing.T, w *world) { w.setPhase("a", record.Adding) }, true},
		"a crash in DEL":     {func(t *testing.T, w *world) { w.setPhase("a", record.Deleting) }, true},
		"the record is lost": {func(t *testing.T, w *world) { require.NoError(t, w.store.Delete("a")) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.network("net", "1.0.0", adds())
			a := w.alloc("a")
			_, err := w.Setup(t.Context(), a)
			require.NoError(t, err)
			c.before(t, w)
			spy := w.spy()
			var got []bool
			spy.del = func(_ context.Context, r *engine.Request) error {
				got = append(got, r.Interrupted)
				return nil
			}
			require.NoError(t, w.Teardown(t.Context(), a))
			require.Equal(t, []bool{c.want}, got)
		})
	}
}

func (w *world) setPhase(id string, phase record.Phase) {
	w.t.Helper()
	w.changeRecord(id, func(r *record.Record) { r.Phase = phase })
}

// changeRecord changes the record of an allocation as another version, or a crash, may.
func (w *world) changeRecord(id string, change func(*record.Record)) {
	w.t.Helper()
	r, err := w.store.Get(id)
	require.NoError(w.t, err)
	change(r)
	require.NoError(w.t, w.store.Put(r))
}

// TestCorruptRecordIsKept as long as what it may stand for is not gone.
func TestCorruptRecordIsKept(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds(behaviours{"DEL": {Code: 100, Msg: "del trouble", Only: 2}}))
	file := filepath.Join(w.cfg.StateDir, "allocs", "a.json")
	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrIncomplete)
	require.FileExists(t, file)
	require.NotContains(t, w.commands(), "one ADD")
	require.ErrorIs(t, w.Teardown(t.Context(), a), ErrIncomplete)
	require.FileExists(t, file)
	require.NoError(t, w.Teardown(t.Context(), a))
	require.NoFileExists(t, file)
}

// TestAddressesAreRecordedBeforeDel where no result tells them: DEL gives back
// the lease that alone does, and may not end.
func TestAddressesAreRecordedBeforeDel(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Retry.Attempts = 1 })
	leases := w.bridged("net", adds(behaviours{"ADD": {Code: 7, Msg: "no"}}))
	lease(t, leases, "10.9.9.9", "a")
	spy := w.spy()
	var known [][]cleanup.Address
	spy.del = func(context.Context, *engine.Request) error {
		r, err := w.store.Get("a")
		require.NoError(t, err)
		known = append(known, r.Addresses)
		return errors.New("del trouble")
	}
	_, err := w.Setup(t.Context(), w.alloc("a"))
	require.ErrorContains(t, err, "no")
	require.Equal(t, [][]cleanup.Address{{{Network: "net", IP: netip.MustParseAddr("10.9.9.9")}}}, known)
	require.NoFileExists(t, filepath.Join(leases, "10.9.9.9"), "force gave it back")
}

// TestAddressesThatCannotBeRecorded keep nothing alive: a DEL that succeeds is
// enough.
func TestAddressesThatCannotBeRecorded(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Retry.Attempts = 1 })
	w.network("net", "1.0.0", adds())
	leases := "/var/lib/cni/networks/net" // where those of an unknown plugin may lie
	require.NoError(t, os.MkdirAll(leases, 0o755))
	held := lease(t, leases, "10.9.9.9", "a")
	records := filepath.Join(w.cfg.StateDir, "allocs")
	spy := w.spy()
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
	_, err := w.Setup(t.Context(), w.alloc("a"))
	require.ErrorContains(t, err, "add trouble")
	require.NotErrorIs(t, err, ErrIncomplete)
	w.requireNoRecords()
}

// TestForceAfterTheDeadline has a little time of its own.
func TestForceAfterTheDeadline(t *testing.T) {
	var forced []Leftover
	w := newWorld(t, func(c *Config) { c.OnForced = func(_ string, l []Leftover) { forced = append(forced, l...) } })
	leases := w.bridged("net", adds())
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	held := lease(t, leases, "10.9.9.9", "a")
	ctx, cancel := context.WithCancel(t.Context())
	w.spy().del = func(ctx context.Context, _ *engine.Request) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}
	require.NoError(t, w.Teardown(ctx, a), "nothing is left, whatever became of DEL")
	require.NoFileExists(t, held)
	require.Len(t, forced, 1)
	w.requireNoRecords()
}

// TestAuditAfterADelThatLies: success is not taken for granted.
func TestAuditAfterADelThatLies(t *testing.T) {
	w := newWorld(t)
	leases := w.bridged("net", adds())
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	held := lease(t, leases, "10.9.9.9", "a")
	require.NoError(t, w.Teardown(t.Context(), a))
	require.NoFileExists(t, held)
}

// TestWhatNobodyCanRemove is named, and the record kept.
func TestWhatNobodyCanRemove(t *testing.T) {
	w := newWorld(t)
	leases := w.bridged("net", adds())
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, unix.Mount("tmpfs", leases, "tmpfs", 0, ""))
	defer unix.Unmount(leases, unix.MNT_DETACH)
	held := lease(t, leases, "10.9.9.9", "a")
	require.NoError(t, unix.Mount("", leases, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	err = w.Teardown(t.Context(), a)
	require.ErrorIs(t, err, ErrIncomplete)
	require.ErrorIs(t, err, unix.EROFS)
	var left *LeftoverError
	require.ErrorAs(t, err, &left)
	require.Equal(t, "a", left.ID)
	require.Equal(t, held, filepath.Join(left.Leftovers[0].Where, filepath.Base(left.Leftovers[0].Object)))
	require.ErrorContains(t, err, "10.9.9.9")
	r, err := w.Get(t.Context(), "a")
	require.NoError(t, err)
	require.Equal(t, PhaseDeleting, r.Phase)
	removed, err := w.Force(t.Context(), a)
	require.ErrorIs(t, err, ErrIncomplete)
	require.Empty(t, removed)

	require.NoError(t, unix.Mount("", leases, "", unix.MS_REMOUNT, ""))
	removed, err = w.Force(t.Context(), a)
	require.NoError(t, err)
	require.Len(t, removed, 1)
	w.requireNoRecords()
}

// TestConntrackIsFlushed: a client's UDP stream must not stay with an
// allocation that is gone.
func TestConntrackIsFlushed(t *testing.T) {
	for name, end := range map[string]func(*world, Allocation) error{
		"Teardown": func(w *world, a Allocation) error { return w.Teardown(w.t.Context(), a) },
		"Force": func(w *world, a Allocation) error {
			w.setPhase(a.ID, record.Deleting)
			_, err := w.Force(w.t.Context(), a)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(c *Config) {
				c.OnForced = func(_ string, l []Leftover) { t.Errorf("%v is no fault of DEL", l) }
			})
			w.bridged("net", adds(behaviours{"ADD": {Result: []byte(strings.ReplaceAll(result, "127.0.0.1/8", "10.9.9.9/24"))}}))
			a := w.alloc("a")
			a.Ports = []portmap.Port{{Value: 5353, Protocols: []string{"udp"}}}
			_, err := w.Setup(t.Context(), a)
			require.NoError(t, err)
			host, client, own := net.IPv4(192, 0, 2, 1).To4(), net.IPv4(192, 0, 2, 9).To4(), net.IPv4(10, 9, 9, 9).To4()
			flow := &netlink.ConntrackFlow{
				FamilyType: unix.AF_INET, TimeOut: 600,
				Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: client, SrcPort: 999, DstIP: host, DstPort: 5353},
				Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: own, SrcPort: 5353, DstIP: client, DstPort: 999},
			}
			require.NoError(t, netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, flow))
			require.NoError(t, end(w, a))
			flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
			require.NoError(t, err)
			for _, f := range flows {
				require.NotEqual(t, uint16(999), f.Forward.SrcPort)
			}
		})
	}
}

// TestCleanupTarget: nothing that the record knows is kept from cleanup.
func TestCleanupTarget(t *testing.T) {
	address := cleanup.Address{Network: "a", IP: netip.MustParseAddr("10.0.0.2")}
	port := portmap.Mapping{HostPort: 1, ContainerPort: 2, Protocol: "tcp"}
	a := newWorld(t).alloc("x")
	ns, err := sandbox.Open(a.Netns)
	require.NoError(t, err)
	defer ns.Close()
	got := (&Configurator{}).cleanupTarget(&plan{Record: &record.Record{
		ID: "x", Netns: a.Netns, Sandbox: ns, Ports: []portmap.Mapping{port}, Addresses: []cleanup.Address{address},
		Attachments: []record.Attachment{{Network: "a", IfName: "eth0", Config: []byte("{}"), Result: []byte("{ }")}, {Network: "b", IfName: "eth1"}},
	}})
	require.Equal(t, cleanup.Target{
		ID: "x", Netns: ns.ProcPath(), Ports: []portmap.Mapping{port}, Addresses: []cleanup.Address{address},
		Attachments: []cleanup.Attachment{{Network: "a", IfName: "eth0", Config: []byte("{}"), Result: []byte("{ }")}, {Network: "b", IfName: "eth1"}},
		CacheDirs:   []string{libcni.CacheDir},
	}, got)
}

// TestGCSparesWhatWasSetUpAgain meanwhile, under an ID that was dead when GC
// began.
func TestGCSparesWhatWasSetUpAgain(t *testing.T) {
	w := newWorld(t)
	w.concurrency = 1
	w.network("net", "1.0.0", adds())
	again := w.alloc("b")
	for _, a := range []Allocation{w.alloc("a"), again} {
		_, err := w.Setup(t.Context(), a)
		require.NoError(t, err)
	}
	other := newConfigurator(t, w.cfg)
	spy := w.spy()
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
	report, err := w.GC(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, report.Removed)
	require.Equal(t, []string{"b"}, report.Kept)
	require.NoError(t, w.Check(t.Context(), again))
}

func TestGCSparesWhatIsNoRecord(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	file := filepath.Join(w.cfg.StateDir, "allocs", "-x.json")
	require.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	report, err := w.GC(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, report.Removed)
	require.Empty(t, w.commands())
	require.FileExists(t, file)
}

// TestGCOfANetworkThatLeftTheDirectory: its plugins may hold something for the
// allocations that it had.
func TestGCOfANetworkThatLeftTheDirectory(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.1.0", adds())
	_, err := w.Setup(t.Context(), w.alloc("a"))
	require.NoError(t, err)
	require.NoError(t, os.Remove(filepath.Join(w.conf, "net.conflist")))
	w.commands()
	_, err = newConfigurator(t, w.cfg).GC(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"one DEL", "one GC"}, w.commands())
}

func TestGCTellsWhatItForced(t *testing.T) {
	var forced []string
	w := newWorld(t, func(c *Config) {
		c.OnForced = func(id string, l []Leftover) { forced = append(forced, fmt.Sprint(id, len(l))) }
	})
	leases := w.bridged("net", adds())
	_, err := w.Setup(t.Context(), w.alloc("a"))
	require.NoError(t, err)
	lease(t, leases, "10.9.9.9", "a")
	report, err := w.GC(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"a1"}, forced)
	require.Len(t, report.Forced, 1)
}

// TestPluginsAreCollectedAlone: no ADD or DEL on the network runs beside GC. Other
// networks do not wait, not for an operation that hangs on this one either.
func TestPluginsAreCollectedAlone(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.1.0", adds(behaviours{"GC": {Hang: true}, "CHECK": {Hang: true}}))
	w.network("other", "1.1.0", adds())
	live, other := w.alloc("live"), w.alloc("other")
	other.Networks = []string{"other"}
	_, err := w.Setup(t.Context(), live)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { _, err := w.GC(ctx, []string{"live"}); done <- err }()
	w.waitForCommand("one GC")
	short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	require.ErrorIs(t, w.Teardown(short, live), context.DeadlineExceeded)
	otherUpAndDown := func() {
		_, err := w.Setup(t.Context(), other)
		require.NoError(t, err)
		require.NoError(t, w.Teardown(t.Context(), other))
	}
	otherUpAndDown()
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)

	// And a GC that waits for one that hangs.
	ctx, cancel = context.WithCancel(t.Context())
	hung := make(chan error, 1)
	go func() { _, err := w.Setup(ctx, live); hung <- err }()
	w.waitForCommand("one CHECK")
	go func() { _, err := w.GC(ctx, []string{"live"}); done <- err }()
	require.Eventually(t, func() bool { // it waits when it keeps newcomers out
		short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer stop()
		unlock, err := w.store.Share(short, []string{"net"})
		if err == nil {
			unlock()
		}
		return err != nil
	}, 10*time.Second, time.Millisecond)
	otherUpAndDown()
	cancel()
	require.Error(t, <-hung)
	require.ErrorIs(t, <-done, context.Canceled)
	require.NoError(t, w.Teardown(t.Context(), live))
}

// TestGCHasPatienceForEach network, so that one that hangs does not keep it from
// another.
func TestGCHasPatienceForEach(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Networks = []string{"x", "y", "z"} })
	for _, name := range w.cfg.Networks {
		w.network(name, "1.1.0", adds(behaviours{"GC": {Hang: name != "y"}}))
	}
	w.Configurator.gcTimeout = 300 * time.Millisecond
	_, err := w.GC(t.Context(), nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, `GC of the plugins of network "x"`)
	require.ErrorContains(t, err, `GC of the plugins of network "z"`)
	require.NotContains(t, err.Error(), `"y"`)
	require.Equal(t, []string{"one GC", "one GC", "one GC"}, w.commands())
}

// TestGCEndsWithItsContext, also between two networks.
func TestGCEndsWithItsContext(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n, err := conflist.Parse([]byte(w.conflist("net", "1.1.0", nil, adds())))
	require.NoError(t, err)
	err = w.gcPlugins(ctx, []*conflist.Network{n}, Scope{})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, `"net"`)
	require.Empty(t, w.commands())
}

// TestGCSweepsClaims that a crash left beside a record which knows nothing of them.
func TestGCSweepsClaims(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	claims := filepath.Join(w.cfg.StateDir, "claims")
	before := w.tree(claims)
	require.NoError(t, os.Mkdir(filepath.Join(claims, "port-80"), 0o700))
	require.NoError(t, os.Symlink("*", filepath.Join(claims, "port-80", "a")))

	_, err = w.GCScope(t.Context(), Scope{Name: "other"})
	require.NoError(t, err)
	require.NotEqual(t, before, w.tree(claims), "it is of everything only that it looks at what others have")
	_, err = w.GC(t.Context(), []string{"a"})
	require.NoError(t, err)
	require.Equal(t, before, w.tree(claims))
}

// tree is all that is below a directory.
func (w *world) tree(dir string) []string {
	w.t.Helper()
	var paths []string
	require.NoError(w.t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	}))
	return paths
}

// TestGCDoesNotTellPluginsHalf of what there is.
func TestGCDoesNotTellPluginsHalf(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.1.0", adds())
	require.NoError(t, os.WriteFile(filepath.Join(w.cfg.StateDir, "allocs", "live.json"), []byte("{"), 0o600))
	_, err := w.GC(t.Context(), []string{"live"})
	require.ErrorContains(t, err, `"live"`)
	require.Empty(t, w.commands())
}

func TestValidationComesFirst(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	a.Args = map[string]string{"K": "a;CNI_COMMAND=DEL"}
	_, err := w.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrInvalidAllocation)
	require.Empty(t, w.commands())
	w.requireNoRecords()
	bad := Allocation{ID: "../a", Netns: a.Netns}
	for name, err := range map[string]error{
		"Check":    w.Check(t.Context(), bad),
		"Teardown": w.Teardown(t.Context(), bad),
		"Force":    func() error { _, err := w.Force(t.Context(), bad); return err }(),
		"Audit":    func() error { _, err := w.Audit(t.Context(), bad); return err }(),
		"Get":      func() error { _, err := w.Get(t.Context(), "../a"); return err }(),
	} {
		require.ErrorIs(t, err, ErrInvalidAllocation, name)
	}
}
