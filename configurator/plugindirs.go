package configurator

import (
	"github.com/allocnet/allocnet/internal/conflist"
	"github.com/allocnet/allocnet/internal/pluginexec"
)

// pluginDirs are the directories that are searched for plugins of some types.
func (c *Configurator) pluginDirs(types ...string) []string {
	return pluginexec.Dirs(c.cfg.VendorDir, c.cfg.PluginDirs, types...)
}

// pluginTypes are the types of all plugins that a network runs, IPAM included.
func pluginTypes(n *conflist.Network) []string {
	return append(n.PluginTypes(), n.IPAMTypes()...)
}
