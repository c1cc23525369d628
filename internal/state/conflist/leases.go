package conflist

import (
	"encoding/json"
	"slices"
)

// hostLocal is the type of the IPAM plugin that keeps leases in files.
const hostLocal = "host-local"

// ReclaimedDirs returns the data directories in which the network's leases of earlier boots
// are reclaimed: those of the host-local plugins whose configuration has reclaimOnBoot. ""
// is host-local's default.
func (n *Network) ReclaimedDirs() []string {
	type key struct{}
	return n.Derive(key{}, func() any {
		var dirs []string
		for _, p := range n.List.Plugins {
			var conf struct {
				IPAM struct {
					Type          string `json:"type"`
					DataDir       string `json:"dataDir"`
					ReclaimOnBoot bool   `json:"reclaimOnBoot"`
				} `json:"ipam"`
			}
			opted := json.Unmarshal(p.Bytes, &conf) == nil && conf.IPAM.Type == hostLocal && conf.IPAM.ReclaimOnBoot
			if opted && !slices.Contains(dirs, conf.IPAM.DataDir) {
				dirs = append(dirs, conf.IPAM.DataDir)
			}
		}
		return dirs
	}).([]string)
}
