package wire

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// Errors of the API itself.
var (
	ErrForbidden  = errors.New("not allowed to use allocnetd")
	ErrConflists  = fmt.Errorf("%w: only root may send network configurations; name a network of the daemon, or have root set allow_conflists", ErrForbidden)
	ErrBusy       = errors.New("too many concurrent requests; try again later")
	ErrMalformed  = errors.New("malformed request")
	ErrTooLarge   = errors.New("request is too large")
	ErrMediaType  = errors.New("media type of the body is not supported")
	ErrTooSlow    = errors.New("request came too slowly")
	ErrNoSuchPath = errors.New("no such path")
	ErrMethod     = errors.New("method not allowed")
	ErrNotServed  = errors.New("allocnetd does not serve this call of a plugin: allocnet-plugins does")
)

// The status codes of HTTP, without package net/http, which clients would link.
const (
	statusBadRequest            = 400
	statusForbidden             = 403
	statusNotFound              = 404
	statusMethodNotAllowed      = 405
	statusRequestTimeout        = 408
	statusConflict              = 409
	statusRequestEntityTooLarge = 413
	statusUnsupportedMediaType  = 415
	statusMisdirectedRequest    = 421
	statusUnprocessableEntity   = 422
	statusTooManyRequests       = 429
	statusInternalServerError   = 500
	statusBadGateway            = 502
	statusServiceUnavailable    = 503
	statusGatewayTimeout        = 504
)

// Kind is a kind of error: its word on the wire, the HTTP status of its response, and the
// error that errors.Is finds.
type Kind struct {
	Word     string
	Status   int
	Sentinel error            // nil if there is only a type
	is       func(error) bool // in place of Sentinel
}

func (k *Kind) applies(err error) bool {
	if k.is != nil {
		return k.is(err)
	}
	return errors.Is(err, k.Sentinel)
}

var internal = Kind{"internal", statusInternalServerError, nil, func(error) bool { return true }}

// Kinds are all kinds, in the order in which they are tried. Kinds of wrapping errors, which
// describe the state of the host, come before kinds of causes. The last applies to every error.
var Kinds = []Kind{
	{"conflists-forbidden", statusForbidden, ErrConflists, nil},
	{"forbidden", statusForbidden, ErrForbidden, nil},
	{"busy", statusTooManyRequests, ErrBusy, nil},
	{"malformed", statusBadRequest, ErrMalformed, nil},
	{"too-large", statusRequestEntityTooLarge, ErrTooLarge, nil},
	{"media-type", statusUnsupportedMediaType, ErrMediaType, nil},
	{"too-slow", statusRequestTimeout, ErrTooSlow, nil},
	{"no-such-path", statusNotFound, ErrNoSuchPath, nil},
	{"method-not-allowed", statusMethodNotAllowed, ErrMethod, nil},
	{"not-served", statusMisdirectedRequest, ErrNotServed, nil},
	{"incomplete", statusInternalServerError, allocnet.ErrIncomplete, nil},
	{"not-checked", statusServiceUnavailable, allocnet.ErrNotChecked, nil},
	{"unhealthy", statusConflict, allocnet.ErrUnhealthy, nil},
	{"not-found", statusNotFound, allocnet.ErrNotFound, nil},
	{"in-use", statusConflict, allocnet.ErrInUse, nil},
	{"set-up", statusConflict, allocnet.ErrSetUp, nil},
	{"revision", statusConflict, allocnet.ErrRevision, nil},
	{"cannot-update", statusUnprocessableEntity, allocnet.ErrCannotUpdate, nil},
	{"already-exists", statusConflict, allocnet.ErrExists, nil},
	{"different", statusConflict, allocnet.ErrDifferent, nil},
	{"port-conflict", statusConflict, portmap.ErrConflict, nil},
	{"port-taken", statusConflict, allocnet.ErrPortTaken, nil},
	{"listener", statusConflict, allocnet.ErrListener, nil},
	{"invalid", statusBadRequest, allocnet.ErrInvalidAllocation, nil},
	{"invalid-config", statusInternalServerError, allocnet.ErrInvalidConfig, nil},
	{"unknown-network", statusUnprocessableEntity, allocnet.ErrUnknownNetwork, nil},
	{"unserved", statusUnprocessableEntity, allocnet.ErrUnserved, nil},
	{"plugin-not-installed", statusServiceUnavailable, allocnet.ErrPluginNotInstalled, nil},
	{"unprivileged", statusServiceUnavailable, allocnet.ErrUnprivileged, nil},
	{"exhausted", statusServiceUnavailable, allocnet.ErrExhausted, nil},
	{"address-unavailable", statusUnprocessableEntity, allocnet.ErrAddressUnavailable, nil},
	{"no-port", statusServiceUnavailable, allocnet.ErrNoPort, nil},
	{"state-dir", statusInternalServerError, allocnet.ErrStateDir, nil},
	{"subnet-taken", statusConflict, allocnet.ErrSubnetTaken, nil},
	{"bridge-full", statusServiceUnavailable, allocnet.ErrBridgeFull, nil},
	{"limit", statusServiceUnavailable, allocnet.ErrLimit, nil},
	{"invalid-result", statusBadGateway, allocnet.ErrInvalidResult, nil},
	{"no-address", statusBadGateway, allocnet.ErrNoAddress, nil},
	{"invalid-name", statusBadRequest, sandbox.ErrInvalidName, nil},
	{"not-a-namespace", statusConflict, sandbox.ErrNotNamespace, nil},
	{"host-namespace", statusConflict, sandbox.ErrHostNamespace, nil},
	{"newer-record", statusInternalServerError, allocnet.ErrNewer, nil},
	{"unreadable-record", statusInternalServerError, nil, as[*allocnet.RecordError]},
	{"canceled", statusServiceUnavailable, context.Canceled, nil},
	{"timeout", statusGatewayTimeout, context.DeadlineExceeded, nil},
	{"plugin", statusBadGateway, nil, as[*types.Error]},
	{"exists", statusConflict, fs.ErrExist, nil},
	{"missing", statusNotFound, fs.ErrNotExist, nil},
	{"not-permitted", statusInternalServerError, fs.ErrPermission, nil},
	internal,
}

func as[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}

func lookup(word string) *Kind {
	for i := range Kinds {
		if Kinds[i].Word == word {
			return &Kinds[i]
		}
	}
	return nil
}
