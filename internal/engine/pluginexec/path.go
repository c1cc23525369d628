package pluginexec

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/internal/names"
)

// Dirs are the directories that are searched for plugins of some types: those of
// their vendors, VENDOR/opt/TYPE/bin where vendor is not "", then the common ones.
// A type that is not a file name has no directory.
func Dirs(vendor string, common []string, types ...string) []string {
	var dirs []string
	for _, t := range types {
		if vendor == "" || names.ValidatePluginType(t) != nil {
			continue
		}
		if dir := filepath.Join(vendor, "opt", t, "bin"); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return append(dirs, common...)
}

// CompletePath adds the directories of system commands to a PATH, which an ordinary
// user's often lacks: plugins look for iptables in it.
func CompletePath(path string) string {
	dirs := filepath.SplitList(path)
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}
