package record

import (
	"cmp"
	"encoding/json"
	"path/filepath"
	"slices"
	"time"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// Version is the format of the records that this package writes.
const Version = 1

// Phase is the progress of the operation that last wrote the record.
type Phase string

// The phases of a record.
const (
	Adding   Phase = "adding"
	Ready    Phase = "ready"
	Deleting Phase = "deleting"
	// Pooled is the phase of a slot: ADD has succeeded, and no allocation has taken its
	// network yet. See Record.Pool.
	Pooled Phase = "pooled"
)

// Record is everything that DEL needs, and what ADD returned.
type Record struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	// ContainerID is the requested CNI_CONTAINERID of the plugins if it is not the ID.
	ContainerID string `json:"containerID,omitempty"`
	// Slot is the ID of the slot whose network the allocation has taken, if any. It
	// stays the CNI_CONTAINERID of the plugins.
	Slot string `json:"slot,omitempty"`
	// Scope identifies the caller that manages the allocation.
	Scope string `json:"scope,omitempty"`
	// Labels are the caller's. Policies of other allocations select by them.
	Labels map[string]string `json:"labels,omitempty"`
	// Policy is the network policy of the allocation; nil if it has none.
	Policy *policy.Policy `json:"policy,omitempty"`
	Netns  string         `json:"netns"`
	// Namespace is the identity of Netns at the time of the set-up. Records of
	// older versions have none.
	Namespace sandbox.Identity `json:"namespace,omitzero"`
	// Boot is the boot of the host in which the record was made. Records of older
	// versions have none.
	Boot string `json:"boot,omitempty"`
	// NetnsOverride permits the host's own namespace as Netns.
	NetnsOverride bool `json:"netnsOverride,omitempty"`
	// Instance is the owner's instance at the time of the ADD: see names.Owner.
	// Records of older versions have none.
	Instance *string `json:"instance,omitempty"`
	Phase    Phase   `json:"phase"`
	// Pool identifies the pool to which a slot belongs, for as long as no allocation has
	// taken it; see Store.LockPool. Other records have none.
	Pool string `json:"pool,omitempty"`
	// Acknowledged reports that the allocation is disconnected: nothing of it can be
	// reached, and its host ports are free. Its links and addresses still exist. The
	// phase is then Deleting, and the record has no ports.
	Acknowledged bool   `json:"acknowledged,omitempty"`
	Engine       string `json:"engine"`
	// Requested are the networks that the allocation requested by name. If there are
	// none, it got those of the configuration.
	Requested []string `json:"asked,omitempty"`
	// Inline reports that the request contained the configurations of the networks.
	Inline bool `json:"inline,omitempty"`
	// PluginDirs are searched for plugins before those of the configuration.
	PluginDirs []string `json:"pluginDirs,omitempty"`
	// Interface is the requested name of the first attachment's interface.
	Interface string `json:"interface,omitempty"`
	// RequestedPorts are the ports as requested; Ports are the resulting mappings.
	RequestedPorts []portmap.Port `json:"askedPorts,omitempty"`
	// Previous is the result of plugins that another program ran before. It is
	// the prevResult of the first attachment.
	Previous json.RawMessage `json:"previous,omitempty"`
	// Args are the CNI_ARGS in their order.
	Args [][2]string `json:"args"`
	// Unserved are, sorted, the requested capabilities that no plugin declares;
	// nil if an older version did not check.
	Unserved []string `json:"unserved"`
	// Capabilities are the capability arguments by the name of the capability.
	Capabilities map[string]json.RawMessage `json:"capabilities,omitempty"`
	// InterfacePrefix and the index of an attachment, not counting loopback
	// networks, form the name of its interface, unless another name was
	// requested.
	InterfacePrefix string            `json:"interfacePrefix"`
	Attachments     []Attachment      `json:"attachments"`
	Ports           []portmap.Mapping `json:"ports,omitempty"`
	// WaitForPorts lets the Ports wait while other allocations have them.
	WaitForPorts bool `json:"waitForPorts,omitempty"`
	// PortOrder is the place of the allocation among those that have requested one of its Ports: higher
	// than those of the allocations that had one when it reserved them. No clock is involved.
	PortOrder int `json:"portOrder,omitempty"`
	// Revision counts the updates of the allocation.
	Revision int `json:"revision,omitempty"`
	// Update is what an update that has begun aims at; nil if none has. Before the update
	// has reserved its host ports, Ports and the capability portMappings are those from
	// before. After that, and until the update is recorded as done, they contain the host
	// ports from before and after it, because the kernel has either.
	Update *Aim `json:"update,omitempty"`
	// Pending is an attachment that is being added or removed while the allocation is set
	// up; nil if none is. Until that is finished, it may or may not exist. One that is being
	// added has no Result.
	Pending *Attachment `json:"pending,omitempty"`
	// Absent are objects in the network namespace that the results list and that did not exist right
	// after ADD, as texts.
	Absent []string `json:"absent,omitempty"`
	// Addresses are the addresses that were found before a DEL without result.
	Addresses []cleanup.Address `json:"addresses,omitempty"`
	Created   time.Time         `json:"created"`
	Updated   time.Time         `json:"updated"`

	// FormerBoot reports that the record was made in an earlier boot of the host. Its
	// network and its network namespace ended with that boot, even if Netns leads to a
	// namespace of the same identity: the kernel assigns the same numbers again.
	FormerBoot bool `json:"-"`

	// RequireAddress makes the operation fail if no network assigns an address.
	RequireAddress bool `json:"-"`

	// Sandbox is the network namespace while an operation has it open; nil if
	// it no longer exists.
	Sandbox *sandbox.Sandbox `json:"-"`
}

