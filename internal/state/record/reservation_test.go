package record

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// reserving returns a record with a network namespace and ports.
func reserving(id, netns string, ports ...portmap.Mapping) *Record {
	return &Record{Version: Version, ID: id, Netns: netns, Phase: Adding, Ports: ports}
}

func tcp(port int, ip string) portmap.Mapping {
	return portmap.Mapping{HostPort: port, Protocol: "tcp", HostIP: ip}
}

// stateFiles returns all files below the state directory but the lock.
func stateFiles(t *testing.T, s *Store) []string {
	t.Helper()
	files := []string{}
	require.NoError(t, filepath.WalkDir(filepath.Dir(s.dir), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && path != s.locks {
			files = append(files, strings.TrimPrefix(path, filepath.Dir(s.dir)+"/"))
		}
		return err
	}))
	return files
}

func TestReserve(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Reserve(t.Context(), reserving("a", "/n/a", tcp(80, "192.0.2.1"), tcp(443, "")), unwarned(t)))
	for _, test := range []struct {
		name   string
		record *Record
		want   error
	}{
		{"netns, spelt otherwise", reserving("b", "/n//./a"),
			&NetnsError{Netns: "/n//./a", ID: "b", OtherID: "a"}},
		{"same address", reserving("b", "/n/b", tcp(81, ""), tcp(80, "::ffff:192.0.2.1")),
			&portmap.ConflictError{Mapping: tcp(80, "::ffff:192.0.2.1"), Other: tcp(80, "192.0.2.1"), ID: "b", OtherID: "a"}},
		{"all addresses", reserving("b", "/n/b", tcp(80, "")),
			&portmap.ConflictError{Mapping: tcp(80, ""), Other: tcp(80, "192.0.2.1"), ID: "b", OtherID: "a"}},
		{"all of IPv4", reserving("b", "/n/b", tcp(80, "0.0.0.0")),
			&portmap.ConflictError{Mapping: tcp(80, "0.0.0.0"), Other: tcp(80, "192.0.2.1"), ID: "b", OtherID: "a"}},
		{"one of all", reserving("b", "/n/b", tcp(443, "2001:db8::1")),
			&portmap.ConflictError{Mapping: tcp(443, "2001:db8::1"), Other: tcp(443, ""), ID: "b", OtherID: "a"}},
		{"all of IPv6", reserving("b", "/n/b", tcp(80, "::")), nil},
		{"another address", reserving("b", "/n/b", tcp(80, "192.0.2.2")), nil},
		{"another protocol", reserving("b", "/n/b", portmap.Mapping{HostPort: 443, Protocol: "udp"}), nil},
		{"its own", reserving("a", "/n/a", tcp(80, ""), tcp(443, "")), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := stateFiles(t, s)
			err := s.Reserve(t.Context(), test.record, unwarned(t))
			if test.want != nil {
				require.Equal(t, test.want, err)
				require.Equal(t, before, stateFiles(t, s), "nothing was written")
				return
			}
			require.NoError(t, err)
			if test.record.ID != "a" {
				require.NoError(t, s.Delete(test.record.ID))
				require.Equal(t, before, stateFiles(t, s), "nothing is left")
			}
		})
	}
	require.EqualError(t, &NetnsError{Netns: "/n", ID: "b", OtherID: "a"},
		`network namespace "/n" of allocation "b" is that of allocation "a"`)
}

// TestReserveOfANamespace goes by what it is, and by its path where that is not known.
func TestReserveOfANamespace(t *testing.T) {
	s := open(t)
	is := func(inode, cookie uint64) sandbox.Identity {
		return sandbox.Identity{Device: 4, Inode: inode, Cookie: cookie}
	}
	have := reserving("a", "/n/a")
	have.Namespace = is(7, 1)
	require.NoError(t, s.Reserve(t.Context(), have, unwarned(t)))
	for _, test := range []struct {
		name, netns string
		namespace   sandbox.Identity
		taken       bool
	}{
		{"another path", "/n/b", is(7, 1), true},
		{"without its cookie", "/n/b", is(7, 0), true},
		{"an inode that is used again", "/n/b", is(7, 2), false},
		{"another one at the path", "/n/a", is(8, 2), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := stateFiles(t, s)
			r := reserving("b", test.netns)
			r.Namespace = test.namespace
			err := s.Reserve(t.Context(), r, unwarned(t))
			if test.taken {
				require.Equal(t, &NetnsError{Netns: test.netns, ID: "b", OtherID: "a"}, err)
			} else {
				require.NoError(t, err)
				require.NoError(t, s.Delete("b"))
			}
			require.Equal(t, before, stateFiles(t, s))
		})
	}
	read, err := s.Get("a")
	require.NoError(t, err)
	require.Equal(t, have.Namespace, read.Namespace)
	require.NoError(t, s.Delete("a"))
	require.Equal(t, []string{"claims/complete-3"}, stateFiles(t, s), "nothing is left")
}

