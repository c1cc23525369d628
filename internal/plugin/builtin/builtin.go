// Package builtin lists the native plugins.
package builtin

import (
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/plugin"
	"github.com/allocnet/allocnet/internal/plugin/bandwidth"
	"github.com/allocnet/allocnet/internal/plugin/bridge"
	"github.com/allocnet/allocnet/internal/plugin/firewall"
	"github.com/allocnet/allocnet/internal/plugin/hostlocal"
	"github.com/allocnet/allocnet/internal/plugin/loopback"
	"github.com/allocnet/allocnet/internal/plugin/portmap"
	"github.com/allocnet/allocnet/internal/plugin/ptp"
	"github.com/allocnet/allocnet/internal/plugin/static"
	"github.com/allocnet/allocnet/internal/plugin/tuning"
)

// Versions are those of CNI that a plugin serves, where it does not serve all.
// Nobody may change it.
var Versions = map[string]version.PluginInfo{"bandwidth": bandwidth.Versions}

// Plugins are the native plugins by their type. Nobody may change it.
var Plugins = map[string]plugin.Factory{
	"bandwidth":  bandwidth.New,
	"bridge":     bridge.New,
	"firewall":   firewall.New,
	"host-local": hostlocal.New,
	"loopback":   loopback.New,
	"portmap":    portmap.New,
	"ptp":        ptp.New,
	"static":     static.New,
	"tuning":     tuning.New,
}
