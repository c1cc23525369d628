// Package builtin lists the native plugins.
package builtin

import (
	"maps"

	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/plugins/bandwidth"
	"github.com/allocnet/allocnet/internal/plugins/bridge"
	"github.com/allocnet/allocnet/internal/plugins/firewall"
	"github.com/allocnet/allocnet/internal/plugins/flannel"
	"github.com/allocnet/allocnet/internal/plugins/hostlocal"
	"github.com/allocnet/allocnet/internal/plugins/loopback"
	"github.com/allocnet/allocnet/internal/plugins/policy"
	"github.com/allocnet/allocnet/internal/plugins/portmap"
	"github.com/allocnet/allocnet/internal/plugins/ptp"
	"github.com/allocnet/allocnet/internal/plugins/routes"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/plugins/static"
	"github.com/allocnet/allocnet/internal/plugins/tuning"
)

// Versions are the CNI versions of plugins that do not support all of them. The
// map must not be changed.
var Versions = map[string]version.PluginInfo{"bandwidth": bandwidth.Versions}

// DropIns are the native plugins by type that also exist as binaries: all but policy, which needs
// allocnet's records. The map must not be changed.
var DropIns = func() map[string]sdk.Factory {
	plugins := maps.Clone(Plugins)
	delete(plugins, policy.Capability)
	return plugins
}()

// Plugins are the native plugins by type. The map must not be changed.
var Plugins = map[string]sdk.Factory{
	"bandwidth":  bandwidth.New,
	"bridge":     bridge.New,
	"firewall":   firewall.New,
	"flannel":    flannel.New,
	"host-local": hostlocal.New,
	"loopback":   loopback.New,
	"policy":     policy.New,
	"portmap":    portmap.New,
	"ptp":        ptp.New,
	"routes":     routes.New,
	"static":     static.New,
	"tuning":     tuning.New,
}