func TestReserveLeavesNothing(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Reserve(t.Context(), reserving("a", "/n/a", tcp(80, ""), tcp(81, "")), unwarned(t)))
	require.Len(t, stateFiles(t, s), 5)
	before, err := os.ReadDir(string(s.index))
	require.NoError(t, err)
	require.ErrorIs(t, s.Reserve(t.Context(), reserving("b", "/n/b", tcp(79, ""), tcp(80, "")), unwarned(t)), portmap.ErrConflict)
	after, err := os.ReadDir(string(s.index))
	require.NoError(t, err)
	require.Equal(t, before, after, "what was created")
	require.NoError(t, s.Delete("a"))
	require.Equal(t, []string{"claims/complete-3"}, stateFiles(t, s))
	entries, err := os.ReadDir(string(s.index))
	require.NoError(t, err)
	require.Len(t, entries, 1, "no empty directories")

	require.NoError(t, os.Mkdir(s.draft("b"), 0o700)) // so that the record cannot be written
	require.ErrorContains(t, s.Reserve(t.Context(), reserving("b", "/n/b", tcp(80, "")), unwarned(t)), `write record of allocation "b"`)
	require.Equal(t, []string{"claims/complete-3"}, stateFiles(t, s))
}

// TestReserveReadsNoOtherRecords: it reads only records that may conflict.
func TestReserveReadsNoOtherRecords(t *testing.T) {
	s := open(t)
	for i := range 20 {
		id := fmt.Sprint("other-", i)
		require.NoError(t, s.Reserve(t.Context(), reserving(id, "/n/"+id, tcp(1000+i, ""), tcp(80, fmt.Sprint("192.0.2.", i))), unwarned(t)))
		require.NoError(t, os.WriteFile(s.file(id), []byte("garbage"), 0o600))
	}
	require.NoError(t, s.Reserve(t.Context(), reserving("a", "/n/a", tcp(80, "192.0.2.99"), tcp(999, "")), unwarned(t)))
	require.NoError(t, s.Delete("a"))

	var warned []string
	warn := func(err error) {
		var corrupt *CorruptError
		require.ErrorAs(t, err, &corrupt)
		warned = append(warned, corrupt.ID)
	}
	require.NoError(t, s.Reserve(t.Context(), reserving("a", "/n/a", tcp(80, "192.0.2.3"), tcp(1007, "")), warn))
	require.Equal(t, []string{"other-3", "other-7"}, warned)
	require.FileExists(t, s.file("a"))
	for _, id := range warned {
		require.Contains(t, stateFiles(t, s), "claims/port-80/"+id, "what cannot be read may still have it")
	}
}

