package cleanup

import (
	"encoding/json"
	"slices"
)

// Covers reports whether cleanup can find all leftovers of the plugins of the target.
// If it can, nothing is left after a Force without error and an Audit without
// leftovers, regardless of the result of DEL. Covers returns false if cleanup does not
// know one of the plugins, or if a plugin has state elsewhere, such as in a daemon or
// in a physical device that it moved. others are types of plugins whose leftovers the
// caller finds.
func Covers(t Target, others ...string) bool {
	for _, a := range t.Attachments {
		var conf struct {
			Plugins []pluginConf `json:"plugins"`
		}
		if err := json.Unmarshal(a.Config, &conf); err != nil || len(conf.Plugins) == 0 {
			return false
		}
		for _, p := range conf.Plugins {
			if !covered(p, others) {
				return false
			}
		}
	}
	return true
}

// CoversPlugin is Covers for one plugin, given its part of the conflist.
func CoversPlugin(config []byte, others ...string) bool {
	var p pluginConf
	return json.Unmarshal(config, &p) == nil && covered(p, others)
}

var known = []string{"bridge", "ptp", "loopback", "firewall", "portmap", "tuning", "bandwidth", "routes"}

func covered(p pluginConf, others []string) bool {
	if !slices.Contains(known, p.Type) && !slices.Contains(others, p.Type) {
		return false
	}
	return p.IPAM.Type == "" || p.IPAM.Type == "host-local" || p.IPAM.Type == "static"
}
