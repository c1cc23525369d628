package record

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

func open(t testing.TB) *Store {
	t.Helper()
	s := Open(filepath.Join(t.TempDir(), "state"))
	require.NoError(t, os.MkdirAll(s.dir, 0o700))
	return s
}

func sample(id string) *Record {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	return &Record{
		Version: Version, ID: id, Netns: "/run/netns/" + id, Phase: Ready, Engine: "exec",
		Requested: []string{"a", ""}, Args: [][2]string{{"IgnoreUnknown", "true"}, {"K", "<&>"}},
		Capabilities:    map[string]json.RawMessage{"mac": json.RawMessage(`"02:00:00:00:00:01"`)},
		InterfacePrefix: "eth", Created: now, Updated: now,
		Attachments: []Attachment{
			{Network: "a", IfName: "eth0", Config: []byte("{\"odd\":  \"spaces\\u0000 <>\" }\n"), Result: json.RawMessage(`{"cniVersion":"1.0.0"}`)},
			{Network: "b", IfName: "eth1", Config: []byte("{}")},
		},
		Ports: []portmap.Mapping{{Label: "http", HostPort: 80, ContainerPort: 8080, Protocol: "tcp", HostIP: "192.0.2.1"}},
	}
}

func TestRoundTrip(t *testing.T) {
	s := open(t)
	want := sample("one")
	require.NoError(t, s.Put(want))
	got, err := s.Get("one")
	require.NoError(t, err)
	require.Equal(t, want, got, "above all the bytes of the configuration")

	require.NoError(t, s.Delete("one"))
	require.NoError(t, s.Delete("one"), "removing what is not there is no error")
	_, err = s.Get("one")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

func TestCorruptRecords(t *testing.T) {
	for name, content := range map[string]string{
		"empty":         "",
		"garbage":       "\x00\x01",
		"truncated":     `{"version":1,"id":"x"`,
		"no version":    `{"id":"x","phase":"ready"}`,
		"unknown phase": `{"version":1,"id":"x","phase":"dancing"}`,
		"of another":    `{"version":1,"id":"y","phase":"ready"}`,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			require.NoError(t, s.Put(sample("good")))
			require.NoError(t, os.WriteFile(s.file("x"), []byte(content), 0o600))
			_, err := s.Get("x")
			var corrupt *CorruptError
			require.ErrorAs(t, err, &corrupt)
			require.Equal(t, s.file("x"), corrupt.File)
			require.NotErrorIs(t, err, ErrNewer)

			all, err := s.List()
			require.ErrorAs(t, err, &corrupt, "List tells of it")
			require.Len(t, all, 1, "and returns the others")
			ids, err := s.IDs()
			require.NoError(t, err)
			require.Equal(t, []string{"good", "x"}, ids)
		})
	}
}

// TestUpdate: the outcome of an ADD is an appended line, which counts once it
// is complete.
func TestUpdate(t *testing.T) {
	s := open(t)
	intent, result := sample("one"), sample("one")
	intent.Namespace, result.Namespace = sandbox.Identity{Device: 4, Inode: 5}, sandbox.Identity{Device: 4, Inode: 5}
	intent.Phase, intent.Updated, intent.Attachments[0].Result = Adding, intent.Created.Add(time.Second), nil
	intent.Addresses = []cleanup.Address{{Network: "a", IP: netip.MustParseAddr("192.0.2.1")}}
	require.NoError(t, s.Put(intent))
	before, err := os.ReadFile(s.file("one"))
	require.NoError(t, err)
	require.NoError(t, s.Update(result))
	after, err := os.ReadFile(s.file("one"))
	require.NoError(t, err)
	require.True(t, bytes.HasPrefix(after, before), "nothing that counts is overwritten")

	for n := len(before); n < len(after); n++ {
		require.NoError(t, os.WriteFile(s.file("one"), after[:n], 0o600))
		got, err := s.Get("one")
		require.NoError(t, err)
		require.Equal(t, intent, got, "after %d bytes", n)
		require.Equal(t, intent.reservations(), s.reserved("one"))
		require.NoError(t, s.Update(result))
		got, err = s.Get("one")
		require.NoError(t, err)
		require.Equal(t, result, got, "behind what was left of another line")
	}

	require.NoError(t, os.WriteFile(s.file("one"), append(before, "{\"phase\":\"ready\",\"results\":[]}\n"...), 0o600))
	_, err = s.Get("one")
	require.ErrorContains(t, err, "results of 0 attachments instead of 2")

	require.NoError(t, s.Delete("one"))
	require.NoError(t, s.Update(result), "somebody swept the state directory")
	got, err := s.Get("one")
	require.NoError(t, err)
	require.Equal(t, result, got)
}