// Aim is what an update gives to an allocation: host ports, as requested and as mappings,
// labels, network policy and bandwidth.
type Aim struct {
	Requested []portmap.Port    `json:"asked"`
	Ports     []portmap.Mapping `json:"ports"`
	Labels    map[string]string `json:"labels,omitempty"`
	Policy    *policy.Policy    `json:"policy,omitempty"`
	// Enforce reports that the update is about the policy or the labels in networks that
	// enforce policies. Until the update is recorded as done, the kernel has those from before or these.
	Enforce bool `json:"enforce,omitempty"`
	// Before are the host ports from before the update. Records of older versions have none (nil).
	Before []portmap.Mapping `json:"before,omitzero"`
	// KeepsPorts reports that the update is not about host ports.
	KeepsPorts bool `json:"keepsPorts,omitempty"`
	// Bandwidth are the limits; nil if the update is not about them, and without a value if there are
	// none afterwards. Until the update is recorded as done, the kernel may have those from
	// before, these, or a part of either; the capability bandwidth and the results are those
	// from before.
	Bandwidth *allocnet.Bandwidth `json:"bandwidth,omitempty"`
	// KeepsRevision reports that the aim is what the allocation has according to its record,
	// also if that was so before an update that failed.
	KeepsRevision bool `json:"undoes,omitempty"`
}

// SameNetns reports whether two records have the same network namespace. It
// compares identities, or paths if one of the records has no identity.
func (r *Record) SameNetns(other *Record) bool {
	if r.FormerBoot || other.FormerBoot {
		return false
	}
	if r.Namespace == (sandbox.Identity{}) || other.Namespace == (sandbox.Identity{}) {
		return filepath.Clean(r.Netns) == filepath.Clean(other.Netns)
	}
	return r.Namespace.Is(other.Namespace)
}

// PortsBefore returns the host ports of an allocation from before the update that has begun. If none
// has, these are Ports.
func (r *Record) PortsBefore() []portmap.Mapping {
	if r.Update == nil || r.Update.KeepsPorts || r.Update.Before == nil {
		return r.Ports
	}
	return r.Update.Before
}

// Container returns the CNI_CONTAINERID of the plugins.
func (r *Record) Container() string {
	return cmp.Or(r.Slot, r.ContainerID, r.ID)
}

// BeginAdd turns r into the record of an ADD that has not created anything yet.
func (r *Record) BeginAdd() {
	r.Phase, r.Addresses, r.Acknowledged, r.Absent = Adding, nil, false, nil
	for i := range r.Attachments {
		r.Attachments[i].Result, r.Attachments[i].Known = nil, nil
	}
}

// Differs reports whether something was not as in the results right after ADD.
func (r *Record) Differs() bool {
	return len(r.Absent) > 0 || slices.ContainsFunc(r.Attachments, func(a Attachment) bool { return len(a.Known) > 0 })
}

// Attachment is the attachment of an allocation to one network.
type Attachment struct {
	Network string `json:"network"`
	IfName  string `json:"ifName"`
	// Loopback reports that the network consists only of the loopback interface.
	Loopback bool `json:"loopback,omitempty"`
	// Attached reports that the network was attached after the set-up. The addresses and the MAC
	// address in CNI_ARGS are not for it.
	Attached bool `json:"attached,omitempty"`
	// Config is the self-contained conflist of the ADD, byte for byte.
	Config []byte `json:"config"`
	// Binaries are the types of the plugins that the native engine ran as
	// binaries; nil if that is not known or if all were.
	Binaries []string `json:"binaries,omitzero"`
	// Result is the CNI result of ADD; nil until it is known.
	Result json.RawMessage `json:"result,omitempty"`
	// Known are, by the index of the plugin, the findings that CHECK had right after ADD.
	Known map[int][]string `json:"known,omitempty"`
}
