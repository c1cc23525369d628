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

// replaceNetns puts another namespace at the path of an allocation's, with an eth0
// that is none of ours and ends in a link of that name on the host.
func (w *world) replaceNetns(a Allocation, foreign string) {
	w.t.Helper()
	require.NoError(w.t, sandbox.Destroy(a.Netns))
	s, err := sandbox.Create(filepath.Base(a.Netns))
	require.NoError(w.t, err)
	require.NoError(w.t, s.Close())
	w.foreign(a.Netns, foreign)
}

// TestAnotherNamespaceAtThePath: no operation changes another namespace that is
// mounted at the path by now, in whatever state the allocation is.
func TestAnotherNamespaceAtThePath(t *testing.T) {
	tests := 0
	ends := map[string]func(*world, Allocation) error{
		"teardown": func(w *world, a Allocation) error { return w.Teardown(t.Context(), a) },
		"force":    func(w *world, a Allocation) error { _, err := w.Force(t.Context(), a); return err },
		"GC":       func(w *world, a Allocation) error { _, err := w.GC(t.Context(), nil); return err },
	}
	for name, end := range ends {
		for _, phase := range []record.Phase{record.Ready, record.Adding} {
			t.Run(name+" of "+string(phase), func(t *testing.T) {
				w := newWorld(t)
				w.network("net", "1.0.0", adds())
				a := w.alloc("a")
				_, err := w.Setup(t.Context(), a)
				require.NoError(t, err)
				tests++ // the link of the test before may still be going
				foreign := fmt.Sprintf("vforeign1%d", tests)
				w.replaceNetns(a, foreign)
				w.setPhase("a", phase)
				w.commands()
				if phase == record.Ready {
					w.requireElsewhere(a)
				}
				found, err := w.Audit(t.Context(), a)
				require.NoError(t, err)
				require.Empty(t, found)
				require.NoError(t, end(w, a))
				for _, c := range w.calls() {
					require.True(t, c.Command == "ADD" || c.Netns == "", "%s in %q", c.Command, c.Netns)
				}
				w.requireNoRecords()
				requireLink(t, foreign)
			})
		}
	}
}

// requireElsewhere requires that everything that is asked of the allocation finds
// that its namespace is gone, and that no plugin is run for that.
func (w *world) requireElsewhere(a Allocation) {
	t := w.t
	t.Helper()
	err := w.Check(t.Context(), a)
	require.ErrorIs(t, err, ErrUnhealthy)
	require.ErrorContains(t, err, "another network namespace")
	_, err = w.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrDifferent)
	require.ErrorContains(t, err, a.Netns)
	report, err := w.Repair(t.Context())
	require.ErrorIs(t, err, ErrUnhealthy)
	require.Equal(t, []string{"a"}, report.Broken)
	require.Empty(t, w.commands())
}

// TestRecordsWithoutANamespace, of older versions, go by the path.
func TestRecordsWithoutANamespace(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	w.changeRecord("a", func(r *record.Record) {
		require.NotZero(t, r.Namespace)
		r.Namespace = sandbox.Identity{}
	})
	require.NoError(t, w.Check(t.Context(), a))
	_, err = w.Setup(t.Context(), a)
	require.NoError(t, err)
	_, err = w.Setup(t.Context(), Allocation{ID: "a", Netns: "/run/netns/other"})
	require.ErrorIs(t, err, ErrDifferent)
	require.NoError(t, w.Teardown(t.Context(), a))
	require.Equal(t, []string{"one ADD", "one CHECK", "one CHECK", "one DEL"}, w.commands())
	w.requireNoRecords()
}

