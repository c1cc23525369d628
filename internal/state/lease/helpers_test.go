package lease

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/testing/refplugins"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(hammerVariable); dir != "" {
		if err := hammer(context.Background(), dir, fmt.Sprint("process", os.Getpid())); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const network = "blue"

func newStore(t testing.TB) *Store {
	t.Helper()
	s, err := Open(t.TempDir(), network)
	require.NoError(t, err)
	return s
}

// steps records the steps of a store.
func steps(s *Store) *[]string {
	var done []string
	s.hook = func(step string) { done = append(done, step) }
	return &done
}

func addrs(text string) []netip.Addr { return parseAddrs(text) }

func one(text string) netip.Addr { return netip.MustParseAddr(text) }

// ranges parses the format of String, with a gateway after an @ in each range.
func ranges(text string) RangeSet {
	var set RangeSet
	for field := range strings.FieldsSeq(text) {
		ends, gateway, _ := strings.Cut(field, "@")
		first, last, _ := strings.Cut(ends, "-")
		r := Range{First: one(first), Last: one(last)}
		if gateway != "" {
			r.Gateway = one(gateway)
		}
		set = append(set, r)
	}
	return set
}

func anyOf(sets ...RangeSet) []Request {
	var requests []Request
	for _, set := range sets {
		requests = append(requests, Request{Set: set})
	}
	return requests
}

func eth0(id string) Owner { return Owner{ID: id, IfName: "eth0"} }

func reserve(t testing.TB, s *Store, owner Owner, requests ...Request) []netip.Addr {
	t.Helper()
	got, err := s.Reserve(context.Background(), owner, requests)
	require.NoError(t, err)
	return got
}

// dump returns all leases as text.
func dump(t testing.TB, s *Store) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(s.dir)
	require.NoError(t, err)
	leases := map[string]string{}
	for _, entry := range entries {
		if _, ok := parseName(entry.Name()); ok {
			content, err := os.ReadFile(filepath.Join(s.dir, entry.Name()))
			require.NoError(t, err)
			leases[entry.Name()] = string(content)
		}
	}
	return leases
}

// write creates a lease like another program.
func write(t testing.TB, s *Store, addr, content string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(s.dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, addr), []byte(content), 0o600))
}

func isSigned(t testing.TB, s *Store) bool {
	t.Helper()
	var stat unix.Stat_t
	require.NoError(t, unix.Stat(s.dir, &stat))
	return stat.Mtim == signature
}

// requireTruth fails if the directory is signed and the index differs from the
// leases.
func requireTruth(t testing.TB, s *Store) {
	t.Helper()
	if _, err := os.Stat(s.dir); err != nil || !isSigned(t, s) {
		return
	}
	if _, err := os.Stat(s.links); err != nil {
		return // such a signature is not valid
	}
	want := map[string]string{}
	all := map[Owner][]netip.Addr{}
	for name, content := range dump(t, s) {
		all[parseOwner(content)] = append(all[parseOwner(content)], one(name))
	}
	for owner, addrs := range all {
		want[s.link(owner)] = formatAddrs(addrs)
	}
	have := map[string]string{}
	links, err := os.ReadDir(s.links)
	require.NoError(t, err)
	for _, link := range links {
		path := s.links + "/" + link.Name()
		have[path], err = os.Readlink(path)
		require.NoError(t, err)
	}
	require.Equal(t, want, have, "index of a signed directory")
}

// runReference runs the reference plugin on the directory of a store.
func runReference(t testing.TB, s *Store, command string, owner Owner, ipam string) (string, error) {
	t.Helper()
	c := exec.Command(refplugins.Path(t, "host-local"))
	c.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + owner.ID, "CNI_IFNAME=" + owner.IfName,
		"CNI_NETNS=/none", "CNI_NETNS_OVERRIDE=1", "CNI_PATH=/none"}
	c.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "type": "test",
		"ipam": {"type": "host-local", "dataDir": %q, %s}}`, s.network, filepath.Dir(s.dir), ipam))
	out, err := c.Output()
	return string(out), err
}
