package cleanup

import "encoding/json"

// Covers says whether cleanup knows everything that the plugins of the target
// can leave on the host, so that after a Force without error and an Audit that
// finds nothing, nothing is left, whatever DEL said. It is false where one of
// the plugins is not known, or keeps something elsewhere: with a daemon, or a
// physical device that it moved.
func Covers(t Target) bool {
	for _, a := range t.Attachments {
		var conf struct {
			Plugins []pluginConf `json:"plugins"`
		}
		if err := json.Unmarshal(a.Config, &conf); err != nil || len(conf.Plugins) == 0 {
			return false
		}
		for _, p := range conf.Plugins {
			if !covered(p) {
				return false
			}
		}
	}
	return true
}

// CoversPlugin is Covers for one plugin, by its part of the conflist.
func CoversPlugin(config []byte) bool {
	var p pluginConf
	return json.Unmarshal(config, &p) == nil && covered(p)
}

func covered(p pluginConf) bool {
	switch p.Type {
	case "bridge", "ptp", "loopback", "firewall", "portmap", "tuning", "bandwidth":
	default:
		return false
	}
	return p.IPAM.Type == "" || p.IPAM.Type == "host-local" || p.IPAM.Type == "static"
}
