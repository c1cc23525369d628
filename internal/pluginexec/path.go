package pluginexec

import (
	"path/filepath"
	"slices"
	"strings"
)

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
