package engine

import (
	"errors"
	"slices"
	"strings"
)

// CheckError is the error of the CHECK of one plugin.
type CheckError struct {
	Place
	// Type is that of the plugin, which ran as a binary if Binary is set.
	Type   string
	Binary bool
	Err    error
	// Findings are the single differences that the plugin reports.
	Findings []string
}

// Error implements error.
func (e *CheckError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *CheckError) Unwrap() error { return e.Err }

// Checked returns the error of the CHECK of a plugin: nil if the attachment knows all of its
// findings, else a *CheckError.
func (r *Request) Checked(at Place, binary bool, err error) error {
	if err == nil {
		return nil
	}
	a := r.Attachments[at.Attachment]
	e := &CheckError{Place: at, Type: a.Network.List.Plugins[at.Plugin].Network.Type, Binary: binary, Err: err}
	for _, one := range joined(err) {
		e.Findings = append(e.Findings, r.withoutPaths(one.Error()))
	}
	if known := a.Known[at.Plugin]; len(known) > 0 && !slices.ContainsFunc(e.Findings, func(f string) bool { return !slices.Contains(known, f) }) {
		return nil
	}
	return e
}

// withoutPaths replaces the paths of the network namespace in a text, which differ between operations.
func (r *Request) withoutPaths(text string) string {
	if r.Sandbox != nil {
		text = strings.ReplaceAll(text, r.Sandbox.ProcPath(), "CNI_NETNS")
	}
	if r.Netns != "" {
		text = strings.ReplaceAll(text, r.Netns, "CNI_NETNS")
	}
	return text
}

// joined returns the errors that are joined in err, or err itself.
func joined(err error) []error {
	for e := err; e != nil; e = errors.Unwrap(e) {
		list, ok := e.(interface{ Unwrap() []error })
		if !ok {
			continue
		}
		var all []error
		for _, one := range list.Unwrap() {
			all = append(all, joined(one)...)
		}
		return all
	}
	return []error{err}
}
