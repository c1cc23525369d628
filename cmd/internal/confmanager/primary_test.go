package confmanager

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/state/conflist"
)

func oursFor(name string) string {
	return `{"cniVersion":"1.0.0","name":"` + name + `","plugins":[{"type":"p"},{"type":"allocnet","delegates":["` + name + `"]}]}`
}

// TestPrimary starts with a directory and checks which network is the primary
// one.
func TestPrimary(t *testing.T) {
	tests := []struct {
		name    string
		files   []string // pairs of name and content
		primary string   // the configured name
		want    string
	}{
		{"the first", []string{"20-b.conflist", network("b", "p"), "10-a.conflist", network("a", "p")}, "", "a"},
		{"any extension", []string{"20-b.conflist", network("b", "p"), "10-a.conf", `{"cniVersion":"0.4.0","name":"a","type":"p"}`}, "", "a"},
		{"the first valid", []string{"20-b.conflist", network("b", "p"), "10-a.conflist", "{"}, "", "b"},
		{"the first that is not ours", []string{"20-b.conflist", network("b", "p"), "10-a.conflist", oursFor("a")}, "", "b"},
		{"named", []string{"20-b.conflist", network("b", "p"), "10-a.conflist", network("a", "p")}, "b", "b"},
		{"named, behind another of ours", []string{"20-b.conflist", network("b", "p"), "10-b.conflist", oursFor("b")}, "b", "b"},
		{"no configuration by its extension", []string{"20-b.conflist", network("b", "p"), "10-a.bak", network("a", "p")}, "", "b"},
		{"an own file left from before", []string{"20-b.conflist", network("b", "p"), OwnFileName, oursFor("b")}, "b", "b"},
		{"an own file left empty", []string{"20-b.conflist", network("b", "p"), OwnFileName, ""}, "", "b"},
		{"embedded", []string{"20-b.conflist", network("b", "p")}, conflist.EmbeddedName, conflist.EmbeddedName},
		{"a file in place of the embedded one", []string{"20-b.conflist", network(conflist.EmbeddedName, "p")}, conflist.EmbeddedName, conflist.EmbeddedName},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(o *Options) { o.Primary, o.Embedded = tt.primary, embedded(t) })
			for i := 0; i < len(tt.files); i += 2 {
				r.write("net.d/"+tt.files[i], tt.files[i+1])
			}
			r.run().delegates(tt.want)
			requireOwn(t, r)
			s := r.State()
			require.Equal(t, r.path(own), s.OwnFile)
			require.True(t, s.Written)
			require.False(t, s.Since.IsZero())
			for i := 0; i < len(tt.files); i += 2 {
				if tt.files[i] != OwnFileName {
					require.Equal(t, tt.files[i+1], r.read("net.d/"+tt.files[i]), "a file of somebody else")
				}
			}
		})
	}
}

func embedded(t *testing.T) *conflist.Network {
	t.Helper()
	n, err := conflist.Embedded(conflist.EmbeddedOptions{StateDir: "/x", Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}})
	require.NoError(t, err)
	return n
}

// TestNoPrimary starts with a directory without a primary network. Nothing is
// written, and the reason is reported.
func TestNoPrimary(t *testing.T) {
	tests := []struct {
		name    string
		files   []string
		primary string
		want    []string
	}{
		{"nothing", nil, "", []string{"no primary network", "holds no .conflist"}},
		{"only ours", []string{"10-a.conflist", oursFor("a")}, "", []string{"no primary network"}},
		{"only broken", []string{"10-a.conflist", "{\n,"}, "", []string{"no primary network", "10-a.conflist", "2:1"}},
		{"named and missing", []string{"10-a.conflist", network("a", "p")}, "b", []string{"no primary network", `"b"`, `known by name: "a"`}},
		{"named after ours", []string{"10-a.conflist", oursFor("a")}, "a", []string{"no primary network", "allocnet itself"}},
		{"embedded not named", nil, "", []string{"no primary network"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, func(o *Options) { o.Primary, o.Embedded = tt.primary, embedded(t) })
			for i := 0; i < len(tt.files); i += 2 {
				r.write("net.d/"+tt.files[i], tt.files[i+1])
			}
			r.run().unready(tt.want...)
			require.NoFileExists(t, r.path(own))
			require.False(t, r.State().Written)
			require.Empty(t, r.State().Primary)

			// The manager recovers without a restart.
			r.write("net.d/05-x.conflist", network("x", "p"), "net.d/06-b.conflist", network("b", "p"), "net.d/07-a.conflist", network("a", "p"))
			want := tt.primary
			if want == "" {
				want = "x"
			}
			r.delegates(want)
		})
	}
}

// TestForeignOwnFile starts while a foreign network has the name of the
// manager's file. The manager must not overwrite it.
func TestForeignOwnFile(t *testing.T) {
	for _, name := range []string{"b", "z"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			foreign := network(name, "other")
			r.write("net.d/20-b.conflist", network("b", "p"), own, foreign)
			r.run().unready(r.path(own), "another program", "remove it")
			require.Equal(t, foreign, r.read(own))
			require.False(t, r.State().Written)
			r.remove(own)
			r.delegates("b")
		})
	}
}

// TestEarlierThanOurs: the manager reports a network that runtimes use instead
// of its own.
func TestEarlierThanOurs(t *testing.T) {
	r := newRig(t)
	r.write("net.d/00-a.conflist", network("a", "p"), "net.d/20-b.conflist", network("b", "p"))
	r.run().delegates("a")
	r.reports(r.path("net.d/00-a.conflist"), "sorts before", "rename")
	r.rename("net.d/00-a.conflist", "net.d/01-a.conflist")
	r.eventually(func() bool { return len(r.State().Problems) == 0 }, "no problem")
	r.delegates("a")
}

