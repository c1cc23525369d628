package confmanager

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// trail is what has to be watched to see paths change: directories by their real
// path, with the entries that matter.
type trail map[string]*step

// step is one directory of a trail.
type step struct {
	dev, ino uint64
	all      bool            // every entry matters
	names    map[string]bool // else these
}

func (s *step) equal(t *step) bool {
	return s.dev == t.dev && s.ino == t.ino && s.all == t.all && maps.Equal(s.names, t.names)
}

func (t trail) equal(u trail) bool { return maps.EqualFunc(t, u, (*step).equal) }

// covers reports whether a change to path matters.
func (t trail) covers(path string) bool {
	if t[path] != nil {
		return true
	}
	s := t[filepath.Dir(path)]
	return s != nil && (s.all || s.names[filepath.Base(path)])
}

// trailOf are the directories that the options make us look at.
func trailOf(o Options) trail {
	t := trail{}
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

// followDir is follow, with every entry of what path leads to, if that is a
// directory. It returns the real path, "" if there is none.
func (t trail) followDir(path string) string {
	end := t.follow(path)
	if s := t.step(end); s != nil {
		s.all = true
		return end
	}
	return ""
}

// maxLinks is how many symlinks the kernel follows in one path.
const maxLinks = 40

// follow adds every directory that path, which is absolute, leads through, until
// something is missing. It returns where the path ends, "" if it does not.
func (t trail) follow(path string) string {
	at, rest := "/", parts(path)
	for links := 0; len(rest) > 0 && links <= maxLinks; {
		name := rest[0]
		rest = rest[1:]
		s := t.step(at)
		if s == nil {
			return ""
		}
		s.names[name] = true
		at = filepath.Join(at, name) // above at, if name is ".."
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

// step returns that of a directory, which is new if need be; nil if dir is none.
func (t trail) step(dir string) *step {
	if s := t[dir]; s != nil || dir == "" {
		return s
	}
	var st syscall.Stat_t
	if err := syscall.Lstat(dir, &st); err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return nil
	}
	for _, s := range t {
		// One directory in two places, by a bind mount: the kernel does not say in
		// which of them something happened.
		if s.dev == uint64(st.Dev) && s.ino == st.Ino {
			t[dir] = s
			return s
		}
	}
	s := &step{dev: uint64(st.Dev), ino: st.Ino, names: map[string]bool{}}
	t[dir] = s
	return s
}
