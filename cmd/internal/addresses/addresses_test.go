package addresses

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/internal/subnets"
)

func network(t *testing.T, dir, ipam string) *conflist.Network {
	t.Helper()
	n, err := conflist.Parse([]byte(fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "net", "plugins": [
		{"type": "bridge", "ipam": {"type": "host-local", "dataDir": %q, %s}}]}`, dir, ipam)))
	require.NoError(t, err)
	return n
}

func TestPoolsThatCannotBeRead(t *testing.T) {
	for _, ipam := range []string{`"subnet": "10.0.0.0/31"`, `"subnet": "10.0.0.0/24", "rangeStart": "10.0.1.1"`} {
		_, err := Count(network(t, "/d", ipam))
		require.ErrorIs(t, err, subnets.ErrNoRange)
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

// TestLeasesComeAndGo: leases are added and removed while they are counted.
func TestLeasesComeAndGo(t *testing.T) {
	dir := t.TempDir()
	n := network(t, dir, `"subnet":"10.1.0.0/24"`)
	store, err := lease.Open(dir, "net")
	require.NoError(t, err)
	set := lease.RangeSet{{
		First: netip.MustParseAddr("10.1.0.1"), Last: netip.MustParseAddr("10.1.0.254"), Gateway: netip.MustParseAddr("10.1.0.1"),
	}}
	reserve := func(id string) {
		_, err := store.Reserve(context.Background(), lease.Owner{ID: id, IfName: "eth0"}, []lease.Request{{Set: set}})
		if err != nil {
			t.Error(err)
		}
	}
	for i := range 10 {
		reserve(fmt.Sprint("stays", i))
	}
	var others sync.WaitGroup
	for g := range 2 {
		others.Go(func() {
			for range 100 {
				id := fmt.Sprint("goes", g)
				reserve(id)
				if err := store.Release(context.Background(), lease.Owner{ID: id, IfName: "eth0"}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { others.Wait(); close(done) }()
	for again := true; again; {
		select {
		case <-done:
			again = false
		default:
		}
		counts, err := Count(n)
		require.NoError(t, err)
		require.GreaterOrEqual(t, counts["ipv4"].Used, 10.0)
		require.Equal(t, 253.0, counts["ipv4"].Used+counts["ipv4"].Free)
	}
	counts, err := Count(n)
	require.NoError(t, err)
	require.Equal(t, map[string]Usage{"ipv4": {10, 243}}, counts)
}

func TestTooManyLeases(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"10.0.0.1", "10.0.0.2", "lock", "last_reserved_ip.0"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	require.NoError(t, eachLease(dir, 4, func(netip.Addr) {}))
	require.ErrorIs(t, eachLease(dir, 3, func(netip.Addr) {}), errTooMany)
}
