package cleanup

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/smallfile"
	"github.com/allocnet/allocnet/internal/state/lease"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// leaseTarget returns an allocation on network "n" that can only have leases
// below dir.
func leaseTarget(dir string) Target {
	config := fmt.Appendf(nil, `{"plugins": [{"type": "macvlan", "ipam": {"type": "host-local", "dataDir": %q}}]}`, dir)
	return Target{ID: "id", Attachments: []Attachment{{Network: "n", IfName: "eth0", Config: config}}}
}

func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
}

func namesIn(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	names := []string{}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func TestLeaseBesideUnknownPlugin(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, filepath.Join(dir, "n"), map[string]string{"10.0.0.2": "id\r\neth0", "10.0.0.3": "id2\r\neth0"})
	target := leaseTarget(dir)
	target.Attachments[0].Config = fmt.Appendf(nil,
		`{"plugins": [{"type": "macvlan", "ipam": {"type": "host-local", "dataDir": %q}}, {"type": "calico"}]}`, dir)
	s := newSearch(target)
	list, err := s.leases.find(context.Background())
	require.NoError(t, err)
	require.Equal(t, []Leftover{{Kind: KindLease, Network: "n", Where: filepath.Join(dir, "n"), Object: "10.0.0.2"}}, list)
}

func TestLeases(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, filepath.Join(dir, "n"), map[string]string{
		"10.0.0.2":           "id\r\neth0",
		"10.0.0.3":           "id",              // written by an old version
		"10.0.0.4":           "id\r\neth1",      // another attachment
		"10.0.0.5":           "id2\r\neth0",     // another allocation
		"10.0.0.6":           "",                // crash while reserving
		"fd00::2":            " id \r\n eth0\n", // as lenient as host-local
		"last_reserved_ip.0": "10.0.0.2",
		"notes":              "id\r\neth0",
	})
	s := newSearch(leaseTarget(dir))
	list, err := s.leases.find(context.Background())
	require.NoError(t, err)
	require.Equal(t, []string{"10.0.0.2", "10.0.0.3", "10.0.0.6", "fd00::2"}, objects(sorted(list)))
	require.Equal(t, Leftover{Kind: KindLease, Network: "n", Where: filepath.Join(dir, "n"), Object: "10.0.0.2"}, list[0])
	require.NotContains(t, namesIn(t, filepath.Join(dir, "n")), "lock")
	require.True(t, s.addresses.isOurs(netip.MustParseAddr("fd00::2")))
	require.True(t, s.addresses.foreign[netip.MustParseAddr("10.0.0.5")])
	require.False(t, s.addresses.isOurs(netip.MustParseAddr("10.0.0.6")))

	removed, err := s.leases.remove(context.Background())
	require.NoError(t, err)
	require.ElementsMatch(t, list, removed)
	require.Equal(t, []string{"10.0.0.4", "10.0.0.5", "last_reserved_ip.0", "lock", "notes"}, namesIn(t, filepath.Join(dir, "n")))
}

func objects(list []Leftover) []string {
	var names []string
	for _, l := range list {
		names = append(names, l.Object)
	}
	return names
}

func TestLeasesOfNoNetwork(t *testing.T) {
	dir := t.TempDir()
	target := leaseTarget(dir)
	writeFiles(t, dir, map[string]string{"10.0.0.2": "id\r\neth0"})
	for _, name := range []string{"n", "", "..", "../n", "."} {
		target.Attachments[0].Network = name
		list, err := newSearch(target).leases.find(context.Background())
		require.NoError(t, err)
		require.Empty(t, list, name)
	}
	require.Equal(t, []string{"10.0.0.2"}, namesIn(t, dir))
}

// TestLeaseChangesHands: a lease that was assigned again between search and
// removal is kept.
func TestLeaseChangesHands(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "n")
	writeFiles(t, path, map[string]string{"10.0.0.2": "id\r\neth0", "10.0.0.3": "", "10.0.0.4": "id\r\neth0"})
	s := newSearch(leaseTarget(dir))
	list, err := s.leases.find(context.Background())
	require.NoError(t, err)
	require.Len(t, list, 3)
	writeFiles(t, path, map[string]string{"10.0.0.2": "other\r\neth0", "10.0.0.3": "other\r\neth0"})
	require.NoError(t, os.Remove(filepath.Join(path, "10.0.0.4")))
	removed, err := s.leases.remove(context.Background())
	require.NoError(t, err)
	require.Empty(t, removed)
	require.Equal(t, []string{"10.0.0.2", "10.0.0.3", "lock"}, namesIn(t, path))
}

// TestLeasesWaitForLock: while host-local holds its lock, an empty file may be
// a lease that is about to be written, so none is removed.
func TestLeasesWaitForLock(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "n")
	writeFiles(t, path, map[string]string{"10.0.0.2": "id\r\neth0", "10.0.0.3": "", "lock": ""})
	lock, err := os.Open(filepath.Join(path, "lock"))
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	_, err = newSearch(leaseTarget(dir)).leases.find(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	require.NoError(t, lock.Close())

	// Both were seen empty, and one was written before the lock was available.
	store, err := lease.Open(dir, "n")
	require.NoError(t, err)
	var seen []lease.Lease
	for _, addr := range []string{"10.0.0.2", "10.0.0.3", "10.0.0.4"} {
		seen = append(seen, lease.Lease{Addr: netip.MustParseAddr(addr)})
	}
	empty, err := store.Abandoned(context.Background(), seen)
	require.NoError(t, err)
	require.Equal(t, seen[1:2], empty)
}

