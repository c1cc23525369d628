package cni

import (
	"context"
	"errors"
	"io/fs"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/redact"
	"github.com/allocnet/allocnet/internal/state/conflist"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// codes are the codes of errors that no plugin returned; the first that applies counts.
var codes = []struct {
	is   error
	code uint
}{
	{errNotReady, CodeTryAgainLater},
	{context.Canceled, CodeTryAgainLater},
	{context.DeadlineExceeded, CodeTryAgainLater},
	{configurator.ErrNotChecked, CodeTryAgainLater},
	{configurator.ErrExhausted, CodeTryAgainLater},
	{configurator.ErrBridgeFull, CodeTryAgainLater},
	{configurator.ErrLimit, CodeTryAgainLater},
	{configurator.ErrNoPort, CodeTryAgainLater},
	{configurator.ErrPortTaken, CodeTryAgainLater},
	{configurator.ErrListener, CodeTryAgainLater},
	{sandbox.ErrNotNamespace, CodeInvalidNetns},
	{sandbox.ErrHostNamespace, CodeInvalidNetns},
	{configurator.ErrNotFound, CodeUnknownContainer},
	{configurator.ErrUnknownNetwork, CodeInvalidConfig},
	{configurator.ErrUnserved, CodeInvalidConfig},
	{configurator.ErrSubnetTaken, CodeInvalidConfig},
	{configurator.ErrInvalidAllocation, CodeInvalidConfig},
	// What another attachment has, it gives up one day.
	{portmap.ErrConflict, CodeTryAgainLater},
	{configurator.ErrInUse, CodeTryAgainLater},
	{configurator.ErrAddressUnavailable, CodeTryAgainLater},
	{configurator.ErrIncomplete, CodeTryAgainLater},
}

// fault returns an error for the runtime, without parts of the configuration that a plugin
// may have quoted.
func fault(err error) *Error {
	e := faultOf(err)
	e.Msg, e.Details = redact.Text(e.Msg), redact.Text(e.Details)
	return e
}

// faultOf returns a plugin's error unchanged, or an error with the code of allocnet's
// error.
func faultOf(err error) *Error {
	var own *Error
	if errors.As(err, &own) {
		e := *own
		return &e
	}
	var coded *types.Error
	if errors.As(err, &coded) && coded.Code != types.ErrUnknown {
		return &Error{Code: coded.Code, Msg: coded.Msg, Details: coded.Details}
	}
	e := &Error{Code: CodeInternal, Msg: err.Error()}
	if errors.Is(err, configurator.ErrInvalidAllocation) && errors.Is(err, fs.ErrNotExist) {
		e.Code = CodeInvalidNetns // only the network namespace has to exist
		return e
	}
	if missing := (*conflist.NotFoundError)(nil); errors.As(err, &missing) && len(missing.Broken) > 0 {
		e.Code = CodeTryAgainLater // the network may be in one of the broken files
		return e
	}
	for _, c := range codes {
		if errors.Is(err, c.is) {
			e.Code = c.code
			break
		}
	}
	return e
}
