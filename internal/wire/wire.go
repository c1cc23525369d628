package wire

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet"
)

// TimeoutHeader is the time for which the client waits for the response, in seconds. The
// daemon rolls back an operation that takes longer, and responds in time.
const TimeoutHeader = "Request-Timeout"

// Failure is the body of a response that has only an error.
type Failure struct {
	Error *Error `json:"error"`
}

// Allocations is the body of GET /v1/allocs.
type Allocations struct {
	Allocations []allocnet.Record `json:"allocations"`
	Error       *Error            `json:"error,omitempty"`
}

// Collect is the request of POST /v1/gc.
type Collect struct {
	Live        []string             `json:"live"` // present even if empty
	Scope       string               `json:"scope,omitempty"`
	Attachments []types.GCAttachment `json:"attachments,omitzero"` // an empty list differs from none
	Networks    []string             `json:"networks,omitempty"`
	Conflists   []json.RawMessage    `json:"conflists,omitempty"`
	PluginDirs  []string             `json:"pluginDirs,omitempty"`
	DryRun      bool                 `json:"dryRun,omitempty"` // only report what GC would do
	// DestroyNetns is the field of the same name of allocnet.Scope.
	DestroyNetns bool `json:"destroyNetns,omitempty"`
}

// Collected is the body of POST /v1/gc.
type Collected struct {
	allocnet.GCReport
	Error *Error `json:"error,omitempty"`
}

// Selection is the request of POST /v1/repair and POST /v1/recover.
type Selection struct {
	Scope string `json:"scope,omitempty"`
}

// Recovered is the body of POST /v1/recover.
type Recovered struct {
	allocnet.RecoverReport
	Error *Error `json:"error,omitempty"`
}

// Attach is the body of a POST /v1/allocs/{id}/attachments.
type Attach struct {
	Network   string `json:"network"`
	Interface string `json:"interface,omitempty"`
	Revision  string `json:"revision,omitempty"`
}

// Applied is the body of the answers that describe an allocation: to PUT and PATCH
// /v1/allocs/{id}, and to the requests about its attachments.
type Applied struct {
	allocnet.Status
	// Results are the Results of the Status, whose JSON does not contain them. A Record
	// has them in its networks.
	Results []json.RawMessage `json:"results,omitempty"`
}

// Found is the body of POST /v1/allocs/{id}/audit, with the objects that were found, and of
// POST /v1/allocs/{id}/force, with the objects that were removed.
type Found struct {
	Leftovers []allocnet.Leftover `json:"leftovers"`
	Error     *Error              `json:"error,omitempty"`
}

// Gone is the body of POST /v1/allocs/{id}/teardown-gone.
type Gone struct {
	Gone  bool   `json:"gone"`
	Error *Error `json:"error,omitempty"`
}

// Repaired is the body of POST /v1/repair.
type Repaired struct {
	allocnet.RepairReport
	Error *Error `json:"error,omitempty"`
}

// Networks is the body of GET /v1/networks.
type Networks struct {
	Networks []allocnet.Network `json:"networks"`
	Skipped  []SkippedFile      `json:"skipped"`
}

// SkippedFile is a file of the configuration directory that is not active.
type SkippedFile struct {
	File  string `json:"file"`
	Error *Error `json:"error"`
}

// NewSandbox is the request of POST /v1/sandboxes.
type NewSandbox struct {
	Name string `json:"name"`
}

// Sandbox is the body of POST /v1/sandboxes.
type Sandbox struct {
	Path  string `json:"path"`
	Error *Error `json:"error,omitempty"` // if it existed already
}

// History is the body of GET /v1/history.
type History struct {
	Operations []allocnet.HistoryEntry `json:"operations"`
}

// Health is the body of GET /healthz.
type Health struct {
	Status string `json:"status"`
}

// Readiness is the body of GET /readyz. Error joins the errors of the checks.
type Readiness struct {
	Ready  bool    `json:"ready"`
	Checks []Check `json:"checks"`
	Error  *Error  `json:"error,omitempty"`
}

// Check is one requirement of a successful ADD.
type Check struct {
	Name    string `json:"name"`
	Network string `json:"network,omitempty"`
	Ready   bool   `json:"ready"`
	Error   *Error `json:"error,omitempty"`
	// Warning is a problem that the administrator should fix although an ADD can succeed.
	Warning *Error `json:"warning,omitempty"`
}

// Event is one event of GET /v1/events.
type Event struct {
	// ID increases by one with each event. It is 0 if Type is lost.
	ID   uint64    `json:"id,omitempty"`
	Time time.Time `json:"time"`
	Type string    `json:"type"`
	Data any       `json:"data"`
}

// NetworkError returns the error as a type of package allocnet.
func (s SkippedFile) NetworkError() *allocnet.NetworkError {
	return &allocnet.NetworkError{File: s.File, Err: cmp.Or(s.Error.Reason, s.Error).Err()}
}
