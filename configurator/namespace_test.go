package configurator

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/sandbox"
)

// replaceNetns mounts another namespace at the path of an allocation's. It has
// a foreign eth0, whose peer on the host has the given name.
func (h *testHost) replaceNetns(a Allocation, foreign string) {
	h.t.Helper()
	require.NoError(h.t, sandbox.Destroy(a.Netns))
	s, err := sandbox.Create(filepath.Base(a.Netns))
	require.NoError(h.t, err)
	require.NoError(h.t, s.Close())
	h.foreign(a.Netns, foreign)
}

// TestAnotherNamespaceAtThePath: whatever the state of the allocation, no
// operation changes another namespace that was mounted at its path.
func TestAnotherNamespaceAtThePath(t *testing.T) {
	tests := 0
	ends := map[string]func(*testHost, Allocation) error{
		"teardown": func(h *testHost, a Allocation) error { return h.Teardown(t.Context(), a) },
		"force":    func(h *testHost, a Allocation) error { _, err := h.Force(t.Context(), a); return err },
		"GC":       func(h *testHost, a Allocation) error { _, err := h.GC(t.Context(), nil); return err },
	}
	for name, end := range ends {
		for _, phase := range []record.Phase{record.Ready, record.Adding} {
			t.Run(name+" of "+string(phase), func(t *testing.T) {
				h := newTestHost(t)
				h.network("net", "1.0.0", adds())
				a := h.alloc("a")
				_, err := h.Setup(t.Context(), a)
				require.NoError(t, err)
				tests++ // the link of the previous test may still exist
				foreign := fmt.Sprintf("vforeign1%d", tests)
				h.replaceNetns(a, foreign)
				h.setPhase("a", phase)
				h.commands()
				if phase == record.Ready {
					h.requireElsewhere(a)
				}
				found, err := h.Audit(t.Context(), a)
				require.NoError(t, err)
				require.Empty(t, found)
				require.NoError(t, end(h, a))
				for _, c := range h.calls() {
					require.True(t, c.Command == "ADD" || c.Netns == "", "%s in %q", c.Command, c.Netns)
				}
				h.requireNoRecords()
				requireLink(t, foreign)
			})
		}
	}
}

// requireElsewhere checks that every operation treats the allocation's
// namespace as gone, and runs no plugin to find that out.
func (h *testHost) requireElsewhere(a Allocation) {
	t := h.t
	t.Helper()
	err := h.Check(t.Context(), a)
	require.ErrorIs(t, err, ErrUnhealthy)
	require.ErrorContains(t, err, "another network namespace")
	_, err = h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrDifferent)
	require.ErrorContains(t, err, a.Netns)
	report, err := h.Repair(t.Context())
	require.ErrorIs(t, err, ErrUnhealthy)
	require.Equal(t, []string{"a"}, report.Broken)
	require.Empty(t, h.commands())
}

// TestRecordsWithoutANamespace: for such records of older versions, the path
// decides.
func TestRecordsWithoutANamespace(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.changeRecord("a", func(r *record.Record) {
		require.NotZero(t, r.Namespace)
		r.Namespace = sandbox.Identity{}
	})
	require.NoError(t, h.Check(t.Context(), a))
	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	_, err = h.Setup(t.Context(), Allocation{ID: "a", Netns: "/run/netns/other"})
	require.ErrorIs(t, err, ErrDifferent)
	require.NoError(t, h.Teardown(t.Context(), a))
	require.Equal(t, []string{"one ADD", "one CHECK", "one CHECK", "one DEL"}, h.commands())
	h.requireNoRecords()
}

// otherPaths returns other paths to the namespace of an allocation.
func (h *testHost) otherPaths(a Allocation) map[string]string {
	t := h.t
	t.Helper()
	dir := t.TempDir()
	link, bound := filepath.Join(dir, "link"), filepath.Join(dir, "bound")
	require.NoError(t, os.Symlink(a.Netns, link))
	require.NoError(t, os.WriteFile(bound, nil, 0o600))
	require.NoError(t, unix.Mount(a.Netns, bound, "", unix.MS_BIND, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(bound, unix.MNT_DETACH)) })
	s, err := sandbox.Open(a.Netns)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return map[string]string{"symlink": link, "bind mount": bound, "proc": s.ProcPath()}
}

