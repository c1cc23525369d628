package telemetry

import "github.com/allocnet/allocnet/configurator"

// Types of events say what their Data is.
const (
	TypeOperation     = "operation"     // one ended: Done
	TypeForced        = "forced"        // something was removed by force: Forced
	TypeReload        = "reload"        // the program's configuration was read: Reload
	TypeConfiguration = "configuration" // the network configuration changed: Configuration
	TypeLost          = "lost"          // the subscriber missed events: Lost
)

// Done is an operation that ended.
type Done struct {
	configurator.Step
	Seconds float64 `json:"seconds"`
	Outcome Outcome `json:"outcome"`
	Error   string  `json:"error,omitempty"`
	// Steps are in the order in which they ended. A step that is a part of another
	// ends before it.
	Steps []StepTime `json:"steps,omitempty"`
	// Omitted is how many further steps there were.
	Omitted int `json:"stepsOmitted,omitempty"`
}

// StepTime is a step of an operation.
type StepTime struct {
	Step string `json:"step"`
	// ID is that of the allocation, where it is not the operation's.
	ID      string  `json:"id,omitempty"`
	At      float64 `json:"at"` // seconds after the operation began
	Seconds float64 `json:"seconds"`
	Outcome Outcome `json:"outcome"`
	Error   string  `json:"error,omitempty"`
}

// Forced is what DEL did not remove and force did.
type Forced struct {
	ID      string                  `json:"id"`
	Removed []configurator.Leftover `json:"removed"`
}

// Reload is that the program's configuration was read. With an Error the one
// before stays in force.
type Reload struct {
	Error string `json:"error,omitempty"`
}

// Configuration is the network configuration in force: see Configured.
type Configuration struct {
	Primary  string   `json:"primary,omitempty"`
	File     string   `json:"file,omitempty"`
	NotReady string   `json:"notReady,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

// maxProblems bounds the Problems of one event.
const maxProblems = 64

// Lost tells a subscriber that events are missing before the next one.
type Lost struct {
	// Count is how many; 0 where Restarted.
	Count uint64 `json:"count,omitempty"`
	// Restarted: those before the program was started, nobody knows how many.
	Restarted bool `json:"restarted,omitempty"`
}
