package allocnet

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// Phase is the state of an allocation's record.
type Phase string

const (
	// PhaseAdding: ADD has begun. The network may exist in part.
	PhaseAdding Phase = "adding"
	// PhaseReady: ADD has succeeded. Status holds its result.
	PhaseReady Phase = "ready"
	// PhaseDeleting: DEL has begun. The network may still exist in part.
	PhaseDeleting Phase = "deleting"
)

// Record is the persistent state of an allocation. It exists from the beginning of Setup
// to the end of Teardown.
type Record struct {
	ID string `json:"id"`
	// ContainerID is the CNI_CONTAINERID of the plugins if it is not the ID. Setup chooses
	// one for an allocation that gets a prepared network namespace: see configurator.Pool.
	ContainerID string `json:"containerID,omitempty"`
	Scope       string `json:"scope,omitempty"`
	// Labels are those of the Allocation, as the last Update has changed them.
	Labels map[string]string `json:"labels,omitempty"`
	// Policy is that of the Allocation, as the last Update has changed it.
	Policy *policy.Policy `json:"policy,omitempty"`
	Netns  string         `json:"netns"`
	Phase  Phase          `json:"phase"`
	// Revision identifies what the allocation requests. Update, Attach, Detach and each new set-up
	// of the ID change it; a repair does not. It is only compared: see Change. Until an Update is
	// recorded as done, the record has what the allocation requested before it.
	Revision string `json:"revision,omitempty"`
	// Acknowledged reports that Teardown has returned: nothing of the allocation sends or
	// answers, and its host ports are free. Its links and addresses are being deleted.
	Acknowledged bool              `json:"acknowledged,omitempty"`
	Engine       Engine            `json:"engine"`
	Networks     []NetworkRecord   `json:"networks"`
	Ports        []portmap.Mapping `json:"ports,omitempty"`
	// Waiting are those of the Ports that older allocations have: see Allocation.WaitForPorts.
	Waiting []PortWait `json:"waiting,omitempty"`
	// Bandwidth are the limits that the allocation requests, as the last Update has changed
	// them; nil if it requests none.
	Bandwidth *Bandwidth `json:"bandwidth,omitempty"`
	// Args are the CNI_ARGS of the plugins without IgnoreUnknown. Runtimes pass their
	// names of the allocation in them.
	Args map[string]string `json:"args,omitempty"`
	// PluginDirs are the PluginDirs of the Allocation.
	PluginDirs []string `json:"pluginDirs,omitempty"`
	// Unserved is the field of the same name of Status. It is set in every phase.
	Unserved []string  `json:"unserved,omitempty"`
	Created  time.Time `json:"created"`
	Updated  time.Time `json:"updated"`
	// NetnsGone reports that Netns does not exist or leads to a different network
	// namespace. List compares only device and inode, so it misses a new namespace
	// with a reused inode; Get detects it.
	NetnsGone bool `json:"netnsGone,omitempty"`
	// Status is nil unless Phase is PhaseReady.
	Status *Status `json:"status,omitempty"`
}

// PortWait is a host port that leads to an older allocation.
type PortWait struct {
	// ID is the older allocation.
	ID string `json:"id"`
	// Mapping is the port of the one that waits.
	Mapping portmap.Mapping `json:"mapping"`
	// Other is the port of the older one. If it has one address and Mapping has all, the other
	// addresses lead to the one that waits already.
	Other portmap.Mapping `json:"other"`
}

// String returns a text for people, such as: host port 8080/tcp leads to allocation "a", which had it first.
func (w PortWait) String() string {
	port := w.Mapping
	if port.HostIP == "" || port.HostIP == "0.0.0.0" || port.HostIP == "::" {
		port.HostIP = w.Other.HostIP
	}
	return fmt.Sprintf("host port %s leads to allocation %q, which had it first", port.Published(), w.ID)
}

// NetworkRecord is the part of a Record for one network.
type NetworkRecord struct {
	Network   string          `json:"network"`
	Interface string          `json:"interface"`        // in the network namespace
	Config    json.RawMessage `json:"config,omitempty"` // the configuration list that ADD got
	Result    json.RawMessage `json:"result,omitempty"` // the result that ADD returned
}

// Engine is a way to run plugins.
type Engine string

const (
	// EngineAuto chooses per allocation: EngineNative if at least one of its plugins
	// is native, else EngineExec. It is the default.
	EngineAuto Engine = "auto"
	// EngineExec runs plugin binaries through containerd/go-cni.
	EngineExec Engine = "exec"
	// EngineNative runs loopback, bridge, ptp, flannel, host-local, static, portmap,
	// firewall, bandwidth and tuning in the process, with the configuration of the
	// reference plugins of these names. It also runs routes and policy, for which there are
	// no reference plugins. Other plugins run as binaries, and so does a plugin whose
	// configuration contains a key that the native one does not understand.
	EngineNative Engine = "native"
)