// TestReserveAfterCrash tests all states that a crash or a partial removal of
// the state directory can leave.
func TestReserveAfterCrash(t *testing.T) {
	owner := reserving("a", "/n/a", tcp(80, ""))
	rival := reserving("b", "/n/b", tcp(80, ""))
	for _, test := range []struct {
		name  string
		crash func(t *testing.T, s *Store)
		taken bool
	}{
		{"reserved, not recorded", func(t *testing.T, s *Store) { require.NoError(t, os.Remove(s.file("a"))) }, false},
		{"reserved more than recorded", func(t *testing.T, s *Store) {
			other, err := encode(reserving("a", "/n/other", tcp(81, "")))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(s.file("a"), other, 0o600))
		}, false},
		{"half a draft", func(t *testing.T, s *Store) {
			require.NoError(t, os.WriteFile(s.draft("a"), bytes.Repeat([]byte("half"), 2000), 0o600))
		}, true},
		{"interrupted widening of a reservation", func(t *testing.T, s *Store) {
			require.NoError(t, os.Symlink("*", s.index.draft("a")))
		}, true},
		{"recorded, index gone", func(t *testing.T, s *Store) { require.NoError(t, os.RemoveAll(string(s.index))) }, true},
		{"index half made", func(t *testing.T, s *Store) {
			require.NoError(t, errors.Join(os.Remove(s.index.complete()), os.RemoveAll(s.index.dir("port-80"))))
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t)
			require.NoError(t, s.Reserve(t.Context(), owner, unwarned(t)))
			test.crash(t, s)
			s = Open(filepath.Dir(s.dir))
			err := s.Reserve(t.Context(), rival, unwarned(t))
			if test.taken {
				require.ErrorIs(t, err, portmap.ErrConflict)
				require.NoError(t, s.Put(reserving("a", "/n/a", tcp(80, "192.0.2.1"))))
				require.ErrorIs(t, s.Reserve(t.Context(), rival, unwarned(t)), portmap.ErrConflict)
				require.NoError(t, s.Delete("a"))
				require.NoError(t, s.Reserve(t.Context(), rival, unwarned(t)))
			}
			require.NoError(t, errors.Join(s.Reserve(t.Context(), rival, unwarned(t)), s.Delete("b")))
			require.NotContains(t, strings.Join(stateFiles(t, s), " "), "port-80/a", "what was stale is gone")
			require.NotContains(t, strings.Join(stateFiles(t, s), " "), ".a")
		})
	}
}

// TestStaleReservationOfLockedAllocation: the holder of the lock may have
// reserved without having written the record yet.
func TestStaleReservationOfLockedAllocation(t *testing.T) {
	s := open(t)
	for _, c := range reservationsOf("/n/a", []portmap.Mapping{tcp(80, "")}) {
		require.NoError(t, s.index.add("a", c))
	}
	unlock, err := Open(filepath.Dir(s.dir)).Lock(t.Context(), "a")
	require.NoError(t, err)
	require.NoError(t, s.Reserve(t.Context(), reserving("b", "/n/b", tcp(80, "")), unwarned(t)))
	require.Contains(t, stateFiles(t, s), "claims/port-80/a")
	unlock()
	require.NoError(t, s.Reserve(t.Context(), reserving("b", "/n/b", tcp(80, "")), unwarned(t)))
	require.NotContains(t, stateFiles(t, s), "claims/port-80/a")
}

// TestSweep: Sweep removes reservations without a record, but not those of a
// locked allocation or of an unreadable record.
func TestSweep(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Sweep(t.Context()), "there is no index yet")
	require.NoError(t, s.Reserve(t.Context(), reserving("a", "/n/a", tcp(80, "")), unwarned(t)))
	require.NoError(t, s.Reserve(t.Context(), reserving("unreadable", "/n/u", tcp(81, "")), unwarned(t)))
	require.NoError(t, os.WriteFile(s.file("unreadable"), []byte("garbage"), 0o600))
	before := stateFiles(t, s)
	for id, netns := range map[string]string{"a": "/n/earlier", "gone": "/n/gone", "busy": "/n/busy"} {
		for _, c := range reservationsOf(netns, []portmap.Mapping{tcp(82, "192.0.2.1")}) {
			require.NoError(t, s.index.add(id, c))
		}
	}
	unlock, err := Open(filepath.Dir(s.dir)).Lock(t.Context(), "busy")
	require.NoError(t, err)
	require.NoError(t, s.Sweep(t.Context()))
	busy := []string{"claims/" + netnsKey("/n/busy") + "/busy", "claims/port-82/busy"}
	require.ElementsMatch(t, append(busy, before...), stateFiles(t, s))
	unlock()
	require.NoError(t, s.Sweep(t.Context()))
	require.Equal(t, before, stateFiles(t, s))
}

// TestPutReserves: a record written by Put conflicts like one written by
// Reserve.
func TestPutReservations(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Reserve(t.Context(), reserving("x", "/n/x"), unwarned(t))) // completes the index
	require.NoError(t, s.Put(reserving("a", "/n/a", tcp(80, "192.0.2.1"))))
	wants := func(ip string) error {
		return s.Reserve(t.Context(), reserving("b", "/n/b", tcp(80, ip)), unwarned(t))
	}
	require.ErrorIs(t, wants("192.0.2.1"), portmap.ErrConflict)
	require.NoError(t, s.Put(reserving("a", "/n/a", tcp(80, "192.0.2.2"))))
	require.ErrorIs(t, wants("192.0.2.2"), portmap.ErrConflict)
	require.NoError(t, wants("192.0.2.1"))
	value, err := os.Readlink(s.index.link("port-80", "a"))
	require.NoError(t, err)
	require.Equal(t, everything, value, "until it is written, both records hold")
}

