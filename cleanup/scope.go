package cleanup

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/allocnet/allocnet/internal/firewalld"
	"github.com/allocnet/allocnet/internal/netlink/announce"
	"github.com/allocnet/allocnet/internal/state/lease"
)

// scope is the kinds of objects that the plugins of a network can leave. Only these are
// searched.
type scope struct {
	nat      bool // chains and jumps in the iptables nat table
	filter   bool // accept rules in the iptables filter table
	nftables bool
	ports    bool     // host ports, and with them connection tracking entries
	dataDirs []string // of host-local

	spoofcheck bool     // chains in the nftables table of family bridge
	backupDirs []string // of tuning
	zones      []string // of firewalld; "" is any
	routes     []routeTable
}

// routeTable is where the plugin routes writes routes to addresses.
type routeTable struct {
	table    uint32
	protocol uint8
}

// hasZone reports whether the allocation can have sources in a zone of firewalld.
func (s scope) hasZone(zone string) bool {
	return slices.Contains(s.zones, "") || slices.Contains(s.zones, zone)
}

// everything is the scope of a network of which nothing is known.
func everything() scope {
	return scope{
		nat: true, filter: true, nftables: true, ports: true, dataDirs: []string{lease.DefaultDataDir},
		spoofcheck: true, backupDirs: []string{defaultBackupDir}, zones: []string{""},
	}
}

// pluginConf is the part of a plugin's configuration that determines its scope.
type pluginConf struct {
	Type          string `json:"type"`
	IPMasq        bool   `json:"ipMasq"`
	IPMasqBackend string `json:"ipMasqBackend"`
	Backend       string `json:"backend"`
	FirewalldZone string `json:"firewalldZone"`
	MACSpoofCheck bool   `json:"macspoofchk"`
	DataDir       string `json:"dataDir"`
	Table         any    `json:"table"`    // numbers of the plugin routes; other plugins
	Protocol      any    `json:"protocol"` // may have keys of the same names
	IPAM          struct {
		Type    string `json:"type"`
		DataDir string `json:"dataDir"`
	} `json:"ipam"`
}

// scopeOf returns the scope of a conflist, or of the configuration of a single plugin.
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
	known := true
	for _, plugin := range plugins {
		known = s.addPlugin(plugin) && known
		known = s.addIPAM(plugin) && known
	}
	if !known {
		s.addEverything()
	}
	return s
}

// addEverything adds what an unknown plugin can leave. The directories of the known
// plugins stay.
func (s *scope) addEverything() {
	all := everything()
	all.dataDirs = union(s.dataDirs, all.dataDirs)
	all.backupDirs = union(s.backupDirs, all.backupDirs)
	*s = all
}

// union returns the different elements of two lists.
func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}

// addPlugin adds the objects that a plugin can leave in addition to links. It returns
// false for an unknown plugin.
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
	case "routes":
		s.addRoutes(plugin)
	case "tuning":
		s.backupDirs = append(s.backupDirs, cmp.Or(plugin.DataDir, defaultBackupDir))
	case "bandwidth", "loopback", "dummy", "host-device", "ipvlan", "macvlan", "sbr", "tap", "vlan", "vrf":
		// These leave only links, or nothing.
	default:
		return false
	}
	return true
}

// addBackend adds the rules of a plugin with several backends. Without a backend in its
// configuration, the plugin uses iptables, or nftables if iptables is not installed.
func (s *scope) addBackend(backend string) {
	s.nat = s.nat || backend != "nftables"
	s.nftables = s.nftables || backend != "iptables"
}

// addRoutes adds the table of the plugin routes.
func (s *scope) addRoutes(plugin pluginConf) {
	table, _ := plugin.Table.(float64)
	protocol, given := plugin.Protocol.(float64)
	if !given {
		protocol = announce.DefaultProtocol
	}
	s.routes = append(s.routes, routeTable{table: uint32(table), protocol: uint8(protocol)})
}

// addIPAM adds the data directory of the leases of a plugin. It returns false for an
// unknown IPAM plugin.
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
