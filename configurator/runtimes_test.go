package configurator

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/require"
)

// cached writes a file into the cache of libcni that runtimes share.
func (w *world) cached(name, content string) (path string) {
	w.t.Helper()
	dir := filepath.Join(runtimesCache, "results")
	require.NoError(w.t, os.MkdirAll(dir, 0o700))
	path = filepath.Join(dir, name)
	require.NoError(w.t, os.WriteFile(path, []byte(content), 0o600))
	w.t.Cleanup(func() { require.NoError(w.t, os.RemoveAll(dir)) })
	return path
}

func cacheOf(id, network string) string {
	return `{"kind":"` + libcni.CNICacheV1 + `","containerId":"` + id + `","networkName":"` + network + `","ifName":"eth0"}`
}

// TestGCLeavesRuntimesAttachmentsAlone: what the plugin binaries made for a runtime
// looks like an allocation without a record, but libcni has its result until its DEL.
// Where nothing can be read, nothing is removed, neither by the plugins' GC.
func TestGCLeavesRuntimesAttachmentsAlone(t *testing.T) {
	for _, version := range []string{"1.0.0", "1.1.0"} {
		for name, c := range map[string]struct {
			file, content string
			stays         bool
		}{
			"its own":                    {"net-a-eth0", cacheOf("a", "net"), true},
			"in another network":         {"other-a-eth0", cacheOf("a", "other"), true},
			"old version":                {"net-a-eth0", `{"cniVersion":"0.3.1"}`, true},
			"cut short":                  {"net-a-eth0", `{"kind":`, true},
			"container of that name":     {"net-a-b-eth0", cacheOf("a-b", "net"), false},
			"network of that name":       {"net-a-c-eth0", cacheOf("c", "net-a"), false},
			"another's, of old versions": {"net-c-eth0", `{"cniVersion":"0.3.1"}`, false},
		} {
			t.Run(version+" "+name, func(t *testing.T) {
				w, leases := nativeWorld(t, version)
				a := w.alloc("a")
				_, err := w.Setup(t.Context(), a)
				require.NoError(t, err)
				w.lose("a")
				file := w.cached(c.file, c.content)
				want := &GCReport{Removed: []string{"a"}, Kept: []string{}}
				if c.stays {
					want = &GCReport{Removed: []string{}, Kept: []string{"a"}}
				}
				planned, err := w.PlanGC(t.Context(), Scope{})
				require.NoError(t, err)
				requireReport(t, want, planned)
				report, err := w.GC(t.Context(), nil)
				require.NoError(t, err)
				requireReport(t, want, report)
				if c.stays {
					require.Equal(t, []string{"a"}, leaseHolders(t, filepath.Join(leases, "net")))
					w.requireLinkIn(a.Netns, "eth0")
					require.NoError(t, os.Remove(file))
					report, err = w.GC(t.Context(), nil)
					require.NoError(t, err)
					require.Equal(t, []string{"a"}, report.Removed)
				}
				require.Empty(t, leaseHolders(t, filepath.Join(leases, "net")))
			})
		}
	}
}

// TestGCLeavesLeasesOfRuntimesAlone also where they have no link that names them, as
// those of the reference plugins.
func TestGCLeavesLeasesOfRuntimesAlone(t *testing.T) {
	w, leases := nativeWorld(t, "1.1.0")
	_, err := w.Setup(t.Context(), w.alloc("a"))
	require.NoError(t, err)
	for address, id := range map[string]string{"10.77.0.200": "attached", "10.77.0.201": "old-one", "10.77.0.202": "lost"} {
		require.NoError(t, os.WriteFile(filepath.Join(leases, "net", address), []byte(id+"\r\neth0"), 0o600))
	}
	w.cached("net-attached-eth0", cacheOf("attached", "net"))
	w.cached("net-old-one-eth0", `{"cniVersion":"0.3.1"}`)
	_, err = w.GC(t.Context(), nil)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"attached", "old-one"}, leaseHolders(t, filepath.Join(leases, "net")))
}

// TestGCOfUnreadableResults removes nothing that they may be about.
func TestGCOfUnreadableResults(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, file string) error{
		"link": func(t *testing.T, file string) error {
			require.NoError(t, os.Remove(file))
			return os.Symlink("/dev/null", file)
		},
		"no directory": func(t *testing.T, file string) error {
			dir := filepath.Dir(file)
			require.NoError(t, os.RemoveAll(dir))
			return os.WriteFile(dir, nil, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, leases := nativeWorld(t, "1.1.0")
			a := w.alloc("a")
			_, err := w.Setup(t.Context(), a)
			require.NoError(t, err)
			w.lose("a")
			file := w.cached("net-a-eth0", cacheOf("a", "net"))
			require.NoError(t, spoil(t, file))
			planned, err := w.PlanGC(t.Context(), Scope{})
			require.ErrorContains(t, err, `"a"`)
			require.Empty(t, planned.Removed)
			report, err := w.GC(t.Context(), nil)
			require.ErrorContains(t, err, `"a"`)
			require.ErrorContains(t, err, `GC of the plugins of network "net"`)
			require.Empty(t, report.Removed)
			require.Equal(t, []string{"a"}, leaseHolders(t, filepath.Join(leases, "net")))
			w.requireLinkIn(a.Netns, "eth0")
			require.NoError(t, os.RemoveAll(filepath.Join(runtimesCache, "results")))
			_, err = w.GC(t.Context(), nil)
			require.NoError(t, err)
		})
	}
}
