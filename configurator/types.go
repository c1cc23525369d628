package configurator

import (
	"encoding/json"
	"time"

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

// Status is the network of an allocation as a scheduler publishes it.
type Status struct {
	// Created says that this Setup made the allocation: no other was set up under the
	// ID when it began. It is false for one that was found, even if it had to be repaired
	// or set up again, and in a Record.
	Created bool `json:"created,omitempty"`
	// InterfaceName is the selected interface: the first one, by name, of the
	// first network that lies in a sandbox and has an address; else the first
	// with an address; else the first in a sandbox; "" if the networks made none. The
	// loopback interface is selected only if there is no other.
	InterfaceName string `json:"interfaceName"`
	// Address is the first IPv4 address of that interface, or, where it has
	// none, its first IPv6 address, or "". Without prefix length.
	Address string `json:"address"`
	// AddressIPv6 is the first IPv6 address of that interface, or "".
	AddressIPv6 string `json:"addressIPv6,omitempty"`
	// DNS is what the first network that names a server says; nil when none does.
	DNS *DNS `json:"dns,omitempty"`
	// Interfaces are all interfaces of all networks, in the order of the networks;
	// never nil.
	Interfaces []Interface `json:"interfaces"`
	// Routes are all routes of all networks, in the order of the networks.
	Routes []Route `json:"routes,omitempty"`
	// Ports are the published ports.
	Ports []portmap.Mapping `json:"ports,omitempty"`
	// Unserved are, sorted, the capabilities that the allocation requests and no
	// plugin declares: they have no effect. See Config.AllowUnserved.
	Unserved []string `json:"unserved,omitempty"`
	// Warnings are what the user of this Setup should know although it succeeded, such as
	// of processes of the host that listen on published ports. A Record has none.
	Warnings []string `json:"warnings,omitempty"`
	// Results are what the networks' last plugins returned, in the order of the
	// networks: CNI results, as the record has them. They are not part of the JSON.
	Results []json.RawMessage `json:"-"`
}

// Interface is one interface that a network made, in the sandbox or on the host.
type Interface struct {
	Network string `json:"network"`
	Name    string `json:"name"`
	MAC     string `json:"mac,omitempty"`
	// MTU is in bytes: as configured or, below 1500, as the native engine chose it by the
	// host's default route; 0 where the plugin did not say one.
	MTU       int       `json:"mtu,omitempty"`
	Sandbox   string    `json:"sandbox,omitempty"` // path of the network namespace; "" on the host
	Addresses []Address `json:"addresses,omitempty"`
}

// Address is one address of an interface.
type Address struct {
	Address string `json:"address"` // with prefix length
	Gateway string `json:"gateway,omitempty"`
}

// Route is one route inside the sandbox.
type Route struct {
	Network     string `json:"network"`
	Destination string `json:"destination"` // with prefix length
	Gateway     string `json:"gateway,omitempty"`
	MTU         int    `json:"mtu,omitempty"`
}

// Phase says how far an allocation's record has come.
type Phase string

const (
	// PhaseAdding: ADD was begun; the network may exist in part.
	PhaseAdding Phase = "adding"
	// PhaseReady: ADD succeeded; Status holds its result.
	PhaseReady Phase = "ready"
	// PhaseDeleting: DEL was begun; the network may still exist in part.
	PhaseDeleting Phase = "deleting"
)

// Record is what allocnet remembers about an allocation.
type Record struct {
	ID          string            `json:"id"`
	ContainerID string            `json:"containerID,omitempty"` // where it is not the ID
	Scope       string            `json:"scope,omitempty"`
	Netns       string            `json:"netns"`
	Phase       Phase             `json:"phase"`
	Engine      Engine            `json:"engine"`
	Networks    []NetworkRecord   `json:"networks"`
	Ports       []portmap.Mapping `json:"ports,omitempty"`
	// Args are the CNI_ARGS that the plugins got, without IgnoreUnknown: what the
	// runtime calls the allocation.
	Args map[string]string `json:"args,omitempty"`
	// PluginDirs are those that the Allocation named.
	PluginDirs []string `json:"pluginDirs,omitempty"`
	// Unserved is that of the Status, in every phase.
	Unserved []string  `json:"unserved,omitempty"`
	Created  time.Time `json:"created"`
	Updated  time.Time `json:"updated"`
	// NetnsGone says that Netns leads nowhere, or to another network namespace. In a
	// List it is false where that one has the inode of the allocation's; Get looks
	// closer.
	NetnsGone bool `json:"netnsGone,omitempty"`
	// Status is nil unless Phase is PhaseReady.
	Status *Status `json:"status,omitempty"`
}

// NetworkRecord is the part of a Record that one network has.
type NetworkRecord struct {
	Network   string          `json:"network"`
	Interface string          `json:"interface"`        // inside the sandbox
	Config    json.RawMessage `json:"config"`           // the conflist that ADD was given
	Result    json.RawMessage `json:"result,omitempty"` // what ADD returned
}

// GCReport is what GC did.
type GCReport struct {
	// Removed are the IDs of the allocations that were taken away.
	Removed []string `json:"removed"`
	// Kept are the IDs of the allocations that stay: those that are live, those that were
	// set up since GC began, and those that a runtime has attached, see GC.
	Kept []string `json:"kept"`
	// Forced are leftovers that DEL did not remove and force did.
	Forced []Leftover `json:"forced,omitempty"`
	// Destroyed are the paths of the network namespaces that were destroyed, sorted.
	Destroyed []string `json:"destroyed,omitempty"`
}