// TestDeleteAfterACrash between the reservations and the record.
func TestDeleteAfterACrash(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Reserve(t.Context(), reserving("b", "/n/b", tcp(80, "192.0.2.1")), unwarned(t)))
	before := stateFiles(t, s)
	for _, c := range reservationsOf("/n/a", []portmap.Mapping{tcp(80, "192.0.2.2"), tcp(81, "")}) {
		require.NoError(t, s.index.add("a", c))
	}
	require.NoError(t, s.index.makeDir("port-82")) // earlier still
	require.NoError(t, s.Delete("a"))
	require.Equal(t, before, stateFiles(t, s))
	entries, err := os.ReadDir(string(s.index))
	require.NoError(t, err)
	require.Len(t, entries, 3, "no empty directories")
}

func TestDeleteUnreadable(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Reserve(t.Context(), reserving("a", "/n/a", tcp(80, "")), unwarned(t)))
	require.NoError(t, os.WriteFile(s.file("a"), []byte("garbage"), 0o600))
	require.NoError(t, os.WriteFile(s.draft("a"), []byte("half"), 0o600))
	require.NoError(t, os.Symlink(everything, s.index.draft("a")))
	require.NoError(t, s.Delete("a"))
	require.NotContains(t, stateFiles(t, s), "claims/.a")
	require.NoFileExists(t, s.file("a"))
	require.NoFileExists(t, s.draft("a"))
	require.NoError(t, s.Reserve(t.Context(), reserving("b", "/n/a", tcp(80, "")), unwarned(t)))
}

func TestReserveOfOlderRecords(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Put(reserving("a", "/n/a", tcp(80, ""))))
	require.NoError(t, os.WriteFile(s.file("newer"), []byte(`{"version":2,"id":"newer"}`), 0o600))
	require.NoError(t, os.RemoveAll(string(s.index)))
	var warned error
	err := s.Reserve(t.Context(), reserving("b", "/n/b", tcp(80, "")), func(err error) { warned = errors.Join(warned, err) })
	require.ErrorIs(t, err, portmap.ErrConflict)
	require.ErrorIs(t, warned, ErrNewer)
	require.NoError(t, s.Reserve(t.Context(), reserving("b", "/n/b"), unwarned(t)), "once only")
}

func TestReserveGivesUp(t *testing.T) {
	s := open(t)
	unlock, err := Open(filepath.Dir(s.dir)).LockReservations(t.Context())
	require.NoError(t, err)
	defer unlock()
	require.True(t, locked(t, func(ctx context.Context) (func(), error) {
		return func() {}, s.Reserve(ctx, reserving("a", "/n/a"), unwarned(t))
	}))
	require.NoFileExists(t, s.file("a"))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Reserve(ended, reserving("a", "/n/a"), unwarned(t)), context.Canceled)
	unlock()
	require.NoError(t, s.Reserve(t.Context(), reserving("a", "/n/a"), unwarned(t)))
}

func TestPartOf(t *testing.T) {
	for want, ports := range map[string][]portmap.Mapping{
		"tcp/,udp/192.0.2.1": {tcp(1, ""), {HostPort: 1, Protocol: "udp", HostIP: "192.0.2.1"}},
		"/":                  {{HostPort: 1}},
		"*":                  {tcp(1, "a,b")},
		"* ":                 {tcp(1, "a/b")},
		"*  ":                {tcp(1, strings.Repeat("a", maxValue))},
	} {
		require.Equal(t, strings.TrimSpace(want), valueOf(ports))
		require.True(t, reservation{value: valueOf(ports), ports: ports}.meets(valueOf(ports)))
	}
	require.True(t, reservation{value: everything}.meets("of/another version"))
	require.True(t, reservation{value: "tcp/", ports: []portmap.Mapping{tcp(1, "")}}.meets("of another version"))
}

// scan returns the expected result of Reserve, from a scan of all records.
func scan(r *Record, others []*Record) error {
	for _, o := range others {
		if o.ID == r.ID {
			continue
		}
		if err := conflict(r, o); err != nil {
			return err
		}
	}
	return nil
}