// TestNetworks: all networks that can be delegated to are listed, not only the
// primary one.
func TestNetworks(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Embedded = embedded(t) })
	r.write("net.d/20-b.conflist", network("b", "p"), "net.d/30-c.conflist", network("c", "p"), "net.d/40-o.conflist", oursFor("o"))
	_, ok := r.raw("b")
	require.False(t, ok, "before the first look")
	r.run().delegates("b")
	var known []string
	for _, n := range r.Networks() {
		known = append(known, n.Name)
	}
	require.Equal(t, []string{"b", "c", conflist.EmbeddedName}, known)
	for _, name := range known {
		raw, ok := r.raw(name)
		require.True(t, ok)
		n, err := conflist.Parse([]byte(raw))
		require.NoError(t, err)
		require.Equal(t, name, n.Name)
		require.Equal(t, raw, string(n.Bytes), "complete")
	}
	for _, name := range []string{"", "o", "x"} {
		_, ok := r.raw(name)
		require.False(t, ok, name)
	}

	// A broken network stays until its file is removed, also one that was added
	// later.
	good, _ := r.raw("c")
	r.write("net.d/30-c.conflist", "{")
	r.reports(r.path("net.d/30-c.conflist"))
	raw, ok := r.raw("c")
	require.True(t, ok)
	require.Equal(t, good, raw)
	r.remove("net.d/30-c.conflist")
	r.eventually(func() bool { _, ok := r.raw("c"); return !ok }, "gone")
	require.NoError(t, r.Ready())
}

// TestOtherNames uses other names for the manager's file and network.
func TestOtherNames(t *testing.T) {
	r := newRig(t, func(o *Options) { o.OwnFile, o.Name = "05-mine.conflist", "mine" })
	r.write("net.d/20-b.conflist", network("b", "p"))
	r.run()
	mine := "net.d/05-mine.conflist"
	r.eventually(func() bool { return delegateOf(r.read(mine)) == "b" && r.Ready() == nil }, "delegates")
	require.Contains(t, r.read(mine), `"name": "mine"`)
	entries, err := os.ReadDir(filepath.Dir(r.path(mine)))
	require.NoError(t, err)
	require.Len(t, entries, 2)
}

// TestUnreadableAtTheStart: a restart after an invalid edit does not move the
// host to another network.
func TestUnreadableAtTheStart(t *testing.T) {
	r := newRig(t)
	r.write("net.d/10-a.conflist", network("a", "p"), "net.d/20-b.conflist", network("b", "p"))
	r.run().delegates("a")
	again := func(change ...func(*Options)) *rig {
		r.stop()
		next := newRig(t, append(change, func(o *Options) { o.ConfDir = r.path("net.d") })...)
		next.dir = r.dir
		r = next
		return r.run()
	}
	written := r.read(own)
	bad := []string{"has been unreadable since the start", r.path("net.d/10-a.conflist"), "invalid JSON", `to make network "b" the primary one`}
	r.write("net.d/10-a.conflist", "{")
	again().unready(bad...)
	require.Equal(t, written, r.read(own))
	r.write("net.d/10-a.conflist", network("a", "q"))
	r.delegates("a")

	r.write("net.d/10-a.conflist", "{")
	again().unready(bad...)
	require.Equal(t, written, r.read(own))
	r.remove("net.d/10-a.conflist")
	r.delegates("b")

	// A file that sorts first would still become the primary network, and so
	// would the configured one.
	r.write("net.d/20-b.conflist", "{", "net.d/15-c.conflist", network("c", "p"), "net.d/30-d.conflist", network("d", "p"))
	again().delegates("c")
	r.write("net.d/15-c.conflist", "{")
	again(func(o *Options) { o.Primary = "d" }).delegates("d")
}

// TestFormer: the manager's file is recognised under its former names.
func TestFormer(t *testing.T) {
	r := newRig(t)
	r.write("net.d/20-b.conflist", network("b", "p"))
	as := func(owner, file string) {
		m, err := New(Options{ConfDir: r.path("net.d"), OwnFile: file, Owner: owner, Usable: func(*conflist.Network) error { return nil }})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		r.eventually(func() bool { return m.State().Written }, "writes %s", file)
		cancel()
		require.NoError(t, <-done)
		require.True(t, Wrote(r.path("net.d/"+file)))
	}
	as("me", "00-A.conflist")
	as("me", "00-Former.conflist")
	require.Empty(t, r.read("net.d/00-A.conflist"), "removed at once")
	as("another", "00-Other.conflist")
	r.write("net.d/00-Hand.conflist", oursFor("b"))

	next := newRig(t, func(o *Options) { o.ConfDir, o.Owner = r.path("net.d"), "me" })
	next.dir = r.dir
	next.run().delegates("b")
	next.eventually(func() bool { return next.read("net.d/00-Former.conflist") == "" }, "removes the former")
	next.logs("under its former name")
	next.reports("00-Other.conflist", "00-Hand.conflist", `sorts before "00-allocnet.conflist"`)
	require.True(t, Wrote(r.path("net.d/00-Other.conflist")))
	require.False(t, Wrote(r.path("net.d/00-Hand.conflist")))
}

// TestContested: another program repeatedly changes the manager's file.
func TestContested(t *testing.T) {
	r := newRig(t)
	now := time.Now()
	r.now = func() time.Time { return now }
	r.write("net.d/20-b.conflist", network("b", "p"))
	r.run().delegates("b")
	written := r.read(own)
	for i := range contestWrites {
		require.Empty(t, r.State().Problems, i)
		r.write(own, oursFor("x"))
		r.eventually(func() bool { return r.read(own) == written }, "written again")
	}
	r.reports(own, "changed by another program")
	require.NoError(t, r.Ready())
}
