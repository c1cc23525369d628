package conflist

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// replace returns a function that replaces path atomically.
func replace(make func(t *testing.T, path string)) func(*testing.T, string) {
	return func(t *testing.T, path string) {
		require.NoError(t, os.Remove(path))
		make(t, path)
	}
}

// TestLastGood changes one of two valid files and reads the directory again.
// The changed file sorts first or last.
func TestLastGood(t *testing.T) {
	fifo := func(t *testing.T, path string) { require.NoError(t, syscall.Mkfifo(path, 0o644)) }
	mkdir := func(t *testing.T, path string) { require.NoError(t, os.Mkdir(path, 0o755)) }
	tests := []struct {
		name   string
		change func(t *testing.T, path string)
		want   string // of the changed file, "" if its network is gone
		report string // part of its error, "" if there is none
	}{
		{"unchanged", func(*testing.T, string) {}, "x:old", ""},
		{"invalid JSON", text("{"), "x:old", "invalid JSON"},
		{"emptied", text(""), "x:old", "empty"},
		{"no plugins", text(`{"name":"x"}`), "x:old", "no plugins"},
		{"broken under another name", text(`{"name":"y"}`), "x:old", "no plugins"},
		{"named pipe", replace(fifo), "x:old", "named pipe"},
		{"directory", replace(mkdir), "x:old", "directory"},
		{"dangling symlink", replace(symlink("nowhere")), "x:old", "dangling symlink"},
		{"unreadable", replace(symlink("/proc/self/mem")), "x:old", "make it readable"},
		{"removed", func(t *testing.T, path string) { require.NoError(t, os.Remove(path)) }, "", ""},
		{"new content", text(list("x", "new")), "x:new", ""},
		{"new content, replaced", replace(text(list("x", "new"))), "x:new", ""},
		{"renamed network", text(list("y", "new")), "y:new", ""},
	}
	for _, tt := range tests {
		for _, file := range []string{"10-x.conflist", "90-x.conflist"} {
			t.Run(tt.name+"/"+file, func(t *testing.T) {
				dir := t.TempDir()
				path := filepath.Join(dir, file)
				write(t, dir, file, list("x", "old"), "50-other.conflist", list("other", "p"))
				d := New(dir, nil)
				require.NoError(t, d.Load())
				tt.change(t, path)
				within(t, func() {
					require.NoError(t, d.Load())
					require.Equal(t, expected(file, tt.want), strings.Join(first(state(d)), " "))
					_, errs := d.Networks()
					requireReport(t, errs, path, tt.report)
				})
			})
		}
	}
}

func first[A, B any](a A, _ B) A { return a }

// expected returns the state of the directory in TestLastGood.
func expected(file, want string) string {
	const other = "other@50-other.conflist:p"
	if want == "" {
		return other
	}
	want = strings.Replace(want, ":", "@"+file+":", 1)
	if file < "50" {
		return want + " " + other
	}
	return other + " " + want
}

func requireReport(t *testing.T, errs []*FileError, path, report string) {
	t.Helper()
	if report == "" {
		require.Empty(t, errs)
		return
	}
	require.Len(t, errs, 1)
	require.Equal(t, path, errs[0].File)
	require.ErrorContains(t, errs[0], report)
	require.ErrorContains(t, errs[0], `the last valid content of network "x" stays active`)
}

func TestLastGoodKeepsItsPlace(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "10-a.conflist", list("x", "old"))
	d := New(dir, nil)
	require.NoError(t, d.Load())
	write(t, dir, "10-a.conflist", "{", "20-b.conflist", list("x", "later"), "05-c.conf", "")
	networks, problems := state(d)
	require.Equal(t, []string{"x@10-a.conflist:old"}, networks)
	require.Equal(t, []string{"05-c.conf", "10-a.conflist", "20-b.conflist"}, problems)
	n, err := d.Lookup("")
	require.NoError(t, err)
	require.Equal(t, "x", n.Name)

	require.NoError(t, os.Remove(filepath.Join(dir, "10-a.conflist")))
	networks, _ = state(d)
	require.Equal(t, []string{"x@20-b.conflist:later"}, networks)
}

func TestLastGoodSidecar(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "10-a.conflist", list("x", "inlined"), "x/1.conf", `{"type":"old"}`)
	d := New(dir, nil)
	require.Equal(t, []string{"x@10-a.conflist:inlined,old"}, first(state(d)))
	write(t, dir, "x/1.conf", "{")
	networks, problems := state(d)
	require.Equal(t, []string{"x@10-a.conflist:inlined,old"}, networks)
	require.Equal(t, []string{"10-a.conflist"}, problems)
	write(t, dir, "x/1.conf", `{"type":"new"}`)
	networks, problems = state(d)
	require.Equal(t, []string{"x@10-a.conflist:inlined,new"}, networks)
	require.Empty(t, problems)
}

