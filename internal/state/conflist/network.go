// Package conflist finds CNI network configuration lists on disk.
//
// A Dir reads a directory as kubelet, Nomad and containerd do: files sorted by
// name, the first file with a given network name is used, the first valid one is
// the default network. Unlike these, a Dir skips and reports a broken file, and
// keeps the last valid content active while the file or the directory cannot be
// read.
//
// Every Network is self-contained: its Bytes have the complete input of ADD, so
// that DEL never depends on the directory.
package conflist

import (
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/allocnet/allocnet/internal/iptables"
)

// Network is one valid network configuration. Callers share it and must not modify it.
type Network struct {
	Name string // satisfies the name rules of CNI
	File string // path; "" for the embedded network and for results of Parse
	// Source is the network as its file has it, if this one has subnets of flannel in it;
	// else nil: see Dir.Resolving.
	Source *Network

	// List is Bytes as parsed by libcni.
	List *libcni.NetworkConfigList

	// Bytes is the configuration as one self-contained JSON object. cniVersion is the
	// version chosen from cniVersion and cniVersions, the plugins of the sidecar
	// directory follow the inlined ones, and loadOnlyInlinedPlugins is true. Unknown
	// keys are kept. Parse(Bytes) returns the same Bytes and an equal List.
	Bytes []byte

	derived sync.Map
}

// Parse parses a configuration list from memory, for example the recorded Bytes of a
// Network. It uses no sidecar directory. Its errors name the place and the remedy.
func Parse(data []byte) (*Network, error) {
	d, err := parseList(data)
	if err != nil {
		return nil, err
	}
	return d.network()
}

// made counts the networks that were parsed.
var made atomic.Int64

// Made returns how many networks the process has parsed, for tests.
func Made() int64 { return made.Load() }

// Derive returns the value that derive returned for the key. It stores the value with
// the network, so derive usually runs once per key; concurrent first calls may run it
// more than once, and all return the same value. The key has a type of the caller, as
// with context.Context. Derive is safe for concurrent use.
func (n *Network) Derive(key any, derive func() any) any {
	if value, ok := n.derived.Load(key); ok {
		return value
	}
	value, _ := n.derived.LoadOrStore(key, derive())
	return value
}

// OwnType is the type of the plugin that delegates to allocnet.
const OwnType = "allocnet"

// LabelsCapability is the capability whose argument are the labels of an allocation. The plugin OwnType
// serves it itself, in every network.
const LabelsCapability = "labels"

// PodAnnotationsCapability is the capability with which containerd's CRI passes the annotations of
// a pod. The plugin OwnType reads labels and a policy from them.
const PodAnnotationsCapability = "io.kubernetes.cri.pod-annotations"

// IsOurs reports whether a plugin of the network is allocnet itself. Only runtimes can
// use such a network: allocnet would call itself.
func (n *Network) IsOurs() bool {
	return slices.ContainsFunc(n.List.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Type == OwnType })
}

// HasCheck reports whether runtimes may run CHECK for the network: version 0.4.0 of the CNI
// specification introduced it, and a configuration may disable it.
func (n *Network) HasCheck() bool {
	since, err := version.GreaterThanOrEqualTo(n.List.CNIVersion, "0.4.0")
	return err == nil && since && !n.List.DisableCheck
}

// LacksCheck reports whether a recorded configuration is one of a network without CHECK.
func LacksCheck(config []byte) bool {
	n, err := Parse(config)
	return err == nil && !n.HasCheck()
}

// IsLoopback reports whether the network consists only of the loopback interface.
func (n *Network) IsLoopback() bool {
	return !slices.ContainsFunc(n.List.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Type != loopbackType })
}

// PluginTypes returns the types of the plugins in the order of ADD.
func (n *Network) PluginTypes() []string {
	types := make([]string, 0, len(n.List.Plugins))
	for _, p := range n.List.Plugins {
		types = append(types, p.Network.Type)
	}
	return types
}

// IPAMTypes returns the types of the IPAM plugins in the order of ADD, without entries
// for plugins without IPAM.
func (n *Network) IPAMTypes() []string {
	types := []string{}
	for _, p := range n.List.Plugins {
		if t := p.Network.IPAM.Type; t != "" {
			types = append(types, t)
		}
	}
	return types
}

// Capabilities returns, sorted, every capability that at least one plugin
// declares as true.
func (n *Network) Capabilities() []string {
	declared := map[string]bool{}
	for _, p := range n.List.Plugins {
		for name := range p.Network.Capabilities {
			if n.Declares(name) {
				declared[name] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(declared))
}

// OpensPublished reports whether iptables.AllowPublished accepts connections to the
// network's published ports: whether its firewall plugin uses iptables.AdminChain. The
// bridge is "" if the configuration names none.
func (n *Network) OpensPublished() (bridge string, ok bool) {
	for _, p := range n.List.Plugins {
		var conf struct {
			Bridge     string `json:"bridge"`
			AdminChain string `json:"iptablesAdminChainName"`
		}
		if json.Unmarshal(p.Bytes, &conf) != nil {
			return "", false
		}
		switch p.Network.Type {
		case "bridge":
			bridge = conf.Bridge
		case "firewall":
			ok = conf.AdminChain == iptables.AdminChain
		}
	}
	return bridge, ok
}
