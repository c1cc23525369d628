package portmap

import (
	"errors"
	"fmt"
)

// ErrConflict is the sentinel that errors.Is finds in every ConflictError.
var ErrConflict = errors.New("host port conflict")

// PortError reports one invalid field of one port. Mappings joins the errors of all
// fields; errors.As finds the *PortError.
type PortError struct {
	Index  int    // index of the port in its list, from 0
	Label  string // label of the port; may be empty
	Field  string // JSON name of the field: value, to, range, hostIP or protocols
	Value  string // the invalid value; for protocols only the unknown protocol
	Reason string // the condition that the value must meet
}

// Error names the port, the field, its value and the condition that the value must
// meet.
func (e *PortError) Error() string {
	return fmt.Sprintf("check ports[%d]%s: %s %q %s", e.Index, quoteLabel(e.Label), e.Field, e.Value, e.Reason)
}

// ConflictError reports that Mapping cannot be published because it overlaps
// Other. Mappings returns it as *ConflictError, without IDs, for two ports of
// one list.
type ConflictError struct {
	Mapping Mapping // the mapping that cannot be published
	Other   Mapping // the mapping that was published or requested first
	ID      string  // ID of the allocation that requests Mapping; may be empty
	OtherID string  // ID of the allocation that has Other; empty or equal to ID for the same allocation
}

// Error names both mappings with protocol, port, host IP and label, and their
// allocations.
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