func TestLastGoodDirectory(t *testing.T) {
	tests := []struct {
		name   string
		change func(t *testing.T, path string)
	}{
		{"vanished", func(*testing.T, string) {}},
		{"symlink to itself", symlink("net.d")},
		{"regular file", text("x")},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "net.d")
			write(t, dir, "10-x.conflist", list("x", "old"), "20-bad.conflist", "{")
			d := New(dir, testNetwork(t, "inside"))
			require.NoError(t, d.Load())
			require.NoError(t, os.Rename(dir, dir+".away"))
			tt.change(t, dir)

			var file *FileError
			require.ErrorAs(t, d.Load(), &file)
			require.Equal(t, dir, file.File)
			networks, problems := state(d)
			require.Equal(t, []string{"x@10-x.conflist:old", "inside@:embedded"}, networks)
			require.Equal(t, []string{"net.d", "20-bad.conflist"}, problems)
			_, err := d.Lookup("x")
			require.NoError(t, err)
			_, err = d.Lookup("y")
			require.ErrorContains(t, err, "may hold it: the whole directory (open ")

			// A directory that was created again, but is empty, has no
			// networks.
			require.NoError(t, os.RemoveAll(dir))
			require.NoError(t, os.Mkdir(dir, 0o755))
			require.NoError(t, d.Load())
			networks, problems = state(d)
			require.Equal(t, []string{"inside@:embedded"}, networks)
			require.Empty(t, problems)
		})
	}
}

// TestUnchangedIsNotParsed: an unchanged file keeps its Network.
func TestUnchangedIsNotParsed(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "10-a.conflist", list("x", "old"), "x/1.conf", `{"type":"s"}`)
	d := New(dir, nil)
	lookup := func() *Network {
		n, err := d.Lookup("x")
		require.NoError(t, err)
		return n
	}

	// A recent change may hide another one with the same timestamps.
	d.now = func() time.Time { return time.Now().Add(-time.Minute) }
	young := lookup()
	require.Same(t, young, lookup(), "with the same content it is the same")
	overwriteQuietly(t, filepath.Join(dir, "10-a.conflist"), list("x", "one"))
	require.NotSame(t, young, lookup())

	d.now = func() time.Time { return time.Now().Add(time.Minute) }
	settled := lookup()
	require.Same(t, settled, lookup())

	changes := []struct {
		name   string
		change func()
	}{
		{"content", func() { write(t, dir, "10-a.conflist", list("x", "new")) }},
		{"content of equal size and time", func() { overwriteQuietly(t, filepath.Join(dir, "10-a.conflist"), list("x", "two")) }},
		{"file replaced", func() {
			write(t, dir, "tmp", list("x", "six"))
			require.NoError(t, os.Rename(filepath.Join(dir, "tmp"), filepath.Join(dir, "10-a.conflist")))
		}},
		{"sidecar plugin changed", func() { write(t, dir, "x/1.conf", `{"type":"t"}`) }},
		{"sidecar plugin added", func() { write(t, dir, "x/2.conf", `{"type":"u"}`) }},
		{"sidecar plugin removed", func() { require.NoError(t, os.Remove(filepath.Join(dir, "x", "1.conf"))) }},
		{"sidecar directory removed", func() { require.NoError(t, os.RemoveAll(filepath.Join(dir, "x"))) }},
		{"sidecar directory added", func() { write(t, dir, "x/9.conf", `{"type":"v"}`) }},
	}
	for _, c := range changes {
		before := lookup()
		c.change()
		after := lookup()
		require.NotSame(t, before, after, c.name)
		require.NotEqual(t, string(before.Bytes), string(after.Bytes), c.name)
		require.Same(t, after, lookup(), c.name)
	}
}

// TestReadErrorIsTriedAgain: an error such as missing file descriptors is
// retried, although the file is unchanged.
func TestReadErrorIsTriedAgain(t *testing.T) {
	tests := []struct {
		name    string
		make    func(t *testing.T, path string)
		settled bool
	}{
		{"read error", symlink("/proc/self/mem"), false},
		{"content error", text("{"), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &file{path: filepath.Join(t.TempDir(), "10-x.conflist")}
			tt.make(t, f.path)
			f.refresh(time.Now().Add(time.Minute))
			require.Error(t, f.err)
			require.Equal(t, tt.settled, f.settled)
		})
	}
}

// overwriteQuietly writes a file in place and restores its modification time.
func overwriteQuietly(t *testing.T, path, content string) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, info.Size(), int64(len(content)))
	require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	require.NoError(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
}

func TestListingMissesReplacedFile(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "10-a.conflist", list("a", "p"), "30-c.conflist", list("c", "p"))
	d := New(dir, nil)
	require.NoError(t, d.Load())
	require.Equal(t, []string{"10-a.conflist", "20-b.conf", "30-c.conflist"}, d.addMissed([]string{"20-b.conf"}))
	require.NoError(t, os.Remove(filepath.Join(dir, "30-c.conflist")))
	require.Equal(t, []string{"10-a.conflist", "20-b.conf"}, d.addMissed([]string{"20-b.conf"}))
}

