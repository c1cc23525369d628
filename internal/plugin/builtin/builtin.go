// Package builtin lists the native plugins.
package builtin

import (
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
