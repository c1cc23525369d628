package allocnet

import (
	"encoding/json"
	"time"

	"github.com/allocnet/allocnet/portmap"
)

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
	Config    json.RawMessage `json:"config,omitempty"` // the conflist that ADD was given
	Result    json.RawMessage `json:"result,omitempty"` // what ADD returned
}

// Engine is a way to run plugins.
type Engine string

const (
	// EngineAuto is the zero value's meaning: EngineNative for every allocation
	// of whose plugins at least one is native, else EngineExec.
	EngineAuto Engine = "auto"
	// EngineExec runs plugin binaries, through containerd/go-cni.
	EngineExec Engine = "exec"
	// EngineNative does the work of the reference plugins loopback, bridge, ptp,
	// host-local, static, portmap, firewall, bandwidth and tuning inside the
	// process. Other plugins, and those whose configuration has a key that it
	// does not understand, run as binaries.
	EngineNative Engine = "native"
)
