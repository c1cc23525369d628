package configurator

import (
	"path/filepath"
	"slices"

	"github.com/allocnet/allocnet/internal/conflist"
)

// pluginDirs are the directories that are searched for plugins of some types:
// those of their vendors, then the common ones.
func (c *Configurator) pluginDirs(types ...string) []string {
	var dirs []string
	if c.cfg.VendorDir != "" {
		for _, t := range types {
			dir := filepath.Join(c.cfg.VendorDir, "opt", t, "bin")
			if !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
	}
	return append(dirs, c.cfg.PluginDirs...)
}

// pluginTypes are the types of all plugins that a network runs, IPAM included.
func pluginTypes(n *conflist.Network) []string {
	return append(n.PluginTypes(), n.IPAMTypes()...)
}
