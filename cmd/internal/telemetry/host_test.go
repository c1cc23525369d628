package telemetry

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/conflist"
)

// network returns a bridged network with an IPAM configuration, whose leases
// are in dir.
func network(t testing.TB, name, dir, ipam string) *conflist.Network {
	t.Helper()
	return parsed(t, name, fmt.Sprintf(`{"type":"bridge","ipam":{"type":"host-local","dataDir":%q,%s}}`, dir, ipam))
}

func parsed(t testing.TB, name string, plugins ...string) *conflist.Network {
	t.Helper()
	n, err := conflist.Parse([]byte(fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"plugins":[%s]}`, name, strings.Join(plugins, ","))))
	require.NoError(t, err)
	return n
}

// leased creates leases as the reference plugin does, with its other files.
func leased(t testing.TB, dir, network string, names ...string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, network), 0o755))
	for _, name := range append(names, "lock", "last_reserved_ip.0") {
		require.NoError(t, os.WriteFile(filepath.Join(dir, network, name), []byte("a\r\neth0"), 0o600))
	}
}

// hostOf returns a rig on a host with these networks.
func hostOf(networks ...*conflist.Network) *rig {
	return newRig(Options{Networks: func() ([]*conflist.Network, []*conflist.FileError) { return networks, nil }})
}

func TestLeases(t *testing.T) {
	const v4, v6 = `{family="ipv4",network="n"} `, `{family="ipv6",network="n"} `
	for name, tt := range map[string]struct {
		ipam   string
		leases []string
		want   []string
	}{
		"a subnet": {`"subnet":"10.1.0.0/24"`, nil, []string{"free" + v4 + "253", "used" + v4 + "0"}},
		"leases":   {`"subnet":"10.1.0.0/24"`, []string{"10.1.0.2", "10.1.0.254"}, []string{"free" + v4 + "251", "used" + v4 + "2"}},
		"leases outside of the ranges": {`"subnet":"10.1.0.0/24"`, []string{"10.1.0.1", "10.1.0.255", "10.9.9.9"},
			[]string{"free" + v4 + "253", "used" + v4 + "3"}},
		"a part of a subnet": {`"subnet":"10.1.0.0/24","rangeStart":"10.1.0.10","rangeEnd":"10.1.0.19"`, []string{"10.1.0.10", "10.1.0.9"},
			[]string{"free" + v4 + "9", "used" + v4 + "2"}},
		"a gateway within":  {`"subnet":"10.1.0.0/24","gateway":"10.1.0.9"`, []string{"10.1.0.1"}, []string{"free" + v4 + "252", "used" + v4 + "1"}},
		"a gateway outside": {`"subnet":"10.1.0.0/24","gateway":"10.2.0.1"`, nil, []string{"free" + v4 + "254", "used" + v4 + "0"}},
		"two families": {`"ranges":[[{"subnet":"10.1.0.0/30"}],[{"subnet":"fd00::/120"}]]`, []string{"10.1.0.2", "fd00::2", "fd00::3"},
			[]string{"free" + v4 + "0", "free" + v6 + "252", "used" + v4 + "1", "used" + v6 + "2"}},
		"ranges that stand in for each other": {`"ranges":[[{"subnet":"10.1.0.0/24"},{"subnet":"10.2.0.0/24"}]]`, []string{"10.2.0.7"},
			[]string{"free" + v4 + "505", "used" + v4 + "1"}},
		"more than 64 bits": {`"subnet":"fd00::/60"`, nil, []string{"free" + v6 + "2.9514790517935283e+20", "used" + v6 + "0"}},
		"too small":         {`"subnet":"10.1.0.0/31"`, nil, nil},
		"no subnet":         {`"subnet":"nonsense"`, []string{"10.1.0.2"}, nil},
		"other spellings": {`"subnet":"fd00::/120"`, []string{"fd00::2", "fd00:0::2", "FD00::2", "fd00::2%eth0", "::ffff:10.1.0.2"},
			[]string{"free" + v6 + "253", "used" + v6 + "1"}},
		"too small in IPv6":         {`"subnet":"fd00::/127","gateway":"fd01::1"`, nil, nil},
		"a range before":            {`"subnet":"10.1.0.0/24","rangeStart":"10.0.0.1"`, nil, nil},
		"a range behind":            {`"subnet":"10.1.0.0/24","rangeEnd":"10.2.0.1"`, nil, nil},
		"a wrong range":             {`"subnet":"10.1.0.0/24","rangeStart":"10.3.0.1"`, nil, nil},
		"addresses of the caller's": {`"ranges":[]`, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if tt.leases != nil {
				leased(t, dir, "n", tt.leases...)
			}
			var got []string
			for _, line := range hostOf(network(t, "n", dir, tt.ipam)).series(t, "leases") {
				got = append(got, strings.TrimPrefix(line, "leases_"))
			}
			require.Equal(t, tt.want, got)
		})
	}
}

// TestPluginsThatLease: leases in the same directory are counted together,
// others separately.
func TestPluginsThatLease(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	leased(t, one, "n", "10.1.0.2")
	leased(t, two, "n", "10.2.0.2", "10.2.0.3")
	ipam := func(dir, subnet string) string {
		return fmt.Sprintf(`{"type":"x","ipam":{"type":"host-local","dataDir":%q,"subnet":%q}}`, dir, subnet)
	}
	n := parsed(t, "n", ipam(one, "10.1.0.0/24"), ipam(one, "10.1.0.0/24"), ipam(two, "10.2.0.0/24"), `{"type":"x","ipam":{"type":"dhcp"}}`)
	require.Equal(t, []string{
		`leases_free{family="ipv4",network="n"} 503`, `leases_used{family="ipv4",network="n"} 3`,
	}, hostOf(n).series(t, "leases"))
}

// TestCountsServeForAWhile: counts are cached for seconds, also when the clock
// is set back.
func TestCountsServeForAWhile(t *testing.T) {
	asked := 0
	r := newRig(Options{Allocations: func() (int, error) { asked++; return asked, nil }})
	count := func() string { return strings.Join(r.series(t, "allocations"), "") }
	require.Equal(t, "allocations 1", count())
	r.add(hostTime - 1)
	require.Equal(t, "allocations 1", count())
	r.add(1)
	require.Equal(t, "allocations 2", count())
	r.add(-hostTime)
	require.Equal(t, "allocations 3", count())
}

// counted waits for the end of the counts in the background, and lets the next scrape read the
// host again.
func (r *rig) counted() {
	h := r.metrics.host
	for _, b := range []*background{h.withoutOwner, h.found, h.readiness} {
		b.mu.Lock()
		running := b.running
		b.mu.Unlock()
		if running != nil {
			<-running
		}
	}
	r.metrics.host.mu.Lock()
	defer r.metrics.host.mu.Unlock()
	r.metrics.host.counted = time.Time{}
}

// TestLeasesWithoutOwner: they are counted less often, and an error is not a zero.
func TestLeasesWithoutOwner(t *testing.T) {
	asked, fails := 0, false
	n := network(t, "n", t.TempDir(), `"subnet":"10.1.0.0/24"`)
	r := newRig(Options{
		Networks: func() ([]*conflist.Network, []*conflist.FileError) { return []*conflist.Network{n}, nil },
		Ownerless: func() (map[string]int, error) {
			asked++
			if fails {
				return nil, errors.New("no")
			}
			return map[string]int{"n": asked}, nil
		},
	})
	count := func() string { return strings.Join(r.series(t, "leases_without"), "") }
	require.Empty(t, count())
	r.counted()
	require.Equal(t, `leases_without_owner{network="n"} 1`, count())
	r.add(ownerlessTime - 1)
	require.Equal(t, `leases_without_owner{network="n"} 1`, count())
	r.add(hostTime)
	require.Equal(t, `leases_without_owner{network="n"} 1`, count(), "the scrape has begun a count")
	r.counted()
	require.Equal(t, `leases_without_owner{network="n"} 2`, count())
	fails = true
	r.add(ownerlessTime)
	_ = count()
	r.counted()
	require.Empty(t, count())
}

// TestScrapeDuringACount: scrapes do not wait for a count, and begin no second one. After a
// long count follows a long pause.
func TestScrapeDuringACount(t *testing.T) {
	begun, end := make(chan struct{}, 2), make(chan struct{})
	n := network(t, "n", t.TempDir(), `"subnet":"10.1.0.0/24"`)
	r := newRig(Options{
		Networks: func() ([]*conflist.Network, []*conflist.FileError) { return []*conflist.Network{n}, nil },
		Ownerless: func() (map[string]int, error) {
			begun <- struct{}{}
			<-end
			return map[string]int{"n": 1}, nil
		},
	})
	for range 3 {
		require.Empty(t, r.series(t, "leases_without"))
		require.NotEmpty(t, r.series(t, "leases_free"))
		r.add(ownerlessTime)
	}
	<-begun
	require.Empty(t, begun)
	close(end)
	r.counted()
	require.Len(t, r.series(t, "leases_without"), 1)
	r.add(100 * ownerlessTime)
	require.Len(t, r.series(t, "leases_without"), 1)
	r.counted()
	require.Empty(t, begun, "the first count took 15 minutes")
}

// TestWhatCannotBeCounted: only the metrics of such a network are missing.
func TestWhatCannotBeCounted(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bad"), nil, 0o600)) // not a directory
	networks := []*conflist.Network{network(t, "bad", dir, `"subnet":"10.1.0.0/24"`), network(t, "good", dir, `"subnet":"10.2.0.0/24"`)}
	r := newRig(Options{
		Networks:    func() ([]*conflist.Network, []*conflist.FileError) { return networks, nil },
		Allocations: func() (int, error) { return 0, errors.New("no") },
	})
	r.operate("gc", "", "", nil, nil)
	require.Equal(t, []string{
		`leases_free{family="ipv4",network="good"} 253`, `leases_used{family="ipv4",network="good"} 0`,
	}, r.series(t, "leases"))
	require.Empty(t, r.series(t, "allocations"))
	require.Len(t, r.series(t, "operations_total"), 1)
}

// TestConntrack: a kernel that does not track connections has no such metrics, and an
// error leaves the other metrics.
func TestConntrack(t *testing.T) {
	var failure error
	r := newRig(Options{Conntrack: func() (int, int, error) { return 3, 9, failure }})
	require.Equal(t, []string{"conntrack_entries 3", "conntrack_entries_limit 9"}, r.series(t, "conntrack"))
	for _, failure = range []error{os.ErrNotExist, os.ErrPermission} {
		r.add(hostTime)
		require.Empty(t, r.series(t, "conntrack"))
		require.NotEmpty(t, r.series(t, "unhealthy"))
	}
}