func TestNewerRecord(t *testing.T) {
	s := open(t)
	require.NoError(t, os.WriteFile(s.file("x"), []byte(`{"version":2,"id":"x","phase":"resting"}`), 0o600))
	_, err := s.Get("x")
	require.ErrorIs(t, err, ErrNewer)
}

// TestReadingChangesNothing: reading creates nothing, also without a state
// directory.
func TestReadingChangesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s := Open(dir)
	all, err := s.List()
	require.NoError(t, err)
	require.Empty(t, all)
	_, err = s.Get("x")
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoDirExists(t, dir)
}

func TestOtherFilesAreNoRecords(t *testing.T) {
	s := open(t)
	require.NoError(t, os.WriteFile(s.file("we ird"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, ".x.json123"), []byte("half"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, ".x.json"), []byte("half"), 0o600))
	all, err := s.List()
	require.NoError(t, err)
	require.Empty(t, all)
}

// TestModel compares the store with a map under random operations and restarts.
func TestModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	dir := t.TempDir()
	s := Open(dir)
	model := map[string]*Record{}
	for range 600 {
		id := fmt.Sprintf("alloc-%d", rnd.IntN(20))
		switch rnd.IntN(5) {
		case 0, 1:
			r := sample(id)
			r.Netns = fmt.Sprint(rnd.Int())
			require.NoError(t, s.Put(r))
			model[id] = r
		case 2:
			require.NoError(t, s.Delete(id))
			delete(model, id)
		case 3:
			got, err := s.Get(id)
			if model[id] == nil {
				require.ErrorIs(t, err, fs.ErrNotExist)
			} else {
				require.NoError(t, err)
				require.Equal(t, model[id], got)
			}
		case 4:
			s = Open(dir)
			all, err := s.List()
			require.NoError(t, err)
			require.Len(t, all, len(model))
		}
	}
}