// TestConcurrentUse replaces one network by rename and overwrites another one
// in place, which leaves it empty for moments, while others look both up.
// Neither may ever be missing or incomplete.
func TestConcurrentUse(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "10-x.conflist", list("x", "p0"), "20-y.conflist", list("y", "p"))
	d := New(dir, testNetwork(t, "inside"))
	require.NoError(t, d.Load()) // before the first reading no network is active
	done := make(chan struct{})
	errs := make(chan error, 4)
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() { errs <- readUntil(done, d) })
	}
	for i := range 200 {
		write(t, dir, "tmp", list("x", fmt.Sprintf("p%d", i)), "20-y.conflist", list("y", fmt.Sprintf("p%d", i)))
		require.NoError(t, os.Rename(filepath.Join(dir, "tmp"), filepath.Join(dir, "10-x.conflist")))
	}
	close(done)
	readers.Wait()
	for range 4 {
		require.NoError(t, <-errs)
	}
	require.Equal(t, []string{"x@10-x.conflist:p199", "y@20-y.conflist:p199", "inside@:embedded"}, first(state(d)))
}

func readUntil(done <-chan struct{}, d *Dir) error {
	for {
		select {
		case <-done:
			return nil
		default:
		}
		for _, name := range []string{"x", "y", "", "inside"} {
			n, err := d.Lookup(name)
			if err != nil {
				return err
			}
			if len(n.PluginTypes()) != 1 {
				return fmt.Errorf("network %q has plugins %q", name, n.PluginTypes())
			}
		}
		if err := d.Load(); err != nil {
			return err
		}
	}
}

// fill writes count networks, each in its own file.
func fill(tb testing.TB, count int) string {
	dir := tb.TempDir()
	for i := range count {
		path := filepath.Join(dir, fmt.Sprintf("%04d.conflist", i))
		require.NoError(tb, os.WriteFile(path, []byte(list(fmt.Sprintf("net%d", i), "p")), 0o644))
	}
	return dir
}

// TestUnchangedIsNotListed relies on the fact that listing creates a new slice
// each time.
func TestUnchangedIsNotListed(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "net.d")
	require.NoError(t, os.Mkdir(filepath.Join(parent, "real"), 0o755))
	require.NoError(t, os.Mkdir(filepath.Join(parent, "other"), 0o755))
	require.NoError(t, os.Symlink("real", dir))
	write(t, dir, "10-a.conflist", list("a", "p"))
	write(t, filepath.Join(parent, "other"), "10-a.conflist", list("o", "p"))
	d := New(dir, nil)
	listed := func() **file {
		require.NoError(t, d.Load())
		return &d.files[0]
	}

	d.now = func() time.Time { return time.Now().Add(-time.Minute) }
	require.NotSame(t, listed(), listed(), "a change that is too young may hide another")
	d.now = func() time.Time { return time.Now().Add(time.Minute) }
	settled := listed()
	require.Same(t, settled, listed())

	for _, c := range []struct {
		name   string
		change func()
		want   []string
	}{
		{"added", func() { write(t, dir, "20-b.conflist", list("b", "p")) }, []string{"a@10-a.conflist:p", "b@20-b.conflist:p"}},
		{"renamed", func() {
			require.NoError(t, os.Rename(filepath.Join(dir, "10-a.conflist"), filepath.Join(dir, "30-a.conflist")))
		}, []string{"b@20-b.conflist:p", "a@30-a.conflist:p"}},
		{"removed", func() { require.NoError(t, os.Remove(filepath.Join(dir, "20-b.conflist"))) }, []string{"a@30-a.conflist:p"}},
		{"another directory", func() {
			require.NoError(t, os.Remove(dir))
			require.NoError(t, os.Symlink("other", dir))
		}, []string{"o@10-a.conflist:p"}},
	} {
		c.change()
		require.Equal(t, c.want, first(state(d)), c.name)
	}
	require.NoError(t, os.RemoveAll(dir))
	for range 2 {
		require.ErrorIs(t, d.Load(), fs.ErrNotExist)
	}
	require.NoError(t, os.Symlink("other", dir))
	require.NoError(t, d.Load())
}

func TestManyFiles(t *testing.T) {
	const count = 500
	d := New(fill(t, count), nil)
	networks, problems := d.Networks()
	require.Len(t, networks, count)
	require.Empty(t, problems)
	require.Equal(t, "net0", networks[0].Name)
	n, err := d.Lookup("net499")
	require.NoError(t, err)
	require.Equal(t, "0499.conflist", filepath.Base(n.File))
}

func BenchmarkLookup500(b *testing.B) {
	d := New(fill(b, 500), nil)
	d.now = func() time.Time { return time.Now().Add(time.Minute) }
	for b.Loop() {
		if _, err := d.Lookup("net250"); err != nil {
			b.Fatal(err)
		}
	}
}
