package configurator

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSubnetsFrom: the embedded network has the subnet that flanneld has leased. Another one
// is used from the next Setup on, and the network of an allocation is removed with the subnet
// with which it was set up.
func TestSubnetsFrom(t *testing.T) {
	env := filepath.Join(t.TempDir(), "subnet.env")
	h := newTestHost(t, func(c *Config) { c.Engine, c.Network, c.SubnetsFrom = EngineNative, "allocnet", env })
	leased := func(subnet string) {
		text := "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=" + subnet + "\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
		require.NoError(t, os.WriteFile(env, []byte(text), 0o600))
	}
	leased("10.5.1.1/24")
	one, other := h.alloc("one"), h.alloc("other")
	s, err := h.Setup(t.Context(), one)
	require.NoError(t, err)
	require.Equal(t, "10.5.1.2", s.Address)

	leased("10.5.2.1/24")
	s, err = h.Setup(t.Context(), other)
	require.NoError(t, err)
	require.Equal(t, "10.5.2.2", s.Address)
	require.NoError(t, h.Check(t.Context(), one))
	require.NoError(t, os.Remove(env))
	for _, a := range []Allocation{one, other} {
		require.NoError(t, h.Check(t.Context(), a))
		a.Wait = true
		require.NoError(t, h.Teardown(t.Context(), a))
	}
	leases, err := filepath.Glob(filepath.Join(h.cfg.StateDir, "leases", "allocnet", "10.*"))
	require.NoError(t, err)
	require.Empty(t, leases)
}