// TestPathsOfOneNamespace: different paths to a namespace identify the same
// namespace.
func TestPathsOfOneNamespace(t *testing.T) {
	for _, e := range []Engine{EngineNative, EngineExec} {
		t.Run(string(e), func(t *testing.T) {
			h := newTestHost(t, func(c *Config) { c.Engine = e })
			h.network("net", "1.0.0", adds())
			a := h.alloc("a")
			a.ContainerID = "c"
			for name, path := range h.otherPaths(a) {
				status, err := h.Setup(t.Context(), a)
				require.NoError(t, err)
				same := a
				same.Netns = path
				again, err := h.Setup(t.Context(), same)
				require.NoError(t, err, name)
				require.Equal(t, found(status), again)
				_, err = h.Setup(t.Context(), Allocation{ID: "b", Netns: path, Interface: "eth1"})
				require.ErrorIs(t, err, ErrInUse, name)
				require.ErrorContains(t, err, `"a"`)
				_, err = h.Setup(t.Context(), Allocation{ID: "b", ContainerID: "c", Netns: path, Interface: "eth1"})
				require.NoError(t, err, "another interface of the same container")
				require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "b"}))
				require.NoError(t, h.Teardown(t.Context(), same))
			}
		})
	}
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink("/proc/self/ns/net", link))
	_, err := h.Setup(t.Context(), Allocation{ID: "a", Netns: link})
	require.ErrorIs(t, err, sandbox.ErrHostNamespace)
}

// TestAnotherNamespaceInTheProcess: native plugins do not enter another
// namespace at the path either.
func TestAnotherNamespaceInTheProcess(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"firewall"}`, `{"type":"tuning","mtu":1400}`)
	a := h.alloc("moved")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.replaceNetns(a, "vforeign20")
	foreign := func() (mtu int) {
		s, err := sandbox.Open(a.Netns)
		require.NoError(t, err)
		defer s.Close()
		require.NoError(t, s.Do(func() error {
			link, err := netlink.LinkByName("eth0")
			if err == nil {
				mtu = link.Attrs().MTU
			}
			return err
		}))
		return mtu
	}
	before := foreign()
	require.ErrorIs(t, h.Check(t.Context(), a), ErrUnhealthy)
	report, err := h.Repair(t.Context())
	require.ErrorIs(t, err, ErrUnhealthy)
	require.Contains(t, report.Broken, "moved")
	_, err = h.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrDifferent)
	require.NoError(t, h.Teardown(t.Context(), a))
	h.settle()
	require.Equal(t, before, foreign())
	requireLink(t, "vforeign20")
	requireNothingOwned(t, "moved")
}

// unlookable makes the path of an allocation's namespace inaccessible until
// restore is called.
func (h *testHost) unlookable(path string) (restore func()) {
	h.t.Helper()
	aside := filepath.Join(filepath.Dir(path), ".aside")
	require.NoError(h.t, os.Rename(path, aside))
	require.NoError(h.t, os.Symlink(path, path))
	return func() { require.NoError(h.t, errors.Join(os.Remove(path), os.Rename(aside, path))) }
}

// TestNamespaceThatCannotBeLookedAt: an inaccessible namespace does not count
// as gone.
func TestNamespaceThatCannotBeLookedAt(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds())
	a := h.alloc("a")
	link := filepath.Join(h.dir, "link")
	require.NoError(t, os.Symlink(a.Netns, link))
	a.Netns = link
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	h.commands()
	restore := h.unlookable(link)
	_, err = h.Force(t.Context(), a)
	require.ErrorIs(t, err, unix.ELOOP)
	err = h.Teardown(t.Context(), a)
	require.ErrorIs(t, err, ErrIncomplete)
	require.ErrorIs(t, err, unix.ELOOP)
	_, err = h.GC(t.Context(), nil)
	require.ErrorIs(t, err, unix.ELOOP)
	require.Empty(t, h.commands(), "DEL would run as for a namespace that is gone")
	restore()
	require.NoError(t, h.Teardown(t.Context(), a))
	for _, c := range h.calls() {
		require.True(t, c.Command != "DEL" || c.Netns != "")
	}
	h.requireNoRecords()
}

// TestSetupInAReplacedNamespace: Setup directly after the namespace was destroyed and made again waits
// until the kernel has destroyed the former one. If another mount keeps that alive, it is refused.
func TestSetupInAReplacedNamespace(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0")
	a := Allocation{ID: "a", Netns: filepath.Join(sandbox.DefaultDir, "replaced")} // h.alloc would keep it open
	again := func() error {
		require.NoError(t, sandbox.Destroy(a.Netns))
		s, err := sandbox.Create(filepath.Base(a.Netns))
		require.NoError(t, err)
		require.NoError(t, s.Close())
		_, err = h.Setup(t.Context(), a)
		return err
	}
	t.Cleanup(func() { require.NoError(t, sandbox.Destroy(a.Netns)) })
	for range 5 {
		require.NoError(t, again())
	}
	kept, err := sandbox.Open(a.Netns)
	require.NoError(t, err)
	require.ErrorIs(t, again(), ErrDifferent)
	require.NoError(t, kept.Close())
	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), a))
}