// TestReserveIsThePlainScan compares Reserve with a scan of all records, while
// records are added, changed, removed and corrupted, and the index is lost.
func TestReserveIsThePlainScan(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 4))
	one := func(of ...string) string { return of[rnd.IntN(len(of))] }
	mapping := func() portmap.Mapping {
		return portmap.Mapping{
			HostPort: 80 + rnd.IntN(6),
			Protocol: one("tcp", "udp", "TCP"),
			HostIP: one("", "0.0.0.0", "::", "192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1", "2001:DB8::1",
				"fe80::1%eth0", "::ffff:192.0.2.1", "no address", "x/y"),
		}
	}
	random := func() *Record {
		id := fmt.Sprint("alloc-", rnd.IntN(12))
		r := reserving(id, one("/n/"+id, "/n/"+id, "/n//"+id, "/n/shared", "/n/./shared"))
		for range rnd.IntN(4) {
			r.Ports = append(r.Ports, mapping())
		}
		return r
	}
	s := open(t)
	warned := func(error) {}
	conflicts, successes := 0, 0
	for range 3000 {
		r := random()
		switch rnd.IntN(16) {
		default:
			all, _ := s.List()
			want := scan(r, all)
			require.Equal(t, want, s.Reserve(t.Context(), r, warned))
			if want == nil {
				successes++
			} else {
				conflicts++
			}
		case 0:
			require.NoError(t, s.Put(r))
		case 1, 2, 3, 4, 5:
			require.NoError(t, s.Delete(r.ID))
		case 6:
			_ = os.Remove(s.file(r.ID))
		case 7:
			require.NoError(t, os.WriteFile(s.file(r.ID), []byte("garbage"), 0o600))
		case 8:
			require.NoError(t, os.RemoveAll(string(s.index)))
		case 9:
			for _, c := range reservationsOf(r.Netns, r.Ports) {
				require.NoError(t, s.index.add(r.ID, c))
			}
		case 10:
			s = Open(filepath.Dir(s.dir))
		}
	}
	require.Greater(t, conflicts, 100)
	require.Greater(t, successes, 100)
}

const rivalDir = "ALLOCNET_TEST_RIVAL_DIR"

// TestReserveExcludes has processes, and goroutines in each, fight for one port.
func TestReserveExcludes(t *testing.T) {
	if dir := os.Getenv(rivalDir); dir != "" {
		fight(t, dir, "child")
		return
	}
	s := open(t)
	dir := filepath.Dir(s.dir)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestReserveExcludes$")
	cmd.Env = append(os.Environ(), rivalDir+"="+dir)
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	require.NoError(t, cmd.Start())
	fight(t, dir, "parent")
	require.NoError(t, cmd.Wait(), output.String())
	require.Equal(t, []string{"claims/complete-3"}, stateFiles(t, s))
}

