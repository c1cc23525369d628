package features

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/sandbox"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

func parse(t *testing.T, text string) *conflist.Network {
	t.Helper()
	n, err := conflist.Parse([]byte(text))
	require.NoError(t, err)
	return n
}

// TestFeaturesOf: each plugin needs what it uses, and a policy on a bridge more than one on a routed network.
func TestFeaturesOf(t *testing.T) {
	for text, want := range map[string][]string{
		`{"type": "ptp"}`:                         {"veth", routeLookups},
		`{"type": "ptp", "sourceGuard": false}`:   {"veth"},
		`{"type": "bridge"}`:                      {"veth", "bridge", bridgeTables},
		`{"type": "bridge", "vlan": 7}`:           {"veth", "bridge", "bridge VLAN filtering", bridgeTables},
		`{"type": "bridge"}, {"type": "policy"}`:  {"veth", "bridge", bridgeTables, policyTables, bridgeRules},
		`{"type": "ptp"}, {"type": "policy"}`:     {"veth", routeLookups, policyTables},
		`{"type": "macvlan"}, {"type": "tuning"}`: {"macvlan"},
	} {
		require.Equal(t, want, of(parse(t, `{"cniVersion": "1.0.0", "name": "net", "plugins": [`+text+`]}`)), text)
	}
}

// TestPolicies: the tables of policies are made in the namespace of the thread.
func TestPolicies(t *testing.T) {
	privhost.Require(t, "nft")
	s, err := sandbox.New()
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Do(func() error {
		if err := tryPolicies(t.Context()); err != nil {
			return err
		}
		out, err := exec.Command("nft", "list", "tables").CombinedOutput()
		require.Contains(t, string(out), "allocnet_policy")
		return err
	}))
}

// TestRequire: what is missing is named with the networks that need it, and is tried again; what was found is not.
func TestRequire(t *testing.T) {
	privhost.Require(t)
	tries, lacks := 0, error(unix.EOPNOTSUPP)
	saved := features
	t.Cleanup(func() { features = saved; present.Clear() })
	features = []Feature{{"dummy", "dummy", "CONFIG_DUMMY", func(context.Context) error { tries++; return lacks }}}
	list := []*conflist.Network{
		parse(t, `{"cniVersion": "1.0.0", "name": "one", "plugins": [{"type": "dummy"}]}`),
		parse(t, `{"cniVersion": "1.0.0", "name": "two", "plugins": [{"type": "dummy"}]}`),
	}
	err := Require(t.Context(), list)
	var missing *Missing
	require.True(t, errors.As(err, &missing), "%v", err)
	require.ErrorIs(t, err, unix.EOPNOTSUPP)
	require.EqualError(t, missing, "the kernel has no dummy (operation not supported), which networks need: one, two; modprobe --all dummy, or use a kernel with CONFIG_DUMMY")
	lacks = nil
	for range 2 {
		require.NoError(t, Require(t.Context(), list))
	}
	require.Equal(t, 2, tries)
}
