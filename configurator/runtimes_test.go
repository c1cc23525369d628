package configurator

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/skip"
)

// cached writes a file into libcni's cache, which runtimes share.
func (h *testHost) cached(name, content string) (path string) {
	h.t.Helper()
	dir := filepath.Join(runtimesCache, "results")
	require.NoError(h.t, os.MkdirAll(dir, 0o700))
	path = filepath.Join(dir, name)
	require.NoError(h.t, os.WriteFile(path, []byte(content), 0o600))
	h.t.Cleanup(func() { require.NoError(h.t, os.RemoveAll(dir)) })
	return path
}

func cacheOf(id, network string) string {
	return `{"kind":"` + libcni.CNICacheV1 + `","containerId":"` + id + `","networkName":"` + network + `","ifName":"eth0"}`
}

// TestGCLeavesRuntimesAttachmentsAlone: what the plugin binaries made for a
// runtime looks like an allocation without a record, but libcni's cache
// contains its result until its DEL. If the cache cannot be read, nothing is
// removed, and the plugins' GC does not run.
func TestGCLeavesRuntimesAttachmentsAlone(t *testing.T) {
	for v, version := range []string{"1.0.0", "1.1.0"} {
		for i, c := range []struct {
			name          string
			file, content string
			stays         bool
		}{
			{"its own", "net-a-eth0", cacheOf("a", "net"), true},
			{"in another network", "other-a-eth0", cacheOf("a", "other"), true},
			{"old version", "net-a-eth0", `{"cniVersion":"0.3.1"}`, true},
			{"cut short", "net-a-eth0", `{"kind":`, true},
			{"container of that name", "net-a-b-eth0", cacheOf("a-b", "net"), false},
			{"network of that name", "net-a-c-eth0", cacheOf("c", "net-a"), false},
			{"another's, of old versions", "net-c-eth0", `{"cniVersion":"0.3.1"}`, false},
		} {
			t.Run(version+" "+c.name, func(t *testing.T) {
				skip.InTurn(t, v+i, 2)
				h, leases := nativeHost(t, version)
				a := h.alloc("a")
				_, err := h.Setup(t.Context(), a)
				require.NoError(t, err)
				h.lose("a")
				file := h.cached(c.file, c.content)
				want := &GCReport{Removed: []string{"a"}, Kept: []string{}}
				if c.stays {
					want = &GCReport{Removed: []string{}, Kept: []string{"a"}}
				}
				planned, err := h.PlanGC(t.Context(), Scope{})
				require.NoError(t, err)
				requireReport(t, want, planned)
				report, err := h.GC(t.Context(), nil)
				require.NoError(t, err)
				requireReport(t, want, report)
				if c.stays {
					require.Equal(t, []string{"a"}, leaseHolders(t, filepath.Join(leases, "net")))
					h.requireLinkIn(a.Netns, "eth0")
					require.NoError(t, os.Remove(file))
					report, err = h.GC(t.Context(), nil)
					require.NoError(t, err)
					require.Equal(t, []string{"a"}, report.Removed)
				}
				require.Empty(t, leaseHolders(t, filepath.Join(leases, "net")))
			})
		}
	}
}

// TestGCLeavesLeasesOfRuntimesAlone: leases of runtimes stay even without a
// link that names them, as with the reference plugins.
func TestGCLeavesLeasesOfRuntimesAlone(t *testing.T) {
	h, leases := nativeHost(t, "1.1.0")
	_, err := h.Setup(t.Context(), h.alloc("a"))
	require.NoError(t, err)
	for address, id := range map[string]string{"10.77.0.200": "attached", "10.77.0.201": "old-one", "10.77.0.202": "lost"} {
		require.NoError(t, os.WriteFile(filepath.Join(leases, "net", address), []byte(id+"\r\neth0"), 0o600))
	}
	h.cached("net-attached-eth0", cacheOf("attached", "net"))
	h.cached("net-old-one-eth0", `{"cniVersion":"0.3.1"}`)
	_, err = h.GC(t.Context(), nil)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"attached", "old-one"}, leaseHolders(t, filepath.Join(leases, "net")))
}

// TestGCOfUnreadableResults: GC removes nothing that an unreadable result may
// describe.
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
			h, leases := nativeHost(t, "1.1.0")
			a := h.alloc("a")
			_, err := h.Setup(t.Context(), a)
			require.NoError(t, err)
			h.lose("a")
			file := h.cached("net-a-eth0", cacheOf("a", "net"))
			require.NoError(t, spoil(t, file))
			planned, err := h.PlanGC(t.Context(), Scope{})
			require.ErrorContains(t, err, `"a"`)
			require.Empty(t, planned.Removed)
			report, err := h.GC(t.Context(), nil)
			require.ErrorContains(t, err, `"a"`)
			require.ErrorContains(t, err, `GC of the plugins of network "net"`)
			require.Empty(t, report.Removed)
			require.Equal(t, []string{"a"}, leaseHolders(t, filepath.Join(leases, "net")))
			h.requireLinkIn(a.Netns, "eth0")
			require.NoError(t, os.RemoveAll(filepath.Join(runtimesCache, "results")))
			_, err = h.GC(t.Context(), nil)
			require.NoError(t, err)
		})
	}
}
