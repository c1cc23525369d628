package settings

import "fmt"

// Error is one problem of the settings: where it is, and how to correct it.
type Error struct {
	Origin  string `json:"origin"`         // the file, the variable or the flag
	Line    int    `json:"line,omitempty"` // in the file
	Key     string `json:"key,omitempty"`
	Problem string `json:"problem"`
}

// Error implements error.
func (e *Error) Error() string {
	where := e.Origin
	if e.Line > 0 {
		where += fmt.Sprintf(":%d", e.Line)
	}
	if e.Key != "" {
		where += ": " + e.Key
	}
	return where + ": " + e.Problem
}

// Errors returns all problems in an error of Load.
func Errors(err error) []*Error {
	switch e := err.(type) {
	case *Error:
		return []*Error{e}
	case interface{ Unwrap() []error }:
		var all []*Error
		for _, one := range e.Unwrap() {
			all = append(all, Errors(one)...)
		}
		return all
	}
	return nil
}
