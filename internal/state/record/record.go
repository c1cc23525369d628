package record

import (
	"encoding/json"
	"path/filepath"
	"time"

	"github.com/allocnet/allocnet/cleanup"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// Version is the format of the records that this package writes.
const Version = 1

// Phase says how far the operation went that wrote the record last.
type Phase string

// The phases of a record.
const (
	Adding   Phase = "adding"
	Ready    Phase = "ready"
	Deleting Phase = "deleting"
)

// Record is everything that DEL needs, and what ADD returned.
type Record struct {
	Version int    `json:"version"`
	ID      string `json:"id"`
	// ContainerID is what plugins get as CNI_CONTAINERID, where it is not the ID.
	ContainerID string `json:"containerID,omitempty"`
	// Scope says who keeps count of the allocation.
	Scope string `json:"scope,omitempty"`
	Netns string `json:"netns"`
	// Namespace is what Netns led to when the allocation was set up. Records of
	// older versions have none.
	Namespace sandbox.Identity `json:"namespace,omitzero"`
	// NetnsOverride says that Netns may lead to the host's own namespace.
	NetnsOverride bool `json:"netnsOverride,omitempty"`
	// Instance is that of the owner of what ADD made: see names.Owner. Records of
	// older versions have none.
	Instance *string `json:"instance,omitempty"`
	Phase    Phase   `json:"phase"`
	Engine   string  `json:"engine"`
	// Asked are the networks that the allocation itself asked for by name; none
	// means that it took those of the configuration.
	Asked []string `json:"asked,omitempty"`
	// Inline says that the allocation brought the configurations of its networks
	// along.
	Inline bool `json:"inline,omitempty"`
	// PluginDirs are searched for plugins before those of the configuration.
	PluginDirs []string `json:"pluginDirs,omitempty"`
	// Interface is the name that was asked for the first attachment's interface.
	Interface string `json:"interface,omitempty"`
	// AskedPorts are the ports as the allocation asked for them; Ports are what
	// became of them.
	AskedPorts []portmap.Port `json:"askedPorts,omitempty"`
	// Previous is the result of the plugins that somebody else ran before; the
	// first attachment goes on from it.
	Previous json.RawMessage `json:"previous,omitempty"`
	// Args are the CNI_ARGS in their order.
	Args [][2]string `json:"args"`
	// Unserved are, sorted, the requested capabilities that no plugin declares; nil where an
	// earlier version did not look.
	Unserved []string `json:"unserved"`
	// Capabilities are the capability arguments by the name of the capability.
	Capabilities map[string]json.RawMessage `json:"capabilities,omitempty"`
	// InterfacePrefix and the index of an attachment, loopback networks not counted,
	// give its interface's name, where no other was asked for.
	InterfacePrefix string            `json:"interfacePrefix"`
	Attachments     []Attachment      `json:"attachments"`
	Ports           []portmap.Mapping `json:"ports,omitempty"`
	// Addresses are those that were found before a DEL without result.
	Addresses []cleanup.Address `json:"addresses,omitempty"`
	Created   time.Time         `json:"created"`
	Updated   time.Time         `json:"updated"`

	// RequireAddress says that the operation fails where no network gives an address.
	RequireAddress bool `json:"-"`

	// Sandbox is the namespace, while an operation has it open; nil where it is gone.
	Sandbox *sandbox.Sandbox `json:"-"`
}

// SameNetns reports whether two records are of one network namespace, as far as
// they tell: else their paths decide.
func (r *Record) SameNetns(other *Record) bool {
	if r.Namespace == (sandbox.Identity{}) || other.Namespace == (sandbox.Identity{}) {
		return filepath.Clean(r.Netns) == filepath.Clean(other.Netns)
	}
	return r.Namespace.Is(other.Namespace)
}

// Container is the CNI_CONTAINERID of the plugins.
func (r *Record) Container() string {
	if r.ContainerID != "" {
		return r.ContainerID
	}
	return r.ID
}

// BeginAdd makes it the record of an ADD that has not made anything yet.
func (r *Record) BeginAdd() {
	r.Phase, r.Addresses = Adding, nil
	for i := range r.Attachments {
		r.Attachments[i].Result = nil
	}
}

// Attachment is the allocation's part in one network.
type Attachment struct {
	Network string `json:"network"`
	IfName  string `json:"ifName"`
	// Loopback says that the network is the loopback interface and nothing else.
	Loopback bool `json:"loopback,omitempty"`
	// Config is the self-contained conflist that ADD was given, byte for byte.
	Config []byte `json:"config"`
	// Binaries are the types of the plugins that the native engine ran as binaries;
	// nil where it is not known, or all were.
	Binaries []string `json:"binaries,omitzero"`
	// Result is the CNI result of ADD; nil until it is known.
	Result json.RawMessage `json:"result,omitempty"`
}
