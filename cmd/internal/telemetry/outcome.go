package telemetry

import (
	"context"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/portmap"
)

// Outcome is the kind of end of an operation or a step.
type Outcome string

// The outcomes. If several apply to an error, the first one of outcomes counts.
const (
	OK         Outcome = "ok"
	Incomplete Outcome = "incomplete" // an object may be left on the host
	Cancelled  Outcome = "cancelled"  // by the caller
	Timeout    Outcome = "timeout"
	Unhealthy  Outcome = "unhealthy" // the network differs from its set-up, or its plugins cannot serve
	Conflict   Outcome = "conflict"  // another allocation has the requested resource
	Invalid    Outcome = "invalid"   // the request or the configuration is invalid
	Busy       Outcome = "busy"      // temporarily exhausted: concurrent requests, addresses, limits of the host
	Failed     Outcome = "error"     // any other reason
)

// outcomes maps errors to outcomes. The first match counts.
var outcomes = []struct {
	outcome Outcome
	errs    []error
	codes   []uint // CNI error codes
}{
	{Incomplete, []error{configurator.ErrIncomplete}, nil},
	{Cancelled, []error{context.Canceled}, nil},
	{Timeout, []error{context.DeadlineExceeded}, nil},
	{Unhealthy, []error{configurator.ErrUnhealthy}, []uint{types.ErrPluginNotAvailable, types.ErrLimitedConnectivity}},
	{Conflict, []error{configurator.ErrDifferent, configurator.ErrExists, configurator.ErrInUse, configurator.ErrListener, configurator.ErrPortTaken, configurator.ErrSetUp, configurator.ErrRevision, portmap.ErrConflict}, nil},
	{Invalid, []error{
		configurator.ErrInvalidConfig, configurator.ErrInvalidAllocation, configurator.ErrNotFound,
		configurator.ErrUnknownNetwork, configurator.ErrPluginNotInstalled, configurator.ErrUnserved,
	}, []uint{
		types.ErrIncompatibleCNIVersion, types.ErrUnsupportedField, types.ErrUnknownContainer,
		types.ErrInvalidEnvironmentVariables, types.ErrDecodingFailure, types.ErrInvalidNetworkConfig,
	}},
	{Busy, []error{configurator.ErrExhausted, configurator.ErrBridgeFull, configurator.ErrLimit}, []uint{types.ErrTryAgainLater}},
}

// outcomeOf returns the outcome of an operation or a step that ended with err.
func outcomeOf(err error) Outcome {
	if err == nil {
		return OK
	}
	var cni *types.Error
	isCNI := errors.As(err, &cni)
	for _, o := range outcomes {
		for _, target := range o.errs {
			if errors.Is(err, target) {
				return o.outcome
			}
		}
		for _, code := range o.codes {
			if isCNI && cni.Code == code {
				return o.outcome
			}
		}
	}
	return Failed
}

// Bounds of error texts, in bytes. Texts of steps are shorter, because an event may
// have many steps.
const maxErrorText, maxStepErrorText = 1024, 256

// errorText returns the text of an error for events and spans, at most most bytes long.
// JSON that a plugin may have quoted from its configuration is removed, because it may
// contain passwords.
func errorText(err error, most int) string {
	if err == nil {
		return ""
	}
	text := redact.Text(strings.ToValidUTF8(err.Error(), "?"))
	if len(text) <= most {
		return text
	}
	end := most - len("...")
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "..."
}
