package netns

import (
	"os"
	"path/filepath"
)

// In returns a path directly in a directory as its name there. ok is false if the path is elsewhere. The
// directory of the path may have another name, as /var/run for /run, and the path may be a symbolic link
// into the directory.
func In(dir, path string) (in string, ok bool) {
	if target, err := os.Readlink(path); err == nil && target != "" {
		if path, err = filepath.EvalSymlinks(path); err != nil {
			return "", false
		}
	}
	parent, name := filepath.Split(path)
	switch name {
	case "", ".", "..":
		return "", false
	}
	if !Same(parent, dir) {
		return "", false
	}
	return filepath.Join(dir, name), true
}

// Same reports whether two paths lead to the same file or directory, or, if neither exists, are the same.
func Same(a, b string) bool {
	one, err1 := os.Stat(a)
	other, err2 := os.Stat(b)
	if err1 != nil && err2 != nil {
		return filepath.Clean(a) == filepath.Clean(b)
	}
	return err1 == nil && err2 == nil && os.SameFile(one, other)
}
