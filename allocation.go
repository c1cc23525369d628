package allocnet

import (
	"encoding/json"

	"github.com/allocnet/allocnet/portmap"
)

// Allocation is one network namespace to be wired up, and what it asks for.
type Allocation struct {
	// ID is the CNI container ID: letters, digits, '_', '.' and '-', the
	// first one a letter or digit, at most 128 characters.
	ID string `json:"id"`
	// Netns is the path of the network namespace. Setup records which namespace it
	// leads to, and later operations enter no other one: another path to the same
	// namespace is the same allocation, and where the path leads to another
	// namespace, Check finds ErrUnhealthy, Setup ErrDifferent, and Teardown goes on as
	// for a namespace that is gone.
	Netns string `json:"netns"`
	// OwnNetns says that the network namespace is the allocation's own: Setup makes it
	// in the Config's NetnsDir, unless it is there, and destroys one that it made if it
	// fails; Teardown destroys it. Netns may be "" then, for NetnsDir/ID. Teardown
	// destroys what the record names, or Setup has made: where Netns leads to another
	// one than the record's, it is ErrDifferent, and without a record what is at Netns
	// stays. One outside of NetnsDir is not made, and not destroyed.
	OwnNetns bool `json:"ownNetns,omitempty"`
	// NetnsOverride says that the network namespace at Netns is meant even if it is the
	// process's own, the host's, as CNI_NETNS_OVERRIDE says it to plugins; else that one
	// is sandbox.ErrHostNamespace. There, all plugins must be native. The daemon takes it
	// from root only.
	NetnsOverride bool `json:"netnsOverride,omitempty"`
	// MustBeNew has Setup return ErrExists where an allocation with this ID is set up
	// already, without checking or changing it. Of several such Setups of one ID, also in
	// several processes, exactly one succeeds. What an interrupted operation left is no
	// such allocation: Setup removes it, as it always does.
	MustBeNew bool `json:"mustBeNew,omitempty"`
	// Networks overrides the Networks of the Config for this allocation.
	Networks []string `json:"networks,omitempty"`
	// Conflists are complete network configuration lists, in place of Networks.
	Conflists []json.RawMessage `json:"conflists,omitempty"`
	// PluginDirs are searched for plugins before those of the Config, by all operations
	// on the allocation: absolute paths, at most MaxPluginDirs. Native plugins are not looked for.
	// The daemon takes them from root only.
	PluginDirs []string `json:"pluginDirs,omitempty"`
	// PrevResult is the CNI result of plugins that have attached the namespace
	// already: the first plugin of the primary network goes on from it.
	PrevResult json.RawMessage `json:"prevResult,omitempty"`
	// ContainerID is what plugins get as CNI_CONTAINERID; default the ID. Several
	// allocations may have one container and its namespace between them, each with
	// an interface of its own, as a runtime makes them that speaks CNI.
	ContainerID string `json:"containerID,omitempty"`
	// Interface is the name of the primary network's interface inside the sandbox,
	// in place of the InterfacePrefix of the Config and 0. The primary network is
	// the first one that is more than the loopback interface.
	Interface string `json:"interface,omitempty"`
	// Scope says who keeps count of the allocation: GC takes only those of the
	// scope that it is asked for. It is free text; default "".
	Scope string `json:"scope,omitempty"`
	// Ports are published on the host.
	Ports []portmap.Port `json:"ports,omitempty"`
	// RequireAddress makes a Setup fail with ErrNoAddress if no network gives an
	// address. An allocation with Ports or IPs needs none to say so. Networks without
	// addresses (a bridge without IPAM, a tap) are else as good as others.
	RequireAddress bool `json:"requireAddress,omitempty"`
	// Args become CNI_ARGS, after IgnoreUnknown. A key may hold neither ';'
	// nor '=', a value no ';'. With SchedulerArgs they may have nearly 128 KiB.
	Args map[string]string `json:"args,omitempty"`
	// SchedulerArgs are arguments of the embedder's own; they win over Args.
	SchedulerArgs map[string]string `json:"schedulerArgs,omitempty"`

	// Ports and the remaining fields are capability arguments: each reaches the
	// plugins that declare the capability of that name. Ports, IPs, IPRanges and MAC
	// are for one interface: they reach the first network that declares them. What
	// no plugin declares is an *UnservedError, unless the Config has AllowUnserved.

	DNS        *DNS        `json:"dns,omitempty"`
	Bandwidth  *Bandwidth  `json:"bandwidth,omitempty"`
	IPs        []string    `json:"ips,omitempty"`        // addresses to be given, with or without prefix length
	IPRanges   [][]IPRange `json:"ipRanges,omitempty"`   // one set per address
	MAC        string      `json:"mac,omitempty"`        // of the sandbox's interface
	CgroupPath string      `json:"cgroupPath,omitempty"` // of the allocation's cgroup
	// Capabilities are further capability arguments by name, as JSON. One that has
	// a field of its own above must not be among them.
	Capabilities map[string]json.RawMessage `json:"capabilities,omitempty"`
}

// DNS is a resolver configuration.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Domain   string   `json:"domain,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// Bandwidth limits the traffic of an allocation, as seen by the allocation.
// Rates are in bits per second, bursts in bits; 0 means no limit.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// IPRange is one range of addresses of the ipRanges capability.
type IPRange struct {
	Subnet     string `json:"subnet"`
	RangeStart string `json:"rangeStart,omitempty"`
	RangeEnd   string `json:"rangeEnd,omitempty"`
	Gateway    string `json:"gateway,omitempty"`
}

// MaxPluginDirs is how many PluginDirs an Allocation may name.
const MaxPluginDirs = 64
