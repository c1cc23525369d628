package engine

import "fmt"

// Place is the position of a plugin in a request: the index of its attachment,
// and its index in that attachment's chain.
type Place struct{ Attachment, Plugin int }

// AddError is the error of the plugin that failed in ADD. Later plugins did not run.
type AddError struct {
	Place
	// Unstarted reports that the plugin was not started.
	Unstarted bool
	Err       error
}

// Error implements error.
func (e *AddError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *AddError) Unwrap() error { return e.Err }

// Reached reports whether ADD ran the plugin at a place.
func (e *AddError) Reached(p Place) bool {
	if p.Attachment != e.Attachment {
		return p.Attachment < e.Attachment
	}
	return p.Plugin < e.Plugin || p.Plugin == e.Plugin && !e.Unstarted
}

// DelError is the error of one plugin's DEL.
type DelError struct {
	Place
	Network string
	Config  []byte // of the plugin, as the conflist has it
	Err     error
}

// Error implements error.
func (e *DelError) Error() string { return fmt.Sprintf("network %q: %v", e.Network, e.Err) }

// Unwrap returns the cause.
func (e *DelError) Unwrap() error { return e.Err }
