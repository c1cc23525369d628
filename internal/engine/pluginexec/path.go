package pluginexec

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/allocnet/allocnet/internal/names"
)

// Dirs returns the directories in which plugins of the given types are searched:
// VENDOR/opt/TYPE/bin for each type, if vendor is not "", then the common ones. It
// skips types that are not valid file names.
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

// CompletePath adds the directories of system commands to a PATH. Plugins search it for
// iptables, and the PATH of an ordinary user often lacks them.
func CompletePath(path string) string {
	dirs := filepath.SplitList(path)
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return strings.Join(dirs, string(filepath.ListSeparator))
}