func fight(t *testing.T, dir, name string) {
	const rivals, rounds = 3, 60
	done := make(chan error, rivals)
	s := Open(dir)
	for i := range rivals {
		go func() { done <- reserveInTurn(t.Context(), s, fmt.Sprint(name, i), rounds) }()
	}
	for range rivals {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// reserveInTurn reserves and releases in turns, and checks in between that no other
// allocation has the same reservation.
func reserveInTurn(ctx context.Context, s *Store, id string, rounds int) error {
	for won := 0; won < rounds; {
		unlock, err := s.Lock(ctx, id)
		if err != nil {
			return err
		}
		r := reserving(id, "/n/"+id, tcp(80, ""))
		err = s.Reserve(ctx, r, func(err error) { panic(err) })
		if errors.Is(err, portmap.ErrConflict) {
			unlock()
			continue
		}
		won++
		all, listErr := s.List()
		err = errors.Join(err, listErr, scan(r, all), s.Delete(id))
		unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// TestEnterAtTheSameTime: the process that completes the index does not hold
// the allocation's lock, and others add and remove reservations at the same
// time.
func TestEnterAtTheSameTime(t *testing.T) {
	x := open(t).index
	done := make(chan error)
	const rivals, rounds = 4, 2000
	for i := range rivals {
		go func() {
			var err error
			for round := 0; round < rounds && err == nil; round++ {
				c := reservationsOf("", []portmap.Mapping{tcp(80, fmt.Sprint((i+round)%3))})[1]
				if err = x.add("a", c); err == nil && i%2 == 0 {
					err = x.release("a", c)
				}
			}
			done <- err
		}()
	}
	for range rivals {
		require.NoError(t, <-done)
	}
	require.NoError(t, os.Symlink("nowhere", x.dir("port-81")))
	c := reservationsOf("", []portmap.Mapping{tcp(81, "")})[1]
	require.ErrorContains(t, x.add("a", c), `reserve port-81 for allocation "a": `)
}

// TestRecordsAreInTheIndex is what everything else relies on, whatever was done.
func TestRecordsAreInTheIndex(t *testing.T) {
	s := open(t)
	for i := range 30 {
		id := fmt.Sprint("alloc-", i%7)
		require.NoError(t, s.Put(reserving(id, fmt.Sprint("/n/", i%3), tcp(80+i%5, ""), tcp(80+i%4, "192.0.2.1"))))
		all, err := s.List()
		require.NoError(t, err)
		for _, r := range all {
			for _, c := range reservationsOf(r.Netns, r.Ports) {
				ids, err := s.index.holders(c)
				require.NoError(t, err)
				require.True(t, slices.Contains(ids, r.ID), "%s %s", r.ID, c.key)
			}
		}
	}
}

// of returns a record of an interface of a container.
func of(container, ifName, netns string) *Record {
	r := reserving(container+"."+ifName, netns)
	r.ContainerID, r.Attachments = container, []Attachment{{Network: "net", IfName: ifName}}
	return r
}

// TestReserveContainer: objects on the host have the ID of the container and the interface as their
// owner, so no two allocations may have both.
func TestReserveContainer(t *testing.T) {
	named := reserving("c", "/n/c")
	again := of("c", "eth0", "/n/b")
	again.ID = "again"
	for name, test := range map[string]struct {
		have, want *Record
		other      string // "" if they do not conflict
	}{
		"interfaces of one container":    {of("c", "eth0", "/n/c"), of("c", "eth1", "/n/c"), ""},
		"containers":                     {of("c", "eth0", "/n/c"), of("d", "eth0", "/n/d"), ""},
		"the container's ID":             {of("c", "eth0", "/n/c"), reserving("c", "/n/b"), "c.eth0"},
		"the ID of another":              {named, of("c", "eth0", "/n/b"), "c"},
		"an interface of another":        {of("c", "eth0", "/n/c"), again, "c.eth0"},
		"the allocation itself":          {of("c", "eth0", "/n/c"), of("c", "eth0", "/n/c"), ""},
		"an ID that begins like another": {of("c", "eth0", "/n/c"), reserving("c.e", "/n/b"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			require.NoError(t, s.Reserve(t.Context(), test.have, unwarned(t)))
			other, err := s.Namesake(test.want)
			require.NoError(t, err)
			require.Equal(t, test.other, other)
			err = s.Reserve(t.Context(), test.want, unwarned(t))
			if test.other == "" {
				require.NoError(t, err)
				require.NoError(t, s.Delete(test.want.ID))
			} else {
				var taken *ContainerError
				require.ErrorAs(t, err, &taken)
				require.Equal(t, &ContainerError{ContainerID: "c", ID: test.want.ID, OtherID: test.other, Interface: test.want == again}, taken)
			}
			require.NoError(t, s.Delete(test.have.ID))
			require.Equal(t, []string{"claims/complete-3"}, stateFiles(t, s), "nothing is left")
			other, err = s.Namesake(test.want)
			require.NoError(t, err)
			require.Empty(t, other)
		})
	}
}

// TestContainersOfOlderVersions: their index has no containers, also if it is used after that of this
// version was complete.
func TestContainersOfOlderVersions(t *testing.T) {
	s := open(t)
	require.NoError(t, s.Reserve(t.Context(), reserving("a", "/n/a"), unwarned(t)))
	require.NoError(t, s.Put(of("c", "eth0", "/n/c")))
	require.NoError(t, os.RemoveAll(s.index.dir("container-c")))
	require.NoError(t, os.WriteFile(s.index.completeBefore(), nil, 0o600))
	other, err := s.Namesake(reserving("c", "/n/b"))
	require.NoError(t, err)
	require.Equal(t, "c.eth0", other)
	var taken *ContainerError
	require.ErrorAs(t, s.Reserve(t.Context(), reserving("c", "/n/b"), unwarned(t)), &taken)
	require.NoFileExists(t, s.index.completeBefore())
}
