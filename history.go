package allocnet

import "time"

// HistoryQuery selects operations of the history.
type HistoryQuery struct {
	ID    string // of the allocation; "" selects those of all allocations
	Limit int    // maximum number of operations, the latest; 0 selects all
}

// HistoryEntry is an operation on one allocation that has ended. An operation on all
// allocations has an entry for each allocation that it changed, or failed to change.
type HistoryEntry struct {
	Time time.Time `json:"time"` // of the end
	// Program is the name and the ID of the process, as in "allocnetd[812]".
	Program   string   `json:"program"`
	Operation string   `json:"operation"` // see Step.Operation
	ID        string   `json:"id"`
	Networks  []string `json:"networks,omitempty"`
	Engine    Engine   `json:"engine,omitempty"`
	Seconds   float64  `json:"seconds"`
	// Cause is why something was restored: the change of another program, or what CHECK found.
	Cause string `json:"cause,omitempty"`
	// Error is the text of the failure, and Kind its kind, as in the answers of the
	// daemon; both are "" after a success.
	Error string `json:"error,omitempty"`
	Kind  string `json:"kind,omitempty"`
	// Steps are the steps in the order of their ends. A step that is part of another one
	// ends before it; one that was retried is listed several times.
	Steps []HistoryStep `json:"steps,omitempty"`
	// Forced are leftovers of DEL that were removed by force.
	Forced []Leftover `json:"forced,omitempty"`
}

// HistoryStep is a step of an operation of the history.
type HistoryStep struct {
	Step    string  `json:"step"` // one of the Step constants
	At      float64 `json:"at"`   // seconds from the beginning of the operation
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
}
