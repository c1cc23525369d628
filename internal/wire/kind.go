package wire

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// What the API itself refuses.
var (
	ErrForbidden  = errors.New("not allowed to use allocnetd")
	ErrConflists  = fmt.Errorf("%w: only root may send network configurations; name a network of the daemon, or have root set allow_conflists", ErrForbidden)
	ErrBusy       = errors.New("too much is asked for at once; try again later")
	ErrMalformed  = errors.New("malformed request")
	ErrTooLarge   = errors.New("request is too large")
	ErrTooSlow    = errors.New("request came too slowly")
	ErrNoSuchPath = errors.New("no such path")
	ErrMethod     = errors.New("method not allowed")
)

// Kind is a kind of error: its word on the wire, the HTTP status that it is sent
// with, and what errors.Is finds.
type Kind struct {
	Word     string
	Status   int
	Sentinel error            // nil where there is only a type
	is       func(error) bool // in place of Sentinel
}

func (k *Kind) applies(err error) bool {
	if k.is != nil {
		return k.is(err)
	}
	return errors.Is(err, k.Sentinel)
}

var internal = Kind{"internal", http.StatusInternalServerError, nil, func(error) bool { return true }}

// Kinds are in order: what an embracing error says of the state of the host comes
// before its cause, and the last applies to every error.
var Kinds = []Kind{
	{"conflists-forbidden", http.StatusForbidden, ErrConflists, nil},
	{"forbidden", http.StatusForbidden, ErrForbidden, nil},
	{"busy", http.StatusTooManyRequests, ErrBusy, nil},
	{"malformed", http.StatusBadRequest, ErrMalformed, nil},
	{"too-large", http.StatusRequestEntityTooLarge, ErrTooLarge, nil},
	{"too-slow", http.StatusRequestTimeout, ErrTooSlow, nil},
	{"no-such-path", http.StatusNotFound, ErrNoSuchPath, nil},
	{"method-not-allowed", http.StatusMethodNotAllowed, ErrMethod, nil},
	{"incomplete", http.StatusInternalServerError, allocnet.ErrIncomplete, nil},
	{"not-checked", http.StatusServiceUnavailable, allocnet.ErrNotChecked, nil},
	{"unhealthy", http.StatusConflict, allocnet.ErrUnhealthy, nil},
	{"not-found", http.StatusNotFound, allocnet.ErrNotFound, nil},
	{"in-use", http.StatusConflict, allocnet.ErrInUse, nil},
	{"set-up", http.StatusConflict, allocnet.ErrSetUp, nil},
	{"already-exists", http.StatusConflict, allocnet.ErrExists, nil},
	{"different", http.StatusConflict, allocnet.ErrDifferent, nil},
	{"port-conflict", http.StatusConflict, portmap.ErrConflict, nil},
	{"port-taken", http.StatusConflict, allocnet.ErrPortTaken, nil},
	{"listener", http.StatusConflict, allocnet.ErrListener, nil},
	{"invalid", http.StatusBadRequest, allocnet.ErrInvalidAllocation, nil},
	{"invalid-config", http.StatusInternalServerError, allocnet.ErrInvalidConfig, nil},
	{"unknown-network", http.StatusUnprocessableEntity, allocnet.ErrUnknownNetwork, nil},
	{"unserved", http.StatusUnprocessableEntity, allocnet.ErrUnserved, nil},
	{"plugin-not-installed", http.StatusServiceUnavailable, allocnet.ErrPluginNotInstalled, nil},
	{"unprivileged", http.StatusServiceUnavailable, allocnet.ErrUnprivileged, nil},
	{"exhausted", http.StatusServiceUnavailable, allocnet.ErrExhausted, nil},
	{"state-dir", http.StatusInternalServerError, allocnet.ErrStateDir, nil},
	{"bridge-full", http.StatusServiceUnavailable, allocnet.ErrBridgeFull, nil},
	{"limit", http.StatusServiceUnavailable, allocnet.ErrLimit, nil},
	{"invalid-result", http.StatusBadGateway, allocnet.ErrInvalidResult, nil},
	{"no-address", http.StatusBadGateway, allocnet.ErrNoAddress, nil},
	{"invalid-name", http.StatusBadRequest, sandbox.ErrInvalidName, nil},
	{"not-a-namespace", http.StatusConflict, sandbox.ErrNotNamespace, nil},
	{"host-namespace", http.StatusConflict, sandbox.ErrHostNamespace, nil},
	{"newer-record", http.StatusInternalServerError, allocnet.ErrNewer, nil},
	{"unreadable-record", http.StatusInternalServerError, nil, as[*allocnet.RecordError]},
	{"canceled", http.StatusServiceUnavailable, context.Canceled, nil},
	{"timeout", http.StatusGatewayTimeout, context.DeadlineExceeded, nil},
	{"plugin", http.StatusBadGateway, nil, as[*types.Error]},
	{"exists", http.StatusConflict, fs.ErrExist, nil},
	{"missing", http.StatusNotFound, fs.ErrNotExist, nil},
	{"not-permitted", http.StatusInternalServerError, fs.ErrPermission, nil},
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
