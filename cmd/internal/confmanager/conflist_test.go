package confmanager

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/conflist"
)

var update = flag.Bool("update", false, "write the golden files")

// TestConflist compares the own file with golden ones.
func TestConflist(t *testing.T) {
	tests := []struct {
		name    string
		primary string
		change  func(*Options)
	}{
		{name: "plain", primary: `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"}]}`},
		{name: "fixed-name", primary: `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"}]}`,
			change: func(o *Options) { o.Name = "ours" }},
		{name: "capabilities", primary: `{"cniVersion":"1.0.0","name":"net","plugins":[
			{"type":"bridge","capabilities":{"mac":true,"ips":true,"ipRanges":false}},
			{"type":"portmap","capabilities":{"portMappings":true,"mac":false}},
			{"type":"other"},
			{"type":"policy","capabilities":{"policy":true}}]}`},
		{name: "highest-version", primary: `{"cniVersion":"0.4.0","cniVersions":["0.3.1","1.1.0","1.0.0","9.0.0"],"name":"net","plugins":[{"type":"bridge"}]}`},
		{name: "own-version-unknown-yet", primary: `{"cniVersion":"9.0.0","cniVersions":["0.3.1"],"name":"net","plugins":[{"type":"bridge"}]}`},
		{name: "ancient", primary: `{"cniVersion":"0.2.0","name":"net","plugins":[{"type":"bridge"}]}`},
		{name: "disabled", primary: `{"cniVersion":"1.1.0","name":"net","disableCheck":true,"disableGC":"true","plugins":[{"type":"bridge"}]}`},
		{name: "further-keys", primary: `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"}]}`,
			change: func(o *Options) {
				o.Plugin = map[string]any{"socket": "/run/x.sock", "idleTimeout": 5, "labelsFrom": map[string]string{"job": "NOMAD_JOB_ID"}}
				o.Capabilities = []string{conflist.PodAnnotationsCapability}
			}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := Options{ConfDir: t.TempDir()}
			if tt.change != nil {
				tt.change(&o)
			}
			m, err := New(o)
			require.NoError(t, err)
			n, err := conflist.Parse([]byte(tt.primary))
			require.NoError(t, err)
			got, err := m.conflist(n)
			require.NoError(t, err)
			requireValid(t, got)
			list, err := libcni.NetworkConfFromBytes(got)
			require.NoError(t, err)
			wanted, err := versionFor(n)
			require.NoError(t, err)
			require.Equal(t, wanted, list.CNIVersion, "for who reads cniVersions")
			golden := filepath.Join("testdata", tt.name+".conflist")
			if *update {
				require.NoError(t, os.WriteFile(golden, got, 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got))
		})
	}
}

// requireValid checks that a runtime accepts the manager's conflist and that it
// has the required content.
func requireValid(t *testing.T, text []byte) {
	t.Helper()
	list, err := libcni.NetworkConfFromBytes(text)
	require.NoError(t, err)
	require.Contains(t, version.All.SupportedVersions(), list.CNIVersion)
	ours, err := version.GreaterThanOrEqualTo(list.CNIVersion, oldestVersion)
	require.NoError(t, err)
	require.True(t, ours, list.CNIVersion)
	n, err := conflist.Parse(text)
	require.NoError(t, err)
	require.True(t, n.IsOurs())
}

// FuzzConflist creates the manager's conflist for any valid network.
func FuzzConflist(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","capabilities":{"a\u0000":true}}]}`))
	f.Add([]byte(`{"cniVersions":["0.1.0"],"name":"n","disableGC":true,"plugins":[{"type":"p"}]}`))
	m, err := New(Options{ConfDir: f.TempDir()})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := conflist.Parse(data)
		if err != nil {
			return
		}
		text, err := m.conflist(n)
		require.NoError(t, err)
		requireValid(t, text)
		again, err := m.conflist(n)
		require.NoError(t, err)
		require.Equal(t, string(text), string(again))
		ours, err := conflist.Parse(text)
		require.NoError(t, err)
		want := append(n.Capabilities(), "labels")
		slices.Sort(want)
		require.Equal(t, slices.Compact(want), ours.Capabilities())
	})
}
