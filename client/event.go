package client

import (
	"encoding/json"
	"time"

	"github.com/allocnet/allocnet"
)

// Event is something that happened in the daemon.
type Event struct {
	// ID is one more than that of the event before, also across a restart, where
	// there is a gap. 0 for Lost.
	ID   uint64
	Time time.Time
	// Type says what Data is. Of a type that is not known here Data is nil.
	Type string
	Data any
	// JSON is the text of Data.
	JSON json.RawMessage
}

// The types of events.
const (
	TypeOperation     = "operation"     // *Operation
	TypeForced        = "forced"        // *Forced
	TypeReload        = "reload"        // *Reload
	TypeConfiguration = "configuration" // *Configuration
	TypeLost          = "lost"          // *Lost
)

// Operation is an operation that ended.
type Operation struct {
	allocnet.Step
	Seconds float64 `json:"seconds"`
	Outcome string  `json:"outcome"` // ok, or a word for the kind of failure
	Error   string  `json:"error,omitempty"`
	// Steps are in the order in which they ended. A step that is a part of another
	// ends before it.
	Steps []StepTime `json:"steps,omitempty"`
	// Omitted is how many further steps there were.
	Omitted int `json:"stepsOmitted,omitempty"`
}

// StepTime is a step of an operation.
type StepTime struct {
	Step    string  `json:"step"`
	ID      string  `json:"id,omitempty"` // of the allocation, where it is not the operation's
	At      float64 `json:"at"`           // seconds after the operation began
	Seconds float64 `json:"seconds"`
	Outcome string  `json:"outcome"`
	Error   string  `json:"error,omitempty"`
}

// Forced is what DEL did not remove and force did.
type Forced struct {
	ID      string              `json:"id"`
	Removed []allocnet.Leftover `json:"removed"`
}

// Reload is that the daemon's configuration was read. With an Error the one before
// stays in force.
type Reload struct {
	Error string `json:"error,omitempty"`
}

// Configuration is that another network configuration is in force: its primary
// network, the file that it is in, why it cannot be used, if so, and what somebody
// has to mend.
type Configuration struct {
	Primary  string   `json:"primary,omitempty"`
	File     string   `json:"file,omitempty"`
	NotReady string   `json:"notReady,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

// Lost tells that events are missing before the next one: Count of them, or, where
// the daemon was Restarted, nobody knows how many.
type Lost struct {
	Count     uint64 `json:"count,omitempty"`
	Restarted bool   `json:"restarted,omitempty"`
}