func FuzzDecode(f *testing.F) {
	good, err := encode(sample("x"))
	require.NoError(f, err)
	f.Add(good)
	f.Add([]byte(`{"version":1,"phase":"ready","attachments":[{"config":"e30="}]}`))
	f.Add([]byte(`{"version":1,"phase":"adding","attachments":[{}]}` + "\n\n{\n\n" + `{"phase":"ready","results":[null]}` + "\n{"))
	f.Add([]byte(`{"version":1,"phase":"pooled","attachments":[]}` + "\n\n" + `{"taken":{"id":"x","slot":"s","phase":"adding","args":[["a","b"]]}}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data, "x")
		if err != nil {
			return
		}
		again, err := encode(r)
		require.NoError(t, err)
		r2, err := decode(again, "x")
		require.NoError(t, err)
		r2again, err := encode(r2)
		require.NoError(t, err)
		require.Equal(t, string(again), string(r2again))
	})
}

// TestRemovedStateDirectory: the store creates it again.
func TestRemovedStateDirectory(t *testing.T) {
	s := open(t)
	require.NoError(t, os.RemoveAll(filepath.Dir(s.dir)))
	ids, err := s.IDs()
	require.NoError(t, err)
	require.Empty(t, ids)
	unlock, err := s.Lock(t.Context(), "x")
	require.NoError(t, err)
	unlock()
	require.NoError(t, os.RemoveAll(s.dir))
	require.NoError(t, s.Put(sample("x")))
	require.NoError(t, os.RemoveAll(s.dir))
	require.NoError(t, os.WriteFile(s.dir, nil, 0o600))
	require.ErrorContains(t, s.Put(sample("x")), `allocation "x"`)
}

// locked reports whether take would have to wait.
func locked(t *testing.T, take func(context.Context) (func(), error)) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer time.AfterFunc(20*time.Millisecond, cancel).Stop()
	unlock, err := take(ctx)
	if err == nil {
		unlock()
		return false
	}
	require.ErrorIs(t, err, context.Canceled)
	return true
}

func TestLocks(t *testing.T) {
	s := open(t)
	other := Open(filepath.Dir(s.dir)) // as another process would
	one := func(ctx context.Context) (func(), error) { return other.Lock(ctx, "one") }
	two := func(ctx context.Context) (func(), error) { return other.Lock(ctx, "two") }

	unlock, err := s.Lock(t.Context(), "one")
	require.NoError(t, err)
	require.True(t, locked(t, one), "the same allocation waits")
	require.False(t, locked(t, two), "another one does not")
	require.False(t, locked(t, other.LockReservations))
	unlock()
	require.False(t, locked(t, one))
}

// TestNetworks: operations share the lock of a network, and GC holds it
// exclusively.
func TestNetworks(t *testing.T) {
	s := open(t)
	other := Open(filepath.Dir(s.dir)) // as another process would
	share := func(names ...string) func(context.Context) (func(), error) {
		return func(ctx context.Context) (func(), error) { return other.Share(ctx, names) }
	}
	alone := func(name string) func(context.Context) (func(), error) {
		return func(ctx context.Context) (func(), error) { return other.LockNetwork(ctx, name) }
	}
	unlock, err := s.Share(t.Context(), []string{"a", "b", "a"})
	require.NoError(t, err)
	require.False(t, locked(t, share("b", "a")))
	require.True(t, locked(t, alone("a")), "GC waits for operations")
	require.True(t, locked(t, alone("b")))
	require.False(t, locked(t, alone("c")))
	unlock()

	unlock, err = s.LockNetwork(t.Context(), "a")
	require.NoError(t, err)
	require.True(t, locked(t, share("b", "a")), "operations wait for GC")
	require.False(t, locked(t, alone("b")), "and then hold nothing")
	require.False(t, locked(t, share("b")))
	require.True(t, locked(t, alone("a")))
	require.False(t, locked(t, func(ctx context.Context) (func(), error) { return other.Lock(ctx, "a") }))
	require.False(t, locked(t, other.LockReservations))
	unlock()
	require.False(t, locked(t, alone("a")))
}

// TestGCDoesNotStarve: a waiting GC blocks new operations.
func TestGCDoesNotStarve(t *testing.T) {
	s := open(t)
	share := func(ctx context.Context) (func(), error) { return s.Share(ctx, []string{"net"}) }
	unlock, err := share(t.Context())
	require.NoError(t, err)
	got := make(chan func())
	go func() {
		unlockAlone, err := s.LockNetwork(context.Background(), "net")
		if err == nil {
			got <- unlockAlone
		}
	}()
	require.Eventually(t, func() bool { return locked(t, share) }, 5*time.Second, time.Millisecond)
	unlock()
	(<-got)()
	require.False(t, locked(t, share))
}

// TestFirst: ADDs of a network run one at a time until one has succeeded.
func TestFirst(t *testing.T) {
	s := open(t)
	done, err := s.First(t.Context(), "net")
	require.NoError(t, err)
	other := func(ctx context.Context) (func(), error) {
		done, err := s.First(ctx, "net")
		return func() { done(false) }, err
	}
	require.True(t, locked(t, other))
	done(false)
	require.False(t, locked(t, other), "it failed: the next one may try")

	done, err = s.First(t.Context(), "net")
	require.NoError(t, err)
	waited := make(chan error)
	go func() {
		done, err := s.First(context.Background(), "net")
		if err == nil {
			done(true)
		}
		waited <- err
	}()
	done(true)
	require.NoError(t, <-waited)
	hung, err := s.First(t.Context(), "other")
	require.NoError(t, err)
	require.False(t, locked(t, other), "a network that is warm waits for nobody")
	require.True(t, locked(t, func(ctx context.Context) (func(), error) {
		done, err := s.First(ctx, "net", "net+ports")
		return func() { done(false) }, err
	}))
	// The wait is bounded, and the ADD then continues.
	done, err = s.First(t.Context(), "third")
	require.NoError(t, err)
	done(true)
	hung(true)
}

// TestFirstLeavesTimeForTheAdd: a caller with a deadline waits only for a
// fraction of its time.
func TestFirstLeavesTimeForTheAdd(t *testing.T) {
	s := open(t)
	hung, err := s.First(t.Context(), "net")
	require.NoError(t, err)
	defer hung(false)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	done, err := s.First(ctx, "net")
	require.NoError(t, err)
	require.NoError(t, ctx.Err())
	done(false)
}
