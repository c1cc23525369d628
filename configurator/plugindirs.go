package configurator

import (
	"path/filepath"
	"slices"
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
