package cleanup

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/allocnet/allocnet/internal/firewalld"
	"github.com/allocnet/allocnet/internal/state/lease"
)

// scope says what one chain of plugins can have left, so that nothing else needs to be looked at.
type scope struct {
	nat      bool // chains and jumps in the iptables nat table
	filter   bool // accepts in the iptables filter table
	nftables bool
	ports    bool     // host ports, and with them connection tracking entries
	dataDirs []string // of host-local

	spoofcheck bool     // chains in the nftables table of family bridge
	backupDirs []string // of tuning
	zones      []string // of firewalld; "" is any
}

// hasZone reports whether sources of a zone of firewalld can be the allocation's.
func (s scope) hasZone(zone string) bool {
	return slices.Contains(s.zones, "") || slices.Contains(s.zones, zone)
}

// everything is the scope of a chain that is not understood.
func everything() scope {
	return scope{
		nat: true, filter: true, nftables: true, ports: true, dataDirs: []string{lease.DefaultDataDir},
		spoofcheck: true, backupDirs: []string{defaultBackupDir}, zones: []string{""},
	}
}

// pluginConf is what of a plugin's configuration decides what it leaves.
type pluginConf struct {
	Type          string `json:"type"`
	IPMasq        bool   `json:"ipMasq"`
	IPMasqBackend string `json:"ipMasqBackend"`
	Backend       string `json:"backend"`
	FirewalldZone string `json:"firewalldZone"`
	MACSpoofCheck bool   `json:"macspoofchk"`
	DataDir       string `json:"dataDir"`
	IPAM          struct {
		Type    string `json:"type"`
		DataDir string `json:"dataDir"`
	} `json:"ipam"`
}

// scopeOf reads a conflist, or the configuration of a single plugin.
func scopeOf(config []byte) scope {
	var conf struct {
		pluginConf
		Plugins []pluginConf `json:"plugins"`
	}
	if err := json.Unmarshal(config, &conf); err != nil {
		return everything()
	}
	plugins := conf.Plugins
	if len(plugins) == 0 {
		plugins = []pluginConf{conf.pluginConf}
	}
	var s scope
	for _, plugin := range plugins {
		if !s.addPlugin(plugin) || !s.addIPAM(plugin) {
			return everything()
		}
	}
	return s
}

// addPlugin takes in what a plugin can leave beside links. It is false for a plugin that is not known.
func (s *scope) addPlugin(plugin pluginConf) bool {
	switch plugin.Type {
	case "bridge", "ptp":
		if plugin.IPMasq {
			s.addBackend(plugin.IPMasqBackend)
		}
		s.spoofcheck = s.spoofcheck || plugin.MACSpoofCheck
	case "portmap":
		s.addBackend(plugin.Backend)
		s.ports = true
	case "firewall":
		s.filter = s.filter || plugin.Backend != "firewalld"
		if plugin.Backend != "iptables" {
			s.zones = append(s.zones, cmp.Or(plugin.FirewalldZone, firewalld.DefaultZone))
		}
	case "tuning":
		s.backupDirs = append(s.backupDirs, cmp.Or(plugin.DataDir, defaultBackupDir))
	case "bandwidth", "loopback", "dummy", "host-device", "ipvlan", "macvlan", "sbr", "tap", "vlan", "vrf":
		// Nothing, or links alone.
	default:
		return false
	}
	return true
}

// addBackend takes in the rules of a plugin that has a choice of backends. Without a backend in its configuration
// it took iptables, or nftables where there was no iptables then.
func (s *scope) addBackend(backend string) {
	s.nat = s.nat || backend != "nftables"
	s.nftables = s.nftables || backend != "iptables"
}

// addIPAM takes in where a plugin's leases lie. It is false for an IPAM plugin that is not known.
func (s *scope) addIPAM(plugin pluginConf) bool {
	switch plugin.IPAM.Type {
	case "host-local":
		dir := plugin.IPAM.DataDir
		if dir == "" {
			dir = lease.DefaultDataDir
		}
		s.dataDirs = append(s.dataDirs, dir)
	case "", "static", "dhcp":
	default:
		return false
	}
	return true
}
