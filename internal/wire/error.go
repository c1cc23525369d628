package wire

import (
	"errors"
	"strings"

	"github.com/allocnet/allocnet"
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
	// Errno is the name of an error of the kernel.
	Errno string `json:"errno,omitempty"`
	// About is which allocation the error is about, among several.
	About *About `json:"about,omitempty"`
	// Allocation is the one that the leftovers are of.
	Allocation string              `json:"allocation,omitempty"`
	Leftovers  []allocnet.Leftover `json:"leftovers,omitempty"`
	// Conflict says which two host ports exclude each other.
	Conflict *Conflict `json:"conflict,omitempty"`
	// PortTaken is a host port that another has in the kernel.
	PortTaken *PortTaken `json:"portTaken,omitempty"`
	// Listener is a process of the host that listens on a host port.
	Listener *Listener `json:"listener,omitempty"`
	// Port is a port that cannot be used.
	Port *Port `json:"port,omitempty"`
	// Unserved is what no plugin serves.
	Unserved *Unserved `json:"unserved,omitempty"`
	// InUse is a network namespace that another allocation has.
	InUse *InUse `json:"inUse,omitempty"`
	// File is that of the configuration directory that the error is about, and Reason
	// what is wrong with it.
	File   string `json:"file,omitempty"`
	Reason *Error `json:"reason,omitempty"`
	// StateDir is a state directory that cannot be used.
	StateDir *StateDir `json:"stateDir,omitempty"`
	// Record is one that cannot be read.
	Record *Record `json:"record,omitempty"`
	// Causes are the errors that were joined in this one.
	Causes []*Error `json:"causes,omitempty"`
}

// Conflict is a portmap.ConflictError.
type Conflict struct {
	Mapping portmap.Mapping `json:"mapping"`
	Other   portmap.Mapping `json:"other"`
	ID      string          `json:"id,omitempty"`
	OtherID string          `json:"otherID,omitempty"`
}

// About is a allocnet.AllocationError.
type About struct {
	ID    string `json:"id"`
	Error *Error `json:"error"`
}

// PortTaken is an allocnet.PortTakenError.
type PortTaken struct {
	HostIP    string `json:"hostIP,omitempty"`
	HostPort  int    `json:"hostPort"`
	Protocol  int    `json:"protocol"` // as in the header of IP
	To        string `json:"to,omitempty"`
	Network   string `json:"network,omitempty"`
	ID        string `json:"id,omitempty"`
	Interface string `json:"interface,omitempty"`
	Instance  string `json:"instance,omitempty"`
}

// Listener is a allocnet.ListenerError.
type Listener struct {
	ID      string          `json:"id,omitempty"`
	Mapping portmap.Mapping `json:"mapping"`
	Address string          `json:"address"`
	UID     int             `json:"uid"`
	PID     int             `json:"pid,omitempty"`
	Process string          `json:"process,omitempty"`
}

// InUse is a allocnet.NetnsError.
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

// Unserved is a allocnet.UnservedError.
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

// text is what a client may read.
func text(s string) string { return redact.Text(strings.ToValidUTF8(s, "\uFFFD")) }

// Err is the error that was sent: it has the same text, and errors.Is and errors.As find
// in it what they found in the original, as far as this build knows the kinds. It is nil
// for nil.
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

// IsRemote reports whether errors.As finds an error that an Err made.
func IsRemote(err error) bool { return as[*remoteError](err) }

// Each are the errors that errors.Join made one of, also of some that it had joined
// before, and err itself where it is another. There is none for nil.
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

// joined are the errors of which an error says nothing but their texts, as errors.Join
// makes it; nil for others.
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

// Status is the HTTP status that fits the error.
func (e *Error) Status() int {
	if k := lookup(e.Kind); k != nil {
		return k.Status
	}
	return internal.Status
}
