package wire

import (
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/record"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/portmap"
)

// Error is an error on its way from the daemon to a client.
type Error struct {
	// Kind is the first of the Kinds that applies. The words are for ever.
	Kind string `json:"kind"`
	// Also are the others that apply.
	Also []string `json:"also,omitempty"`
	// Message is the whole text.
	Message string `json:"message"`
	// CNICode, CNIMessage and Details are those of a CNI error.
	CNICode    *uint  `json:"cniCode,omitempty"`
	CNIMessage string `json:"cniMessage,omitempty"`
	Details    string `json:"details,omitempty"`
	// Allocation is the one that the leftovers are of.
	Allocation string                  `json:"allocation,omitempty"`
	Leftovers  []configurator.Leftover `json:"leftovers,omitempty"`
	// Conflict says which two host ports exclude each other.
	Conflict *Conflict `json:"conflict,omitempty"`
	// Port is a port that cannot be used.
	Port *Port `json:"port,omitempty"`
	// Unserved is what no plugin serves.
	Unserved *Unserved `json:"unserved,omitempty"`
	// File is that of the configuration directory that the error is about.
	File string `json:"file,omitempty"`
	// Record is one that cannot be read.
	Record *Record `json:"record,omitempty"`
}

// Conflict is a portmap.ConflictError.
type Conflict struct {
	Mapping portmap.Mapping `json:"mapping"`
	Other   portmap.Mapping `json:"other"`
	ID      string          `json:"id,omitempty"`
	OtherID string          `json:"otherID,omitempty"`
}

// Port is a portmap.PortError.
type Port struct {
	Index  int    `json:"index"`
	Label  string `json:"label,omitempty"`
	Field  string `json:"field"`
	Value  string `json:"value"`
	Reason string `json:"reason"`
}

// Unserved is a configurator.UnservedError.
type Unserved struct {
	ID           string   `json:"id,omitempty"`
	Capabilities []string `json:"capabilities"`
	Networks     []string `json:"networks"`
}

// Record is a record.CorruptError.
type Record struct {
	ID   string `json:"id"`
	File string `json:"file"`
	// Newer says that a newer allocnet wrote it.
	Newer bool `json:"newer,omitempty"`
	// Reason is what is wrong with it.
	Reason string `json:"reason"`
}

// FromError says err for the wire; nil for nil. What a plugin quotes of its
// configuration does not go along: clients may not be allowed to read that.
func FromError(err error) *Error {
	if err == nil {
		return nil
	}
	e := &Error{Message: redact.Objects(strings.ToValidUTF8(err.Error(), "\uFFFD"))}
	for _, k := range Kinds {
		switch {
		case !k.applies(err):
		case e.Kind == "":
			e.Kind = k.Word
		case k.Sentinel != nil:
			e.Also = append(e.Also, k.Word)
		}
	}
	e.addTyped(err)
	return e
}

// addTyped keeps what the typed errors in err hold.
func (e *Error) addTyped(err error) {
	var (
		cni       *types.Error
		conflict  *portmap.ConflictError
		port      *portmap.PortError
		leftovers *configurator.LeftoverError
		network   *configurator.NetworkError
		unserved  *configurator.UnservedError
		corrupt   *record.CorruptError
	)
	if errors.As(err, &cni) {
		e.CNICode, e.CNIMessage, e.Details = &cni.Code, redact.Objects(cni.Msg), redact.Objects(cni.Details)
	}
	if errors.As(err, &conflict) {
		e.Conflict = &Conflict{conflict.Mapping, conflict.Other, conflict.ID, conflict.OtherID}
	}
	if errors.As(err, &port) {
		e.Port = &Port{port.Index, port.Label, port.Field, port.Value, port.Reason}
	}
	if errors.As(err, &leftovers) {
		e.Allocation, e.Leftovers = leftovers.ID, leftovers.Leftovers
	}
	if errors.As(err, &unserved) {
		e.Unserved = &Unserved{unserved.ID, unserved.Capabilities, unserved.Networks}
	}
	if errors.As(err, &network) {
		e.File = network.File
	}
	if errors.As(err, &corrupt) {
		e.Record = &Record{corrupt.ID, corrupt.File, errors.Is(corrupt, record.ErrNewer), corrupt.Err.Error()}
	}
}

// Causes are the errors that errors.Is and errors.As found in the original: the
// sentinels of its kinds and its typed errors. Kinds that this build does not know
// have none.
func (e *Error) Causes() []error {
	var causes []error
	for _, word := range append([]string{e.Kind}, e.Also...) {
		if k := lookup(word); k != nil && k.Sentinel != nil {
			causes = append(causes, k.Sentinel)
		}
	}
	if e.CNICode != nil {
		causes = append(causes, &types.Error{Code: *e.CNICode, Msg: e.CNIMessage, Details: e.Details})
	}
	if c := e.Conflict; c != nil {
		causes = append(causes, &portmap.ConflictError{Mapping: c.Mapping, Other: c.Other, ID: c.ID, OtherID: c.OtherID})
	}
	if p := e.Port; p != nil {
		causes = append(causes, &portmap.PortError{Index: p.Index, Label: p.Label, Field: p.Field, Value: p.Value, Reason: p.Reason})
	}
	if len(e.Leftovers) > 0 {
		causes = append(causes, &configurator.LeftoverError{ID: e.Allocation, Leftovers: e.Leftovers})
	}
	if u := e.Unserved; u != nil {
		causes = append(causes, &configurator.UnservedError{ID: u.ID, Capabilities: u.Capabilities, Networks: u.Networks})
	}
	if e.File != "" {
		causes = append(causes, &configurator.NetworkError{File: e.File, Err: e.Cause()})
	}
	if r := e.Record; r != nil {
		reason := errors.New(r.Reason)
		if r.Newer {
			reason = fmt.Errorf("%w: %s", record.ErrNewer, r.Reason)
		}
		causes = append(causes, &record.CorruptError{ID: r.ID, File: r.File, Err: reason})
	}
	return causes
}

// Status is the HTTP status that fits the error.
func (e *Error) Status() int {
	if k := lookup(e.Kind); k != nil {
		return k.Status
	}
	return internal.Status
}

// Cause is the error behind that of a file. It is never nil.
func (e *Error) Cause() error {
	if e == nil {
		return errors.New("no reason is given")
	}
	return errors.New(strings.TrimPrefix(e.Message, e.File+": "))
}
