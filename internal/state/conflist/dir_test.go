package conflist

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// list returns a valid configuration list, identified by its plugin type.
func list(name, plugin string) string {
	return fmt.Sprintf(`{"name":%q,"cniVersion":"1.0.0","plugins":[{"type":%q}]}`, name, plugin)
}

// write writes files below dir. pairs are names and contents in turn.
func write(t *testing.T, dir string, pairs ...string) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		path := filepath.Join(dir, pairs[i])
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(pairs[i+1]), 0o644))
	}
}

// state returns the active networks of a Dir as "name@file:type,type", and the
// base names of files with a problem, marked if shadowed.
func state(d *Dir) (networks, problems []string) {
	ns, ps := d.Networks()
	for _, n := range ns {
		file := ""
		if n.File != "" {
			file = filepath.Base(n.File)
		}
		networks = append(networks, fmt.Sprintf("%s@%s:%s", n.Name, file, strings.Join(n.PluginTypes(), ",")))
	}
	for _, p := range ps {
		problems = append(problems, filepath.Base(p.File))
	}
	return networks, problems
}

// within fails the test if fn blocks.
func within(t *testing.T, fn func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		require.FailNow(t, "blocked")
	}
}

func testNetwork(t *testing.T, name string) *Network {
	t.Helper()
	n, err := Parse([]byte(list(name, "embedded")))
	require.NoError(t, err)
	return n
}

func TestDirOrder(t *testing.T) {
	dir := t.TempDir()
	write(t, dir,
		"30-c.conflist", list("c", "p3"),
		"10-a.json", `{"name":"a","type":"p1"}`,
		"20-b.conf", `{"name":"b","cniVersion":"0.4.0","type":"p2"}`,
		"40-a.conflist", list("a", "shadowed"),
		"00-ignored.txt", list("ignored", "p"),
		"05-ignored", list("ignored", "p"),
	)
	d := New(dir, nil)
	require.NoError(t, d.Load())
	networks, problems := state(d)
	require.Equal(t, []string{"a@10-a.json:p1", "b@20-b.conf:p2", "c@30-c.conflist:p3"}, networks)
	require.Equal(t, []string{"40-a.conflist"}, problems)
	_, errs := d.Networks()
	require.ErrorIs(t, errs[0], ErrShadowed)
	require.ErrorContains(t, errs[0], `"a" is in "10-a.json"`)

	n, err := d.Lookup("")
	require.NoError(t, err)
	require.Equal(t, "a", n.Name)
	require.Equal(t, filepath.Join(dir, "10-a.json"), n.File)
	n, err = d.Lookup("c")
	require.NoError(t, err)
	require.Equal(t, []string{"p3"}, n.PluginTypes())
}

func TestDefaultIsFirstValid(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "10-bad.conflist", "{", "20-good.conflist", list("good", "p"))
	n, err := New(dir, nil).Lookup("")
	require.NoError(t, err)
	require.Equal(t, "good", n.Name)
}

func TestBrokenFiles(t *testing.T) {
	tests := []struct {
		name string
		make func(t *testing.T, path string)
		want string
	}{
		{"invalid JSON", text("{\n\"name\" 1}"), "invalid JSON at 2:8 (line:column)"},
		{"empty", text(""), "empty: write"},
		{"too large", text(`{"name":"` + strings.Repeat("x", maxSize) + `"}`), "larger than 1 MiB"},
		{"no name", text(`{"plugins":[{"type":"a"}]}`), "no network name"},
		{"climbing name", text(`{"name":"..","cniVersion":"1.0.0"}`), `network name ".."`},
		{"named pipe", func(t *testing.T, path string) { require.NoError(t, syscall.Mkfifo(path, 0o644)) }, "a named pipe, not a regular file"},
		{"directory", func(t *testing.T, path string) { require.NoError(t, os.Mkdir(path, 0o755)) }, "a directory, not a regular file"},
		{"socket", listenOn, "a socket, not a regular file"},
		{"device", symlink("/dev/zero"), "a device, not a regular file"},
		{"dangling symlink", symlink("nowhere"), `dangling symlink to "nowhere"`},
		{"symlink to itself", symlink("10-x.conflist"), "too many levels of symbolic links"},
		{"read error", symlink("/proc/self/mem"), "make it readable"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "10-x.conflist")
			tt.make(t, path)
			write(t, dir, "20-good.conflist", list("good", "p"))
			d := New(dir, nil)
			within(t, func() {
				require.NoError(t, d.Load())
				networks, errs := d.Networks()
				require.Len(t, networks, 1)
				require.Equal(t, "good", networks[0].Name)
				require.Len(t, errs, 1)
				require.Equal(t, path, errs[0].File)
				require.ErrorContains(t, errs[0], tt.want)
				require.ErrorContains(t, errs[0], path)
			})
		})
	}
}

func text(content string) func(*testing.T, string) {
	return func(t *testing.T, path string) { require.NoError(t, os.WriteFile(path, []byte(content), 0o644)) }
}