// TestLeaseErrors: an unreadable file is reported, hides no other file, and
// does not assign an address to anyone.
func TestLeaseErrors(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{"n": "a file instead of a directory"})
	writeFiles(t, filepath.Join(dir, "m"), map[string]string{"10.0.0.2": "id\r\neth1"})
	target := leaseTarget(dir)
	second := target.Attachments[0]
	second.Network, second.IfName = "m", "eth1"
	target.Attachments = append(target.Attachments, second)
	s := newSearch(target)
	list, err := s.leases.find(context.Background())
	require.ErrorIs(t, err, unix.ENOTDIR)
	require.Equal(t, []string{"10.0.0.2"}, objects(list))
	require.False(t, s.addresses.isOurs(netip.MustParseAddr("10.0.0.2")))
}

func TestCacheFiles(t *testing.T) {
	dir := t.TempDir()
	v1 := func(network, id, ifName string) string {
		return fmt.Sprintf(`{"kind": "cniCacheV1", "containerId": %q, "networkName": %q, "ifName": %q,
			"result": {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]}}`, id, network, ifName)
	}
	writeFiles(t, filepath.Join(dir, "results"), map[string]string{
		"n-id-eth0":  v1("n", "id", "eth0"),
		"n-id-eth1":  v1("n-id", "eth1", "x"), // the dash is ambiguous
		"n-id-eth2":  `{"cniVersion": "0.3.1"}`,
		"n-id-eth3":  `{"kin`,
		"n-id2-eth0": v1("n", "id2", "eth0"),
	})
	target := Target{ID: "id", CacheDirs: []string{dir, filepath.Join(dir, "none")}}
	for i := range 5 {
		target.Attachments = append(target.Attachments, Attachment{Network: "n", IfName: fmt.Sprintf("eth%d", i)})
	}
	s := newSearch(target)
	list, err := s.cache.find(context.Background())
	require.NoError(t, err)
	require.Equal(t, []string{"n-id-eth0", "n-id-eth2", "n-id-eth3"}, objects(sorted(list)))
	require.True(t, s.addresses.isOurs(netip.MustParseAddr("10.0.0.2")), "the cached result stands in")

	bare := newSearch(Target{ID: "id", CacheDirs: []string{dir}})
	list, err = bare.cache.find(context.Background())
	require.NoError(t, err)
	require.Equal(t, []string{"n-id-eth0"}, objects(list))

	removed, err := s.cache.remove(context.Background())
	require.NoError(t, err)
	require.Len(t, removed, 3)
	require.Equal(t, []string{"n-id-eth1", "n-id2-eth0"}, namesIn(t, filepath.Join(dir, "results")))
	removed, err = bare.cache.remove(context.Background())
	require.NoError(t, err, "gone meanwhile")
	require.Empty(t, removed)
}

func TestLeftoverString(t *testing.T) {
	require.Equal(t, `lease /x/n 10.0.0.2 (network "n")`,
		Leftover{Kind: KindLease, Network: "n", Where: "/x/n", Object: "10.0.0.2"}.String())
	require.Equal(t, "link veth0", Leftover{Kind: KindLink, Object: "veth0"}.String())
}

func TestEachTriesAll(t *testing.T) {
	broken := errors.New("broken")
	var tried int
	act := func(finder, context.Context) ([]Leftover, error) {
		tried++
		if tried == 1 {
			return []Leftover{{Object: "half"}}, broken
		}
		return []Leftover{{Object: "whole"}}, nil
	}
	list, err := each(context.Background(), act, &cacheFinder{}, &leaseFinder{})
	require.ErrorIs(t, err, broken)
	require.Equal(t, []string{"half", "whole"}, objects(list))

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = each(ctx, act, &cacheFinder{})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 2, tried)
}

// TestLeasesThatCannotBeListed: if leases cannot be listed, they may exist.
func TestLeasesThatCannotBeListed(t *testing.T) {
	privhost.Require(t)
	require.NoError(t, os.RemoveAll(lease.DefaultDataDir))
	require.NoError(t, os.MkdirAll(filepath.Dir(lease.DefaultDataDir), 0o755))
	require.NoError(t, os.WriteFile(lease.DefaultDataDir, nil, 0o600))
	defer os.Remove(lease.DefaultDataDir)
	s := newSearch(Target{ID: "id"})
	_, err := s.leases.find(t.Context())
	require.ErrorIs(t, err, unix.ENOTDIR)
	require.True(t, s.addresses.incomplete)
}

// TestFilesThatAreNoLeases: special files neither block nor are read endlessly.
func TestFilesThatAreNoLeases(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "n")
	writeFiles(t, dir, map[string]string{"10.0.0.2": "id\r\neth0", "10.0.0.3": ""})
	require.NoError(t, os.Truncate(filepath.Join(dir, "10.0.0.3"), 1<<40))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "10.0.0.4"), 0o600))
	require.NoError(t, os.Symlink("/dev/zero", filepath.Join(dir, "10.0.0.5")))
	store, err := lease.Open(filepath.Dir(dir), "n")
	require.NoError(t, err)
	leases, err := store.List()
	require.NoError(t, err)
	own := lease.Lease{Addr: netip.MustParseAddr("10.0.0.2"), Owner: lease.Owner{ID: "id", IfName: "eth0"}}
	require.Equal(t, []lease.Lease{own}, leases)
	ids, err := Holders("n", leaseTarget(filepath.Dir(dir)).Attachments[0].Config)
	require.NoError(t, err)
	require.Equal(t, []string{"id"}, ids)

	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "lock"), 0o600))
	removed, err := store.Remove(t.Context(), leases) // with a pipe as the lock
	require.NoError(t, err)
	require.Equal(t, leases, removed)
	cached := filepath.Join(dir, "result")
	require.NoError(t, unix.Mkfifo(cached, 0o600))
	_, err = readCache(cached)
	require.ErrorIs(t, err, smallfile.ErrNotRegular)
}
