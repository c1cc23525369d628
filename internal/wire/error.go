package wire

import (
	"errors"
	"strings"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/portmap"
)

// Error is the encoding of an error.
type Error struct {
	// Kind is the word of the first of the Kinds that applies. Words never change.
	Kind string `json:"kind"`
	// Also are the words of the other Kinds that apply.
	Also []string `json:"also,omitempty"`
	// Message is the complete text.
	Message string `json:"message"`
	// CNICode, CNIMessage and Details are the fields of a CNI error.
	CNICode    *uint  `json:"cniCode,omitempty"`
	CNIMessage string `json:"cniMessage,omitempty"`
	Details    string `json:"details,omitempty"`
	// Errno is the name of a kernel error.
	Errno string `json:"errno,omitempty"`
	// About is an allocnet.AllocationError.
	About *About `json:"about,omitempty"`
	// Allocation is the ID of the allocation of the Leftovers.
	Allocation string              `json:"allocation,omitempty"`
	Leftovers  []allocnet.Leftover `json:"leftovers,omitempty"`
	// Conflict is a portmap.ConflictError.
	Conflict *Conflict `json:"conflict,omitempty"`
	// PortTaken is an allocnet.PortTakenError.
	PortTaken *PortTaken `json:"portTaken,omitempty"`
	// Listener is an allocnet.ListenerError.
	Listener *Listener `json:"listener,omitempty"`
	// Revision is an allocnet.RevisionError.
	Revision *Revision `json:"revision,omitempty"`
	// Subnet is an allocnet.SubnetError.
	Subnet *Subnet `json:"subnet,omitempty"`
	// Port is a portmap.PortError.
	Port *Port `json:"port,omitempty"`
	// Unserved is an allocnet.UnservedError.
	Unserved *Unserved `json:"unserved,omitempty"`
	// InUse is an allocnet.NetnsError.
	InUse *InUse `json:"inUse,omitempty"`
	// File and Reason are the fields of an allocnet.NetworkError.
	File   string `json:"file,omitempty"`
	Reason *Error `json:"reason,omitempty"`
	// StateDir is an allocnet.StateDirError.
	StateDir *StateDir `json:"stateDir,omitempty"`
	// Record is an allocnet.RecordError.
	Record *Record `json:"record,omitempty"`
	// Causes are the errors that this error joins.
	Causes []*Error `json:"causes,omitempty"`
}

// Subnet is an allocnet.SubnetError.
type Subnet struct {
	Network string `json:"network"`
	File    string `json:"file,omitempty"`
	Subnet  string `json:"subnet"`
	Taken   string `json:"taken"`
}

// Revision is an allocnet.RevisionError.
type Revision struct {
	ID      string `json:"id"`
	Wanted  string `json:"wanted"`
	Current string `json:"current"`
}

// Conflict is a portmap.ConflictError.
type Conflict struct {
	Mapping portmap.Mapping `json:"mapping"`
	Other   portmap.Mapping `json:"other"`
	ID      string          `json:"id,omitempty"`
	OtherID string          `json:"otherID,omitempty"`
}

// About is an allocnet.AllocationError.
type About struct {
	ID    string `json:"id"`
	Error *Error `json:"error"`
}

// PortTaken is an allocnet.PortTakenError.
type PortTaken struct {
	HostIP    string `json:"hostIP,omitempty"`
	HostPort  int    `json:"hostPort"`
	Protocol  int    `json:"protocol"` // as in the IP header
	To        string `json:"to,omitempty"`
	Network   string `json:"network,omitempty"`
	ID        string `json:"id,omitempty"`
	Interface string `json:"interface,omitempty"`
	Instance  string `json:"instance,omitempty"`
}

// Listener is an allocnet.ListenerError.
type Listener struct {
	ID      string          `json:"id,omitempty"`
	Mapping portmap.Mapping `json:"mapping"`
	Address string          `json:"address"`
	UID     int             `json:"uid"`
	PID     int             `json:"pid,omitempty"`
	Process string          `json:"process,omitempty"`
}

