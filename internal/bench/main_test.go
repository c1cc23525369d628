package bench

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

// testEnvironment returns an environment with the reference plugins, which make
// builds.
func testEnvironment(t *testing.T) *environment {
	t.Helper()
	privhost.Require(t, "iptables", "nft")
	plugins, err := refplugins.Dir()
	require.NoError(t, err)
	return &environment{plugins: plugins, module: "../..", progress: t.Logf}
}

func TestChoose(t *testing.T) {
	all, err := choose(nil)
	require.NoError(t, err)
	require.Len(t, all, len(groups))
	two, err := choose([]string{"burst", "life"})
	require.NoError(t, err)
	require.Equal(t, "burst", two[0].name)
	require.Equal(t, "life", two[1].name)
	_, err = choose([]string{"life", "lief"})
	require.ErrorContains(t, err, "there is no measurement lief; there are life, ")
}

func skipInShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("make test FULL=1 runs it")
	}
}
