package bench

import (
	"context"
	"errors"
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

// TestFailedGroup: a group that fails costs the others nothing.
func TestFailedGroup(t *testing.T) {
	failed, ran := errors.New("failed"), 0
	err := (&bench{}).measure(t.Context(), []group{
		{"first", func(*bench, context.Context) error { return failed }},
		{"second", func(*bench, context.Context) error { ran++; return nil }},
	})
	require.ErrorIs(t, err, failed)
	require.ErrorContains(t, err, "measure first: failed")
	require.Equal(t, 1, ran)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, (&bench{}).measure(ctx, groups), context.Canceled)
}
