package configurator

import (
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/engine/pluginexec"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// pluginDirs returns the directories in which plugins of the given types are searched,
// beginning with those of the allocation.
func (c *Configurator) pluginDirs(own []string, types ...string) []string {
	dirs := pluginexec.Dirs(c.cfg.VendorDir, c.cfg.PluginDirs, types...)
	if len(own) == 0 {
		return dirs
	}
	return distinct(append(slices.Clone(own), dirs...))
}

// pluginTypes returns the types of all plugins of a network, including IPAM.
func pluginTypes(n *conflist.Network) []string {
	return append(n.PluginTypes(), n.IPAMTypes()...)
}

// validatePluginDirs reports directories that cannot be an entry of CNI_PATH.
func validatePluginDirs(dirs []string, bad func(string, ...any)) {
	if len(dirs) > MaxPluginDirs {
		bad("pluginDirs: %d directories; at most %d are allowed", len(dirs), MaxPluginDirs)
		return
	}
	for _, dir := range dirs {
		if !filepath.IsAbs(dir) || len(dir) >= unix.PathMax || !utf8.ValidString(dir) || strings.ContainsAny(dir, ":\x00") {
			bad("pluginDirs: %.256q: must be an absolute path without ':' of less than %d bytes, in UTF-8", dir, unix.PathMax)
		}
	}
}

// distinct removes duplicates and keeps the order.
func distinct(dirs []string) []string {
	var kept []string
	for _, dir := range dirs {
		if !slices.Contains(kept, dir) {
			kept = append(kept, dir)
		}
	}
	return kept
}
