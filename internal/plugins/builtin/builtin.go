// Package builtin lists the native plugins.
package builtin

import (
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/plugins/bandwidth"
	"github.com/allocnet/allocnet/internal/plugins/bridge"
	"github.com/allocnet/allocnet/internal/plugins/firewall"
	"github.com/allocnet/allocnet/internal/plugins/flannel"
	"github.com/allocnet/allocnet/internal/plugins/hostlocal"
	"github.com/allocnet/allocnet/internal/plugins/loopback"
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

// Plugins are the native plugins by type. The map must not be changed.
var Plugins = map[string]sdk.Factory{
	"bandwidth":  bandwidth.New,
	"bridge":     bridge.New,
	"firewall":   firewall.New,
	"flannel":    flannel.New,
	"host-local": hostlocal.New,
	"loopback":   loopback.New,
	"portmap":    portmap.New,
	"ptp":        ptp.New,
	"routes":     routes.New,
	"static":     static.New,
	"tuning":     tuning.New,
}
