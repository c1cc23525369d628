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

// Outcome is how an operation or a step ended.
type Outcome string

// Outcomes. Where an error is several, the first one here that it is counts, but
// for OK and Failed.
const (
	OK         Outcome = "ok"
	Incomplete Outcome = "incomplete" // something may be left on the host
	Cancelled  Outcome = "cancelled"  // by the caller
	Timeout    Outcome = "timeout"
	Unhealthy  Outcome = "unhealthy" // the network is not as it was set up, or its plugins cannot serve
	Conflict   Outcome = "conflict"  // another allocation has what was asked for
	Invalid    Outcome = "invalid"   // the request or the configuration
	Busy       Outcome = "busy"      // no room at present: too many at once, addresses, limits of the host
	Failed     Outcome = "error"     // any other reason
)

// outcomes are in the order in which they count.
var outcomes = []struct {
	outcome Outcome
	errs    []error
	codes   []uint // of CNI
}{
	{Incomplete, []error{configurator.ErrIncomplete}, nil},
	{Cancelled, []error{context.Canceled}, nil},
	{Timeout, []error{context.DeadlineExceeded}, nil},
	{Unhealthy, []error{configurator.ErrUnhealthy}, []uint{types.ErrPluginNotAvailable, types.ErrLimitedConnectivity}},
	{Conflict, []error{configurator.ErrDifferent, configurator.ErrExists, configurator.ErrInUse, configurator.ErrListener, configurator.ErrPortTaken, configurator.ErrSetUp, portmap.ErrConflict}, nil},
	{Invalid, []error{
		configurator.ErrInvalidConfig, configurator.ErrInvalidAllocation, configurator.ErrNotFound,
		configurator.ErrUnknownNetwork, configurator.ErrPluginNotInstalled, configurator.ErrUnserved,
	}, []uint{
		types.ErrIncompatibleCNIVersion, types.ErrUnsupportedField, types.ErrUnknownContainer,
		types.ErrInvalidEnvironmentVariables, types.ErrDecodingFailure, types.ErrInvalidNetworkConfig,
	}},
	{Busy, []error{configurator.ErrExhausted, configurator.ErrBridgeFull, configurator.ErrLimit}, []uint{types.ErrTryAgainLater}},
}

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

// Bounds of texts, in bytes. There are many steps.
const maxErrorText, maxStepErrorText = 1024, 256

// errorText is an error for others to read: of at most so many bytes, and without
// any JSON that a plugin may have quoted from its configuration, where passwords
// can be.
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
