package configurator

import (
	"slices"

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
