// Package builtin lists the native plugins.
package builtin

import (
	"github.com/allocnet/allocnet/internal/plugin"
	"github.com/allocnet/allocnet/internal/plugin/bridge"
	"github.com/allocnet/allocnet/internal/plugin/loopback"
	"github.com/allocnet/allocnet/internal/plugin/ptp"
)

// Plugins are the native plugins by their type. Nobody may change it.
var Plugins = map[string]plugin.Factory{
	"bridge":   bridge.New,
	"loopback": loopback.New,
	"ptp":      ptp.New,
}
