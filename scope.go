package allocnet

import (
	"encoding/json"

	"github.com/containernetworking/cni/pkg/types"
)

// Scope says what GCScope looks at, and what of it is live. RepairScope and RecoverScope
// go by its Name alone.
type Scope struct {
	// Name is the Scope of the allocations. For RepairScope and RecoverScope "" means
	// the allocations of every scope, for GCScope those that have none.
	Name string
	// Live are the IDs of the allocations that stay.
	Live []string
	// Attachments are live beside those of all records: what a runtime that
	// calls CNI GC says of its containers, also of those whose record was lost. A list
	// without elements says that it has none; with nil, no runtime says anything.
	Attachments []types.GCAttachment
	// Networks are those whose plugins run CNI GC, beside the ones that the
	// allocations have; default those of the Config where Name is "". Then GCScope
	// also looks there for allocations without a record.
	Networks []string
	// Conflists are further such networks, as in an Allocation.
	Conflists []json.RawMessage
	// PluginDirs are searched for the plugins of networks, after those that allocations
	// of the network name and before those of the Config.
	PluginDirs []string
	// DestroyNetns destroys the network namespaces of the removed allocations, if they
	// lie in the Config's NetnsDir, and those that Setup has made for allocations of the
	// scope that no longer have a record; with the scope "", for those of every scope.
	DestroyNetns bool
}

// GCReport is what GC did.
type GCReport struct {
	// Removed are the IDs of the allocations that were taken away.
	Removed []string `json:"removed"`
	// Kept are the IDs of the allocations that stay: those that are live, those that were
	// set up since GC began, and those that a runtime has attached, see GC.
	Kept []string `json:"kept"`
	// Records are those of Removed, as they were before, without a Status and without the
	// configurations and results of their networks. One that had no record has only its
	// ID and the networks in which it was found.
	Records []Record `json:"records,omitempty"`
	// Forced are leftovers that DEL did not remove and force did.
	Forced []Leftover `json:"forced,omitempty"`
	// Destroyed are the paths of the network namespaces that were destroyed, sorted.
	Destroyed []string `json:"destroyed,omitempty"`
}

// RecoverReport is what Recover did.
type RecoverReport struct {
	// Removed are the IDs of the allocations that were taken down, sorted; never nil.
	Removed []string `json:"recovered"`
	// Records are those of Removed, as they were before, like those of a GCReport.
	Records []Record `json:"records,omitempty"`
}

// RepairReport says what a Repair found, by the IDs of the allocations, sorted. No
// list is nil.
type RepairReport struct {
	Healthy  []string `json:"healthy"`
	Repaired []string `json:"repaired"`
	// Broken are those that need to be set up again, or could not be looked at.
	Broken []string `json:"broken"`
}