func symlink(target string) func(*testing.T, string) {
	return func(t *testing.T, path string) { require.NoError(t, os.Symlink(target, path)) }
}

func listenOn(t *testing.T, path string) {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
}

func TestSymlinkToRegularFile(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	write(t, other, "data", list("linked", "p"))
	require.NoError(t, os.Symlink(filepath.Join(other, "data"), filepath.Join(dir, "10-x.conflist")))
	n, err := New(dir, nil).Lookup("linked")
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, "10-x.conflist"), n.File)
}

func TestSidecar(t *testing.T) {
	tests := []struct {
		name, file, main, want string
	}{
		{"appended", "10-net.conflist", list("net", "inlined"), "inlined,one,two"},
		{"alone", "10-net.conflist", `{"name":"net","cniVersion":"1.1.0"}`, "one,two"},
		{"inlined only", "10-net.conflist",
			`{"name":"net","cniVersion":"1.1.0","loadOnlyInlinedPlugins":true,"plugins":[{"type":"inlined"}]}`, "inlined"},
		{"single plugin", "10-net.conf", `{"name":"net","cniVersion":"1.0.0","type":"single"}`, "single"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, tt.file, tt.main,
				"net/20-two.conf", `{"type":"two","capabilities":{"x":true}}`+"\n",
				"net/10-one.conf", `{"type":"one"}`,
				"net/README", "not a plugin",
				"net/sub.conf/x", "not a plugin")
			n, err := New(dir, nil).Lookup("net")
			require.NoError(t, err)
			require.Equal(t, tt.want, strings.Join(n.PluginTypes(), ","))
			requireSelfContained(t, n)
		})
	}
}

func TestSidecarIsNoDirectory(t *testing.T) {
	tests := []struct {
		name string
		make func(t *testing.T, path string)
	}{
		{"regular file", text("x")},
		{"named pipe", func(t *testing.T, path string) { require.NoError(t, syscall.Mkfifo(path, 0o644)) }},
		{"dangling symlink", symlink("nowhere")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, "10-net.conflist", list("net", "inlined"))
			tt.make(t, filepath.Join(dir, "net"))
			within(t, func() {
				n, err := New(dir, nil).Lookup("net")
				require.NoError(t, err)
				require.Equal(t, []string{"inlined"}, n.PluginTypes())
			})
		})
	}
}

func TestSidecarBroken(t *testing.T) {
	tests := []struct {
		name string
		make func(t *testing.T, path string)
		want string
	}{
		{"invalid JSON", text("{"), "invalid JSON at 1:1"},
		{"no type", text("{}"), `no "type"`},
		{"named pipe", func(t *testing.T, path string) { require.NoError(t, syscall.Mkfifo(path, 0o644)) }, "a named pipe"},
		{"dangling symlink", symlink("nowhere"), "dangling symlink"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			sidecar := filepath.Join(dir, "net", "x.conf")
			write(t, dir, "10-net.conflist", list("net", "inlined"), "net/README", "")
			tt.make(t, sidecar)
			d := New(dir, nil)
			within(t, func() {
				_, errs := d.Networks()
				require.Len(t, errs, 1)
				require.Equal(t, filepath.Join(dir, "10-net.conflist"), errs[0].File)
				require.ErrorContains(t, errs[0], fmt.Sprintf("sidecar plugin %q: ", sidecar))
				require.ErrorContains(t, errs[0], tt.want)
			})
			// A repair of the sidecar alone repairs the network.
			require.NoError(t, os.Remove(sidecar))
			networks, problems := state(d)
			require.Equal(t, []string{"net@10-net.conflist:inlined"}, networks)
			require.Empty(t, problems)
		})
	}
}

