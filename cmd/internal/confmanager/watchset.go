package confmanager

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// watchSet holds the directories to watch for changes of some paths, by their real path.
type watchSet map[string]*watchedDir

// watchedDir is a directory of a watchSet with the entries that matter.
type watchedDir struct {
	dev, ino uint64
	all      bool            // every entry matters
	names    map[string]bool // otherwise only these entries
}

func (s *watchedDir) equal(t *watchedDir) bool {
	return s.dev == t.dev && s.ino == t.ino && s.all == t.all && maps.Equal(s.names, t.names)
}

func (t watchSet) equal(u watchSet) bool { return maps.EqualFunc(t, u, (*watchedDir).equal) }

// covers reports whether a change to path matters.
func (t watchSet) covers(path string) bool {
	if t[path] != nil {
		return true
	}
	s := t[filepath.Dir(path)]
	return s != nil && (s.all || s.names[filepath.Base(path)])
}

// watchSetOf returns the directories to watch for the paths of the options.
func watchSetOf(o Options) watchSet {
	t := watchSet{}
	dir := t.followDir(o.ConfDir)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		// Plugins of a sidecar directory, and targets of symlinks.
		if e.IsDir() || e.Type() == os.ModeSymlink {
			t.followDir(filepath.Join(dir, e.Name()))
		}
	}
	for _, d := range o.PluginDirs {
		t.followDir(d)
	}
	if o.ReadinessFile != "" {
		t.follow(o.ReadinessFile)
	}
	return t
}

// followDir is like follow. If path leads to a directory, all its entries matter. It
// returns the real path of the directory, or "".
func (t watchSet) followDir(path string) string {
	end := t.follow(path)
	if s := t.dir(end); s != nil {
		s.all = true
		return end
	}
	return ""
}

// maxLinks is the number of symlinks that the kernel follows in one path.
const maxLinks = 40

// follow adds every directory on an absolute path up to the first missing one. It returns
// the real path, or "" if the path does not exist.
func (t watchSet) follow(path string) string {
	at, rest := "/", parts(path)
	for links := 0; len(rest) > 0 && links <= maxLinks; {
		name := rest[0]
		rest = rest[1:]
		s := t.dir(at)
		if s == nil {
			return ""
		}
		s.names[name] = true
		at = filepath.Join(at, name) // the parent, if name is ".."
		target, err := os.Readlink(at)
		if err != nil {
			continue
		}
		links++
		rest = slices.Concat(parts(target), rest)
		at = filepath.Dir(at)
		if filepath.IsAbs(target) {
			at = "/"
		}
	}
	return at
}

func parts(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
}

// dir returns the watchedDir of a directory and adds it if necessary. It returns nil if the
// path is not a directory.
func (t watchSet) dir(dir string) *watchedDir {
	if s := t[dir]; s != nil || dir == "" {
		return s
	}
	var st syscall.Stat_t
	if err := syscall.Lstat(dir, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return nil
	}
	for _, s := range t {
		// A bind mount shows the directory at two paths. The kernel does not report at which
		// of them a change happened.
		if s.dev == uint64(st.Dev) && s.ino == st.Ino {
			t[dir] = s
			return s
		}
	}
	s := &watchedDir{dev: uint64(st.Dev), ino: st.Ino, names: map[string]bool{}}
	t[dir] = s
	return s
}
