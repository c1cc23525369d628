package allocnet

import (
	"encoding/json"

	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// Allocation is a network namespace and the network that is requested for it. An
// Allocation is only read: no function of this library changes it or keeps it.
type Allocation struct {
	// ID identifies the allocation on the host. It consists of letters, digits, '_',
	// '.' and '-', begins with a letter or digit, and has at most 128 characters.
	// Plugins get it as CNI_CONTAINERID unless ContainerID is set.
	ID string `json:"id"`
	// Netns is the absolute path of the network namespace. Setup records the
	// namespace itself (device and inode), and later operations enter only that one.
	// A different path to the same namespace is the same allocation. If the path
	// leads to a different namespace, Check returns ErrUnhealthy, Setup returns
	// ErrDifferent as long as the recorded namespace exists, and Teardown treats the
	// recorded namespace as destroyed.
	Netns string `json:"netns"`
	// OwnNetns makes the library manage the network namespace. Setup creates it in
	// Config.NetnsDir if it does not exist, and destroys it again if Setup fails.
	// Teardown destroys it. Netns may then be empty; the default is NetnsDir/ID. A
	// path outside of NetnsDir is ErrInvalidAllocation in Setup; Teardown does not
	// destroy such a namespace.
	//
	// Teardown destroys only the recorded namespace or one that Setup created. If
	// Netns is another path than the recorded one, and leads to another namespace,
	// Teardown returns ErrDifferent. It leaves other namespaces at the recorded path
	// alone and, without a record, those at Netns.
	OwnNetns bool `json:"ownNetns,omitempty"`
	// NetnsOverride permits Netns to be the host's network namespace, which is
	// otherwise refused with sandbox.ErrHostNamespace. It corresponds to
	// CNI_NETNS_OVERRIDE. All plugins must then be native. The daemon accepts it
	// only from root.
	NetnsOverride bool `json:"netnsOverride,omitempty"`
	// MustBeNew makes Setup return ErrExists if an allocation with this ID is set
	// up. Setup neither checks nor changes that allocation. If several Setups of one
	// ID run at the same time, also in several processes, exactly one succeeds.
	// Leftovers of an interrupted operation, or of an earlier boot of the host, do
	// not count as an allocation: Setup removes them first, as always.
	MustBeNew bool `json:"mustBeNew,omitempty"`
	// Wait makes Teardown return only when everything of the allocation is deleted,
	// also its links. By default, Teardown returns as soon as the allocation is
	// disconnected; see configurator.Configurator.Teardown.
	Wait bool `json:"wait,omitempty"`
	// Networks are names of networks. They replace the Networks of the Config.
	Networks []string `json:"networks,omitempty"`
	// Conflists are complete CNI network configuration lists. They are an alternative
	// to Networks; at most one of the two may be set.
	Conflists []json.RawMessage `json:"conflists,omitempty"`
	// PluginDirs are absolute paths, at most MaxPluginDirs. Every operation on the
	// allocation searches them for plugin binaries before the directories of the
	// Config. Native plugins need no directory. The daemon accepts them only from
	// root.
	PluginDirs []string `json:"pluginDirs,omitempty"`
	// PrevResult is the CNI result of plugins that other programs have already run
	// for the namespace. The first plugin of the primary network gets it as its
	// prevResult.
	PrevResult json.RawMessage `json:"prevResult,omitempty"`
	// ContainerID is the CNI_CONTAINERID of the plugins; default ID. Several
	// allocations may share one container and its namespace, each with its own
	// interface. CNI runtimes create such allocations. The ID of one allocation cannot be the
	// ContainerID of another.
	ContainerID string `json:"containerID,omitempty"`
	// Interface is the name of the primary network's interface in the namespace;
	// default Config.InterfacePrefix followed by 0. The primary network is the first
	// one that does not consist of the loopback plugin alone.
	Interface string `json:"interface,omitempty"`
	// Scope is the name of the program that manages the allocation, as free text;
	// default "". GC of one scope does not remove allocations of another scope.
	Scope string `json:"scope,omitempty"`
	// Labels are for the caller, for selections, and for the policies of other allocations. There
	// are at most 64. Keys and values have the syntax of Kubernetes' labels. Update changes them.
	Labels map[string]string `json:"labels,omitempty"`
	// AllowReservedLabels permits Labels whose keys are reserved for labels of namespaces, such as
	// kubernetes.io.namespace.allocnet/metadata.name. Policies tell the pods of different namespaces apart by
	// them. Set it if the labels are those that networkpolicy.Pod.AllocationLabels returns, and never
	// for labels that the author of a container chooses.
	AllowReservedLabels bool `json:"allowReservedLabels,omitempty"`
	// Policy says which traffic to and from the allocation is allowed; nil allows everything
	// that the policy of the network allows. A network enforces policies if it has the plugin
	// policy, as the embedded network does. Update changes it.
	Policy *policy.Policy `json:"policy,omitempty"`
	// Ports are the ports to publish on the host: the portMappings capability.
	Ports []portmap.Port `json:"ports,omitempty"`
	// WaitForPorts makes Setup accept host ports that other allocations have, as runtimes need that start
	// a successor before they remove its predecessor: a host port leads to the allocation that requested
	// it first, and to the next one in the step in which that is removed. Record.Waiting has what an
	// allocation waits for. By default Setup returns a *portmap.ConflictError. It is no difference for a
	// further Setup, and does not apply to host ports that an Update adds.
	WaitForPorts bool `json:"waitForPorts,omitempty"`
	// RequireAddress makes Setup fail with ErrNoAddress if no network assigns an
	// address. Allocations with Ports or IPs always require one. Otherwise Setup
	// accepts networks without addresses, such as a bridge without IPAM or a tap.
	RequireAddress bool `json:"requireAddress,omitempty"`
	// Args become CNI_ARGS; IgnoreUnknown=true is added. Keys must not be empty. Keys
	// and values must not contain ';', '=' or NUL. Args and SchedulerArgs together are
	// limited to slightly less than 128 KiB.
	Args map[string]string `json:"args,omitempty"`
	// SchedulerArgs become CNI_ARGS, too. A key in both maps gets its value from
	// SchedulerArgs. Embedders set their own arguments here and pass those of their
	// users as Args.
	SchedulerArgs map[string]string `json:"schedulerArgs,omitempty"`

	// Ports and the fields below are capability arguments. Each one is passed to the
	// plugins that declare the capability. Ports, IPs, IPRanges and MAC apply to one
	// interface: they are passed only to the first network that declares them. If no
	// plugin declares a requested capability, Setup returns an *UnservedError, unless
	// Config.AllowUnserved is set.

	DNS        *DNS        `json:"dns,omitempty"`
	Bandwidth  *Bandwidth  `json:"bandwidth,omitempty"`
	IPs        []string    `json:"ips,omitempty"`        // requested addresses, with or without prefix length
	IPRanges   [][]IPRange `json:"ipRanges,omitempty"`   // one set of ranges per address
	MAC        string      `json:"mac,omitempty"`        // of the interface in the namespace
	CgroupPath string      `json:"cgroupPath,omitempty"` // of the allocation's cgroup
	// Capabilities are further capability arguments: values in JSON by the names of
	// the capabilities. Names of capabilities that have a field above are refused.
	Capabilities map[string]json.RawMessage `json:"capabilities,omitempty"`
}

// DNS is a resolver configuration.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Domain   string   `json:"domain,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// Bandwidth limits the traffic of an allocation. Ingress is traffic to the
// allocation, egress is traffic from it. Rates are in bits per second, bursts in
// bits; 0 means no limit.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// IPRange is one range of addresses of the ipRanges capability.
type IPRange struct {
	Subnet     string `json:"subnet"` // with prefix length
	RangeStart string `json:"rangeStart,omitempty"`
	RangeEnd   string `json:"rangeEnd,omitempty"`
	Gateway    string `json:"gateway,omitempty"`
}

// MaxPluginDirs is the maximum number of PluginDirs of an Allocation.
const MaxPluginDirs = 64
