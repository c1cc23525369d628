package cleanup

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/netlink/netfilter"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// usesKind selects the kind of iptables until the test ends.
func usesKind(t *testing.T, kind string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"iptables", "ip6tables"} {
		path, err := exec.LookPath(name + "-" + kind)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(dir, name)))
	}
	t.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH"))
}

// TestIDAloneWithBothKinds: without a known network, comments show the rules of
// an ID in the other kind of iptables, and that another ID has none.
func TestIDAloneWithBothKinds(t *testing.T) {
	privhost.Require(t, "iptables-nft", "iptables-legacy", "ip6tables-nft", "ip6tables-legacy")
	for made, other := range map[string]string{"nft": "legacy", "legacy": "nft"} {
		for _, command := range []string{"iptables", "ip6tables"} {
			t.Run(command+"-"+made, func(t *testing.T) {
				run := func(args ...string) {
					t.Helper()
					out, err := exec.Command(command+"-"+made, append([]string{"-t", "nat"}, args...)...).CombinedOutput()
					require.NoError(t, err, "%s", out)
				}
				chain, comment := chainNames("net", "own")[0], comments("net", "own")[0]
				run("-N", chain)
				t.Cleanup(func() { run("-F"); run("-X") })
				run("-A", "POSTROUTING", "-m", "comment", "--comment", comment, "-j", chain)

				usesKind(t, other)
				_, err := Audit(t.Context(), Target{ID: "own"})
				require.ErrorIs(t, err, netfilter.ErrHeld)
				require.ErrorContains(t, err, "table "+command+" -t nat")
				_, err = Force(t.Context(), Target{ID: "own"})
				require.ErrorIs(t, err, netfilter.ErrHeld)
				for _, id := range []string{"another", "ow", "wn"} {
					left, err := Audit(t.Context(), Target{ID: id})
					require.NoError(t, err, id)
					require.Empty(t, left, id)
				}
				ids, err := Marked(t.Context(), "net", []byte(`{"plugins":[{"type":"bridge","ipMasqBackend":"iptables"}]}`), "")
				require.NoError(t, err)
				require.Equal(t, []string{"own"}, ids)

				usesKind(t, made)
				left, err := Audit(t.Context(), Target{ID: "own"})
				require.NoError(t, err)
				require.Len(t, left, 2)
			})
		}
	}
}