func TestNotFound(t *testing.T) {
	tests := []struct {
		name     string
		files    []string
		embedded bool
		lookup   string
		want     string
	}{
		{"empty directory", nil, false, "x",
			`network "x" not found in "DIR"; the directory holds no .conflist, .conf or .json file: put a network configuration list there`},
		{"empty directory, default", nil, true, "",
			`no default network in "DIR"; the directory holds no .conflist, .conf or .json file: put a network configuration list there; known by name: "inside"`},
		{"others known", []string{"1.conflist", list("a", "p"), "2.conflist", list("b", "p")}, true, "x",
			`network "x" not found in "DIR"; known by name: "a", "b", "inside"`},
		{"broken", []string{"1.conflist", list("a", "p"), "2.conflist", ""}, false, "x",
			`network "x" not found in "DIR"; known by name: "a"; skipped, and may hold it: ` +
				`2.conflist (empty: write a network configuration list into it, or remove it)`},
		{"shadowed is not broken", []string{"1.conflist", list("a", "p"), "2.conflist", list("a", "p")}, false, "x",
			`network "x" not found in "DIR"; known by name: "a"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, tt.files...)
			var embedded *Network
			if tt.embedded {
				embedded = testNetwork(t, "inside")
			}
			_, err := New(dir, embedded).Lookup(tt.lookup)
			require.EqualError(t, err, strings.ReplaceAll(tt.want, "DIR", dir))
			require.ErrorIs(t, err, ErrNotFound)
			var typed *NotFoundError
			require.ErrorAs(t, err, &typed)
			require.Equal(t, tt.lookup, typed.Name)
			require.Equal(t, dir, typed.Dir)
		})
	}
}

func TestNotFoundListsFew(t *testing.T) {
	dir := t.TempDir()
	for i := range maxListed + 3 {
		write(t, dir, fmt.Sprintf("%02d.conflist", i), "")
	}
	_, err := New(dir, nil).Lookup("x")
	require.ErrorContains(t, err, "07.conflist (empty")
	require.NotContains(t, err.Error(), "08.conflist")
	require.ErrorContains(t, err, ", and 3 more")
}

func TestMissingDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net.d")
	d := New(dir, testNetwork(t, "inside"))
	err := d.Load()
	require.ErrorIs(t, err, fs.ErrNotExist)
	var file *FileError
	require.ErrorAs(t, err, &file)
	require.Equal(t, dir, file.File)

	_, err = d.Lookup("x")
	require.ErrorIs(t, err, ErrNotFound)
	require.EqualError(t, err, fmt.Sprintf(`network "x" not found in %q; the directory does not exist: create it, and put a network configuration list there; known by name: "inside"`, dir))
	_, err = d.Lookup("")
	require.ErrorIs(t, err, ErrNotFound)
	require.EqualError(t, err, fmt.Sprintf(`no default network in %q; the directory does not exist: create it, and put a network configuration list there; known by name: "inside"`, dir))
	n, err := d.Lookup("inside")
	require.NoError(t, err)
	require.Equal(t, []string{"embedded"}, n.PluginTypes())

	// A directory that appears later is used.
	write(t, dir, "1.conflist", list("x", "p"))
	n, err = d.Lookup("")
	require.NoError(t, err)
	require.Equal(t, "x", n.Name)
	require.NoError(t, d.Load())
}

func TestDirectoryIsNoDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "net.d")
	require.NoError(t, syscall.Mkfifo(path, 0o644))
	within(t, func() {
		require.ErrorContains(t, New(path, nil).Load(), "not a file")
	})
}

func TestEmbeddedYieldsToFile(t *testing.T) {
	dir := t.TempDir()
	d := New(dir, testNetwork(t, "inside"))
	networks, _ := state(d)
	require.Equal(t, []string{"inside@:embedded"}, networks)

	write(t, dir, "10-a.conflist", list("inside", "file"), "20-b.conflist", list("b", "p"))
	networks, problems := state(d)
	require.Equal(t, []string{"inside@10-a.conflist:file", "b@20-b.conflist:p"}, networks)
	require.Empty(t, problems)

	// The file has precedence over the embedded network even when it is invalid
	// later.
	write(t, dir, "10-a.conflist", "{")
	n, err := d.Lookup("inside")
	require.NoError(t, err)
	require.Equal(t, []string{"file"}, n.PluginTypes())

	require.NoError(t, os.Remove(filepath.Join(dir, "10-a.conflist")))
	networks, _ = state(d)
	require.Equal(t, []string{"b@20-b.conflist:p", "inside@:embedded"}, networks)
	n, err = d.Lookup("")
	require.NoError(t, err)
	require.Equal(t, "b", n.Name)
}

// TestOwnFiles: the manager's own files are skipped, because allocnet would
// call itself.
func TestOwnFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "00-allocnet.conflist", list("net", OwnType), "05-chain.conflist",
		`{"name":"chain","cniVersion":"1.0.0","plugins":[{"type":"bridge"},{"type":"allocnet"}]}`, "10-net.conflist", list("net", "bridge"))
	d := New(dir, nil)
	networks, problems := state(d)
	require.Equal(t, []string{"net@10-net.conflist:bridge"}, networks)
	require.Empty(t, problems)
	n, err := d.Lookup("")
	require.NoError(t, err)
	require.Equal(t, []string{"bridge"}, n.PluginTypes())
	_, err = d.Lookup("chain")
	require.ErrorIs(t, err, ErrNotFound)
	require.ErrorContains(t, err, `05-chain.conflist" has that name, but its plugin is allocnet itself: name the network that it delegates to`)
}

// TestRecordedIsParsedOnce: thousands of records have the same configuration, which need
// not be that of the directory any more.
func TestRecordedIsParsedOnce(t *testing.T) {
	d := New(t.TempDir(), nil)
	text := func(i int) []byte {
		return fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"loopback","number":%d}]}`, i)
	}
	first, err := d.Recorded("net", text(0))
	require.NoError(t, err)
	again, err := d.Recorded("net", text(0))
	require.NoError(t, err)
	require.Same(t, first, again)
	for i := range 3 * maxRecorded {
		other, err := d.Recorded("net", text(i+1))
		require.NoError(t, err)
		require.NotSame(t, first, other)
		require.LessOrEqual(t, len(d.recorded), maxRecorded)
	}
	_, err = d.Recorded("net", []byte("{"))
	require.Error(t, err)
}