// InUse is an allocnet.NetnsError.
type InUse struct {
	Netns   string `json:"netns"`
	ID      string `json:"id,omitempty"`
	OtherID string `json:"otherID"`
}

// Port is a portmap.PortError.
type Port struct {
	Index  int    `json:"index"`
	Label  string `json:"label,omitempty"`
	Field  string `json:"field"`
	Value  string `json:"value"`
	Reason string `json:"reason"`
}

// Unserved is an allocnet.UnservedError.
type Unserved struct {
	ID           string   `json:"id,omitempty"`
	Capabilities []string `json:"capabilities"`
	Networks     []string `json:"networks"`
}

// StateDir is an allocnet.StateDirError.
type StateDir struct {
	Dir   string `json:"dir"`
	Error *Error `json:"error"`
}

// Record is a allocnet.RecordError.
type Record struct {
	ID   string `json:"id"`
	File string `json:"file"`
	// Newer reports that a newer version of allocnet wrote the record.
	Newer bool `json:"newer,omitempty"`
	// Reason is the text of the error.
	Reason string `json:"reason"`
}

// FromError encodes an error; nil for nil. It removes configurations that plugins quote,
// because clients may not be permitted to read them.
func FromError(err error) *Error {
	if err == nil {
		return nil
	}
	e := &Error{Message: text(err.Error())}
	for _, k := range Kinds {
		switch {
		case !k.applies(err):
		case e.Kind == "":
			e.Kind = k.Word
		case k.Sentinel != nil:
			e.Also = append(e.Also, k.Word)
		}
	}
	for _, t := range typed() {
		t.keep(err, e)
	}
	if causes := joined(err); len(causes) > 1 {
		for _, cause := range causes {
			e.Causes = append(e.Causes, FromError(cause))
		}
	}
	return e
}

// text returns a text without configurations, in valid UTF-8.
func text(s string) string { return redact.Text(strings.ToValidUTF8(s, "\uFFFD")) }

// Err decodes an error; nil for nil. The error has the text of the original. errors.Is
// and errors.As find the same errors in it, except kinds that this build does not have.
func (e *Error) Err() error {
	if e == nil {
		return nil
	}
	if len(e.Causes) > 0 {
		causes := make([]error, len(e.Causes))
		for i, cause := range e.Causes {
			causes[i] = cause.Err()
		}
		return errors.Join(causes...)
	}
	err := &remoteError{message: e.Message}
	for _, word := range append([]string{e.Kind}, e.Also...) {
		if k := lookup(word); k != nil && k.Sentinel != nil {
			err.causes = append(err.causes, k.Sentinel)
		}
	}
	for _, t := range typed() {
		if cause := t.restore(e); cause != nil {
			err.causes = append(err.causes, cause)
		}
	}
	return err
}

// remoteError is an error of the daemon.
type remoteError struct {
	message string
	causes  []error
}

func (e *remoteError) Error() string   { return e.message }
func (e *remoteError) Unwrap() []error { return e.causes }

// IsRemote reports whether an error contains an error that Err has returned.
func IsRemote(err error) bool { return as[*remoteError](err) }

// Each returns the errors that err joins, also in several levels. If err does not join any, it
// returns err alone; for nil it returns none.
func Each(err error) []error {
	if err == nil {
		return nil
	}
	parts := joined(err)
	if parts == nil {
		return []error{err}
	}
	var each []error
	for _, part := range parts {
		each = append(each, Each(part)...)
	}
	return each
}

// joined returns the errors of an error whose text consists of their texts, as that of
// errors.Join; nil for other errors.
func joined(err error) []error {
	several, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	parts := several.Unwrap()
	texts := make([]string, len(parts))
	for i, part := range parts {
		texts[i] = part.Error()
	}
	if err.Error() != strings.Join(texts, "\n") {
		return nil
	}
	return parts
}

// Status returns the HTTP status of the error.
func (e *Error) Status() int {
	if k := lookup(e.Kind); k != nil {
		return k.Status
	}
	return internal.Status
}
