package thin

import (
	"errors"
	"slices"
	"strconv"
)

var (
	// ErrAway: no daemon listens, or it ended before it answered. What it may have
	// begun is in its records.
	ErrAway = errors.New("allocnetd is away")
	// ErrHung: the daemon shows no sign of life, or says nothing that can be
	// understood. The connection is closed, so that it undoes what it may have begun.
	ErrHung = errors.New("allocnetd does not answer")
)

// callError says at what a call failed, for which of the two reasons, and why.
type callError struct {
	doing  string
	kind   error
	reason string
}

func (e *callError) Error() string {
	text := e.kind.Error()
	if e.doing != "" {
		text = e.doing + ": " + text
	}
	if e.reason != "" {
		text += ": " + e.reason
	}
	return text
}

func (e *callError) Unwrap() error { return e.kind }

// while says at what a call failed.
func while(doing string, err error) error {
	var e *callError
	if !errors.As(err, &e) {
		return err
	}
	said := *e
	said.doing = doing
	return &said
}

func away(reason string) error    { return &callError{kind: ErrAway, reason: reason} }
func garbled(reason string) error { return &callError{kind: ErrHung, reason: reason} }

// Error is an error as a runtime gets it.
type Error struct {
	Code         uint
	Msg, Details string
}

func (e *Error) Error() string {
	text := "CNI error " + strconv.FormatUint(uint64(e.Code), 10) + ": " + e.Msg
	if e.Details != "" {
		text += "; " + e.Details
	}
	return text
}

// JSON is the error in the version of a configuration, or the newest where it has none
// that is ours.
func (e *Error) JSON(version string) []byte {
	to := quote([]byte(`{"cniVersion":`), ReportVersion(version))
	to = strconv.AppendUint(append(to, `,"code":`...), uint64(e.Code), 10)
	to = quote(append(to, `,"msg":`...), e.Msg)
	if e.Details != "" {
		to = quote(append(to, `,"details":`...), e.Details)
	}
	return append(to, '}')
}

// ReportVersion returns the version in which to answer a configuration of that
// version: its own, or the newest where it has none that is known.
func ReportVersion(version string) string {
	if slices.Contains(Versions, version) {
		return version
	}
	return Versions[len(Versions)-1]
}

// VersionResult is the answer to VERSION: the version of the question, and all.
func VersionResult(version string) []byte {
	to := quote([]byte(`{"cniVersion":`), ReportVersion(version))
	to = append(to, `,"supportedVersions":[`...)
	for i, v := range Versions {
		if i > 0 {
			to = append(to, ',')
		}
		to = quote(to, v)
	}
	return append(to, "]}"...)
}
