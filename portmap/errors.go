package portmap

import (
	"errors"
	"fmt"
)

// ErrConflict is found by errors.Is in every ConflictError.
var ErrConflict = errors.New("host port conflict")

// PortError reports one invalid field of one port. Mappings returns it, joined with
// the others, as *PortError for errors.As.
type PortError struct {
	Index  int    // of the port in its list, from 0
	Label  string // of the port; may be empty
	Field  string // by its JSON name: value, to, range, hostIP or protocols
	Value  string // as it was given; of protocols only the unknown one
	Reason string // what is allowed instead
}

// Error names the port, the field and its value, and what is allowed.
func (e *PortError) Error() string {
	return fmt.Sprintf("check ports[%d]%s: %s %q %s", e.Index, quoteLabel(e.Label), e.Field, e.Value, e.Reason)
}

// ConflictError reports that Mapping cannot be published because it overlaps
// Other. Mappings returns it as *ConflictError, without IDs, for two ports of
// one list.
type ConflictError struct {
	Mapping Mapping // the one that was to be published
	Other   Mapping // the one that was there first
	ID      string  // of the allocation that wants Mapping; may be empty
	OtherID string  // of the one that has Other; empty or ID when it is the same one
}

// Error names both mappings with protocol, port, host IP and label, and the
// allocations that they belong to.
func (e *ConflictError) Error() string {
	wants, has := "", "the same allocation"
	if e.ID != "" {
		wants = fmt.Sprintf(" for allocation %q", e.ID)
	}
	if e.OtherID != "" && e.OtherID != e.ID {
		has = fmt.Sprintf("allocation %q", e.OtherID)
	}
	return fmt.Sprintf("publish %s%s: %v with %s of %s", describe(e.Mapping), wants, ErrConflict, describe(e.Other), has)
}

// Unwrap returns ErrConflict.
func (e *ConflictError) Unwrap() error { return ErrConflict }

func describe(m Mapping) string {
	ip := m.HostIP
	if ip == "" {
		ip = "all addresses"
	}
	return fmt.Sprintf("%s port %d on %s%s", m.Protocol, m.HostPort, ip, quoteLabel(m.Label))
}

func quoteLabel(label string) string {
	if label == "" {
		return ""
	}
	return fmt.Sprintf(" (%q)", label)
}
