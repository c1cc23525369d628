package addresses

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/conflist"
)

func network(t *testing.T, dir, ipam string) *conflist.Network {
	t.Helper()
	n, err := conflist.Parse([]byte(fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "plugins": [
		{"type": "bridge", "ipam": {"type": "host-local", "dataDir": %q, %s}}]}`, dir, ipam)))
	require.NoError(t, err)
	return n
}

func TestPools(t *testing.T) {
	n := network(t, "/d", `"ranges": [[{"subnet": "10.1.2.3/24"}], [{"subnet": "fd00::/64", "rangeStart": "fd00::10", "rangeEnd": "fd00::1f"}]]`)
	pools, err := Pools(n)
	require.NoError(t, err)
	require.Len(t, pools, 2)
	require.Equal(t, "10.1.2.0/24 10.1.2.1 10.1.2.254 10.1.2.1", fmt.Sprint(pools[0].Subnet, pools[0].Range.First, pools[0].Range.Last, pools[0].Range.Gateway))
	require.Equal(t, "fd00::/64 fd00::10 fd00::1f fd00::1", fmt.Sprint(pools[1].Subnet, pools[1].Range.First, pools[1].Range.Last, pools[1].Range.Gateway))
	require.Equal(t, "/d", pools[0].DataDir)
	require.Equal(t, "bridge", pools[0].Plugin)
}

func TestPoolsThatCannotBeRead(t *testing.T) {
	for _, ipam := range []string{`"subnet": "10.0.0.0/31"`, `"subnet": "10.0.0.0/24", "rangeStart": "10.0.1.1"`} {
		_, err := Count(network(t, "/d", ipam))
		require.ErrorIs(t, err, errNoRange)
		require.ErrorContains(t, err, `network "net": plugin "bridge": subnet 10.0.0.0/`)
	}
}

func TestCount(t *testing.T) {
	dir := t.TempDir()
	n := network(t, dir, `"ranges": [[{"subnet": "10.1.2.0/24"}], [{"subnet": "fd00::/120"}]]`)
	counts, err := Count(n)
	require.NoError(t, err)
	require.Equal(t, map[string]Usage{"ipv4": {0, 253}, "ipv6": {0, 254}}, counts, "without a directory")

	require.NoError(t, os.MkdirAll(filepath.Join(dir, "net"), 0o755))
	for _, name := range []string{"10.1.2.9", "10.1.2.1", "10.9.9.9", "fd00::5", "lock", "last_reserved_ip.0", "fd00:0::6"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "net", name), nil, 0o600))
	}
	counts, err = Count(n)
	require.NoError(t, err)
	require.Equal(t, map[string]Usage{"ipv4": {3, 252}, "ipv6": {1, 253}}, counts,
		"a lease of the gateway or outside of the ranges takes no free address")
}

func TestCountOfTheEmbeddedNetwork(t *testing.T) {
	n, err := conflist.Embedded(conflist.EmbeddedOptions{StateDir: t.TempDir(), Subnets: []netip.Prefix{netip.MustParsePrefix("10.5.0.0/29")}})
	require.NoError(t, err)
	counts, err := Count(n)
	require.NoError(t, err)
	require.Equal(t, map[string]Usage{"ipv4": {0, 5}}, counts)
}
