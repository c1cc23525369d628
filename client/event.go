package client

import (
	"encoding/json"
	"time"

	"github.com/allocnet/allocnet"
)

// Event is an event of the daemon.
type Event struct {
	// ID increases by one with each event. It continues after a restart of the daemon, with
	// a gap. It is 0 for Lost.
	ID   uint64
	Time time.Time
	// Type is one of the Type constants and determines the type of Data. Data is nil if the
	// type is not known to this version.
	Type string
	Data any
	// JSON is the encoded Data.
	JSON json.RawMessage
}

// The types of events.
const (
	TypeOperation     = "operation"     // *Operation
	TypeForced        = "forced"        // *Forced
	TypeReload        = "reload"        // *Reload
	TypeConfiguration = "configuration" // *Configuration
	TypeHeal          = "heal"          // *Heal
	TypeDenied        = "denied"        // *Denied
	TypeLost          = "lost"          // *Lost
)

// Operation is the end of an operation.
type Operation struct {
	allocnet.Step
	Seconds float64 `json:"seconds"`
	Outcome string  `json:"outcome"` // ok, or the kind of the failure
	Error   string  `json:"error,omitempty"`
	// Steps are the steps in the order of their ends. A step that is part of another one
	// ends before it.
	Steps []StepTime `json:"steps,omitempty"`
	// Omitted is the number of further steps.
	Omitted int `json:"stepsOmitted,omitempty"`
}

// StepTime is the duration and the outcome of a step of an operation.
type StepTime struct {
	Step    string  `json:"step"`
	ID      string  `json:"id,omitempty"` // of the allocation, if it differs from that of the operation
	At      float64 `json:"at"`           // seconds from the beginning of the operation
	Seconds float64 `json:"seconds"`
	Outcome string  `json:"outcome"`
	Error   string  `json:"error,omitempty"`
}

// Forced are leftovers that DEL did not remove and the daemon removed itself.
type Forced struct {
	ID      string              `json:"id"`
	Removed []allocnet.Leftover `json:"removed"`
}

// Reload reports that the daemon has read its configuration again. If there is an Error, the
// previous configuration stays active. Restart are the settings that have changed, and need a
// restart of the daemon; their previous values stay active.
type Reload struct {
	Error   string   `json:"error,omitempty"`
	Restart []string `json:"restart,omitempty"`
}

// Configuration reports that a different network configuration is active. Primary is the
// primary network, File its file, and NotReady the reason if it cannot be used. Problems are
// texts for the administrator.
type Configuration struct {
	Primary  string   `json:"primary,omitempty"`
	File     string   `json:"file,omitempty"`
	NotReady string   `json:"notReady,omitempty"`
	Problems []string `json:"problems,omitempty"`
}

// Heal reports that the daemon has restored what another program removed from the host, or
// that it could not.
type Heal struct {
	// Cause is the kind of the change: rules, firewall, link, address, route, veth or lost
	// for notifications of the kernel, drift for the comparison in the background.
	Cause string `json:"cause"`
	// Change describes the change, with the process that made it if that is known.
	Change string `json:"change,omitempty"`
	// Restored is the number of allocations of which something was restored. Allocs are
	// the IDs of the first of them.
	Restored int      `json:"restored"`
	Allocs   []string `json:"allocs,omitempty"`
	// Unhealthy is the ID of an allocation that is unhealthy from now on, for the reason
	// in Error.
	Unhealthy string `json:"unhealthy,omitempty"`
	Error     string `json:"error,omitempty"`
	// Seconds is how long the repair took.
	Seconds float64 `json:"seconds"`
	// BackOff is the time in seconds for which the daemon will not repair such a change
	// again, because something keeps making it.
	BackOff float64 `json:"backOff,omitempty"`
}

// Denied reports flows whose packets network policies have dropped since the daemon looked
// last. The daemon looks for them while a client reads its events.
type Denied struct {
	// Flows are those with the most packets: at most 32, and at most 8 of one allocation. Their
	// Packets and Bytes are those since the last look.
	Flows []DeniedFlow `json:"flows"`
	// Omitted is the number of further flows, and OmittedPackets that of their packets.
	Omitted        int    `json:"omitted,omitempty"`
	OmittedPackets uint64 `json:"omittedPackets,omitempty"`
	// Unlisted are packets since the last look whose flows are not listed, of at most 32 allocations, those
	// with the most packets first.
	Unlisted []UnlistedDenials `json:"unlisted,omitempty"`
}

// Lost reports that events before the next one are missing. Count is their number. It is not
// known if the daemon was Restarted.
type Lost struct {
	Count     uint64 `json:"count,omitempty"`
	Restarted bool   `json:"restarted,omitempty"`
}
