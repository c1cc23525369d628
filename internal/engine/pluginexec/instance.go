package pluginexec

import (
	"slices"
	"strings"
)

// instanceDir is the parent of directories that do not exist. An entry of CNI_PATH is the only way to tell
// allocnet's plugin binaries something: it also reaches those that delegate, and the daemon.
const instanceDir = "/proc/self/allocnet-instance/"

// WithInstance returns the entries of CNI_PATH for plugins that create objects for an instance: see names.Owner.
func WithInstance(dirs []string, instance string) []string {
	if instance == "" {
		return dirs
	}
	return append(slices.Clone(dirs), instanceDir+instance)
}

// InstanceOf returns the instance that WithInstance has added to the entries of CNI_PATH, or "".
func InstanceOf(dirs []string) string {
	for _, dir := range dirs {
		if instance, found := strings.CutPrefix(dir, instanceDir); found && strings.Trim(instance, "0123456789abcdef") == "" {
			return instance
		}
	}
	return ""
}