// otherPaths lead to the namespace of an allocation as well.
func (w *world) otherPaths(a Allocation) map[string]string {
	t := w.t
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

// TestPathsOfOneNamespace are one namespace.
func TestPathsOfOneNamespace(t *testing.T) {
	for _, e := range []Engine{EngineNative, EngineExec} {
		t.Run(string(e), func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.Engine = e })
			w.network("net", "1.0.0", adds())
			a := w.alloc("a")
			a.ContainerID = "c"
			for name, path := range w.otherPaths(a) {
				status, err := w.Setup(t.Context(), a)
				require.NoError(t, err)
				same := a
				same.Netns = path
				again, err := w.Setup(t.Context(), same)
				require.NoError(t, err, name)
				require.Equal(t, found(status), again)
				_, err = w.Setup(t.Context(), Allocation{ID: "b", Netns: path, Interface: "eth1"})
				require.ErrorIs(t, err, ErrInUse, name)
				require.ErrorContains(t, err, `"a"`)
				_, err = w.Setup(t.Context(), Allocation{ID: "b", ContainerID: "c", Netns: path, Interface: "eth1"})
				require.NoError(t, err, "another interface of the same container")
				require.NoError(t, w.Teardown(t.Context(), Allocation{ID: "b"}))
				require.NoError(t, w.Teardown(t.Context(), same))
			}
		})
	}
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink("/proc/self/ns/net", link))
	_, err := w.Setup(t.Context(), Allocation{ID: "a", Netns: link})
	require.ErrorIs(t, err, sandbox.ErrHostNamespace)
}

// TestAnotherNamespaceInTheProcess is not entered by native plugins either.
func TestAnotherNamespaceInTheProcess(t *testing.T) {
	w, _ := nativeWorld(t, "1.0.0", `{"type":"firewall"}`, `{"type":"tuning","mtu":1400}`)
	a := w.alloc("moved")
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	w.replaceNetns(a, "vforeign20")
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
	require.ErrorIs(t, w.Check(t.Context(), a), ErrUnhealthy)
	report, err := w.Repair(t.Context())
	require.ErrorIs(t, err, ErrUnhealthy)
	require.Contains(t, report.Broken, "moved")
	_, err = w.Setup(t.Context(), a)
	require.ErrorIs(t, err, ErrDifferent)
	require.NoError(t, w.Teardown(t.Context(), a))
	require.Equal(t, before, foreign())
	requireLink(t, "vforeign20")
	requireNothingOwned(t, "moved")
}

// unlookable makes the path of an allocation's namespace one that cannot be looked at,
// until it is put back.
func (w *world) unlookable(path string) (restore func()) {
	w.t.Helper()
	aside := filepath.Join(filepath.Dir(path), ".aside")
	require.NoError(w.t, os.Rename(path, aside))
	require.NoError(w.t, os.Symlink(path, path))
	return func() { require.NoError(w.t, errors.Join(os.Remove(path), os.Rename(aside, path))) }
}

// TestNamespaceThatCannotBeLookedAt is not taken for one that is gone.
func TestNamespaceThatCannotBeLookedAt(t *testing.T) {
	w := newWorld(t)
	w.network("net", "1.0.0", adds())
	a := w.alloc("a")
	link := filepath.Join(w.dir, "link")
	require.NoError(t, os.Symlink(a.Netns, link))
	a.Netns = link
	_, err := w.Setup(t.Context(), a)
	require.NoError(t, err)
	w.commands()
	restore := w.unlookable(link)
	_, err = w.Force(t.Context(), a)
	require.ErrorIs(t, err, unix.ELOOP)
	err = w.Teardown(t.Context(), a)
	require.ErrorIs(t, err, ErrIncomplete)
	require.ErrorIs(t, err, unix.ELOOP)
	_, err = w.GC(t.Context(), nil)
	require.ErrorIs(t, err, unix.ELOOP)
	require.Empty(t, w.commands(), "DEL would run as for a namespace that is gone")
	restore()
	require.NoError(t, w.Teardown(t.Context(), a))
	for _, c := range w.calls() {
		require.True(t, c.Command != "DEL" || c.Netns != "")
	}
	w.requireNoRecords()
}
