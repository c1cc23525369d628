package allocnet

import (
	"encoding/json"

	"github.com/containernetworking/cni/pkg/types"
)

// Scope selects the allocations of a GCScope, PlanGC, RepairScope or RecoverScope.
// RepairScope and RecoverScope use only its Name.
type Scope struct {
	// Name is the Scope of the allocations. In GCScope, "" selects the allocations
	// without a scope; in RepairScope and RecoverScope, "" selects all allocations.
	Name string
	// Live are the IDs of the allocations that GC keeps. For an allocation with a
	// ContainerID that may have lost its record, also pass that ID: without a network
	// policy plugin, what is left of it in the kernel names only its container.
	Live []string
	// Attachments are further live attachments, which the plugins must keep in CNI GC,
	// in addition to those of all records. A runtime that calls CNI GC passes the
	// attachments of its containers here. An empty list means that the runtime has no
	// attachments. nil means that no runtime has given a list.
	Attachments []types.GCAttachment
	// Networks are names of networks whose plugins run CNI GC, in addition to the
	// networks of the allocations; default, if Name is "", the networks of the Config.
	// If Name is "", GCScope also searches these networks for allocations without a
	// record.
	Networks []string
	// Conflists are further such networks, as configuration lists.
	Conflists []json.RawMessage
	// PluginDirs are searched for the plugins of networks: after the PluginDirs of the
	// network's allocations and before those of the Config.
	PluginDirs []string
	// DestroyNetns makes GC also destroy the network namespaces, if they are in
	// Config.NetnsDir, of the allocations that it removes. GC then also destroys the
	// namespaces that Setup created for allocations of this scope that no longer have
	// a record; with the Name "", those of every scope.
	DestroyNetns bool
}

// GCReport is the result of a GC.
type GCReport struct {
	// Removed are the IDs of the allocations that GC removed.
	Removed []string `json:"removed"`
	// Kept are the IDs of the allocations that GC kept: live ones, those that were set
	// up after GC began, and containers of other runtimes; see Configurator.GC.
	Kept []string `json:"kept"`
	// Records are the records of the Removed allocations before their removal, without
	// Status and without the configurations and results of the networks. An allocation
	// without a record has only its ID and the networks in which GC found it.
	Records []Record `json:"records,omitempty"`
	// Forced are the leftovers that DEL did not remove and that GC removed itself.
	Forced []Leftover `json:"forced,omitempty"`
	// Destroyed are the paths of the network namespaces that GC destroyed, sorted.
	Destroyed []string `json:"destroyed,omitempty"`
}

// RecoverReport is the result of a Recover.
type RecoverReport struct {
	// Removed are the IDs of the allocations that Recover tore down, sorted. It is
	// never nil.
	Removed []string `json:"recovered"`
	// Records are the records of the Removed allocations, as in a GCReport.
	Records []Record `json:"records,omitempty"`
}

// RepairReport is the result of a Repair: IDs of allocations, sorted. No list is nil.
type RepairReport struct {
	Healthy  []string `json:"healthy"`
	Repaired []string `json:"repaired"`
	// Broken are the allocations that Repair could not repair or could not check. If
	// something that ADD has made is gone, a Setup of such an allocation sets it up again.
	Broken []string `json:"broken"`
}
