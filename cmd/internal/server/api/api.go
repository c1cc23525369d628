package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/semaphore"
	"golang.org/x/sync/singleflight"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/cmd/internal/dropin"
	"github.com/allocnet/allocnet/cmd/internal/readiness"
	"github.com/allocnet/allocnet/internal/wire"
)

// Sandboxes creates and destroys network namespaces by name.
type Sandboxes interface {
	Create(ctx context.Context, name string) (path string, err error)
	Destroy(name string) error
	// Path returns the path of the network namespace with that name, which need not exist.
	Path(name string) string
}

// Check is one condition for an ADD.
type Check = readiness.Check

// Queue observes the admission limiter of the operations. Its methods must not block.
type Queue interface {
	Waiting(more int)       // change of the number of waiting operations
	Running(more int)       // change of the number of running operations
	Waited(d time.Duration) // how long an admitted operation waited
	Refused()               // an operation found the queue full
}

// Options configure an API. All fields are required except Incoming, AllowConflists,
// Queue, Groups, Limits and Logger.
type Options struct {
	// Service is called for every request, so that a reload takes effect.
	Service func() allocnet.Service
	// Sandboxes creates and destroys network namespaces.
	Sandboxes Sandboxes
	// Ready checks whether ADDs can be expected to succeed. Calls do not overlap.
	Ready func(context.Context) []Check
	// Status returns an overview of the host. Calls do not overlap.
	Status func(context.Context) *client.HostStatus
	// Traffic returns the traffic of all allocations. Calls do not overlap.
	Traffic func(context.Context) *client.HostTraffic
	// Denials returns the flows that network policies have dropped. Calls do not overlap.
	Denials func(context.Context) *client.HostDenials
	// CNI serves a request of the CNI plugin.
	CNI func(context.Context, cni.Request) cni.Response
	// Plugin runs a native plugin. It may keep nothing of the call. An error means that
	// nothing was done, or that it was undone.
	Plugin func(context.Context, dropin.Call) (*dropin.Answer, error)
	// Events returns the events after the one with the ID last; for 0, new events only.
	// The channel is closed when the context ends.
	Events func(ctx context.Context, last uint64) <-chan wire.Event
	// Incoming returns the context of a request with what its header says about the
	// caller's trace; default none.
	Incoming func(context.Context, http.Header) context.Context
	// Metrics serves /metrics.
	Metrics http.Handler
	// AllowConflists lets users other than root send network configurations.
	AllowConflists bool
	// Groups are the IDs of the groups whose members may use the API, in addition to root.
	Groups []uint32
	Limits Limits
	Queue  Queue        // default none
	Logger hclog.Logger // default none
}

// API serves allocnetd's clients. It is safe for concurrent use.
type API struct {
	options     Options
	limits      Limits
	mux         *http.ServeMux
	operations  *limiter
	reads       *limiter
	streams     chan struct{}
	bodies      *semaphore.Weighted
	answers     *semaphore.Weighted
	roomTimeout time.Duration
	readiness   singleflight.Group
	overview    singleflight.Group
	admission   *admission
	stopped     chan struct{}
	stopStreams func()
	logger      hclog.Logger
}

// New returns an API with the given Options.
func New(o Options) *API {
	l := o.Limits.withDefaults()
	a := &API{
		options: o, limits: l, logger: o.Logger,
		operations: newLimiter(limiterOptions{l.Operations, l.Operations + l.Queue, l.PerAllocation, l.SlotTimeout}, o.Queue),
		reads:      newLimiter(limiterOptions{slots: l.Reads, most: l.Reads + l.Queue, slotTimeout: l.SlotTimeout}, nil),
		streams:    make(chan struct{}, l.Streams),
		bodies:     semaphore.NewWeighted(l.AllBodies),
		answers:    semaphore.NewWeighted(l.AllAnswers), roomTimeout: roomTimeout,
		admission: newAdmission(l.Connections),
		stopped:   make(chan struct{}),
	}
	a.stopStreams = sync.OnceFunc(func() { close(a.stopped) })
	if a.logger == nil {
		a.logger = hclog.NewNullLogger()
	}
	a.mux = a.newMux()
	return a
}

// maxHeader bounds the header of a request, in bytes.
const maxHeader = 16 << 10

// Server returns an http.Server for the API, with the timeouts of its Limits. Serve it on
// a Listener of the API. Its Shutdown ends streams of events and waits for all other
// requests; its Close cancels them.
func (a *API) Server() *http.Server {
	s := &http.Server{
		Handler: http.HandlerFunc(a.serve), ConnContext: connContext, ConnState: a.admission.connState,
		ReadHeaderTimeout: a.limits.HeaderTimeout, IdleTimeout: a.limits.IdleTimeout, MaxHeaderBytes: maxHeader,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     a.logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Warn}),
	}
	s.RegisterOnShutdown(a.stopStreams)
	return s
}

// serve handles every request.
func (a *API) serve(w http.ResponseWriter, r *http.Request) {
	defer a.recover(w, r)
	growStack(0)
	control := http.NewResponseController(w)
	err := control.SetWriteDeadline(time.Now().Add(a.limits.WriteTimeout))
	if r.ContentLength != 0 { // so that reading or discarding the body ends
		err = errors.Join(err, control.SetReadDeadline(time.Now().Add(a.limits.BodyTimeout)))
	}
	if err == nil {
		err = admitted(r)
	}
	switch {
	case err != nil:
		w.Header().Set("Connection", "close")
		a.fail(w, r, err)
	case !clean(r.URL.EscapedPath()): // the mux would redirect
		a.fail(w, r, noSuchPath(r))
	default:
		a.mux.ServeHTTP(w, a.traced(r))
	}
}

// growStack makes the stack of the goroutine as large as a Setup needs. A plugin call is
// a connection of its own with a goroutine whose stack is small: it would grow in several
// steps, each of which copies a deeper stack and adjusts the pointers into it. That took
// 0.15 ms of the 1.7 ms of processor time of an ADD.
//
//go:noinline
func growStack(i int) byte {
	var frame [16 << 10]byte
	return frame[i]
}

// traced returns the request with the context of the caller's trace.
func (a *API) traced(r *http.Request) *http.Request {
	if a.options.Incoming == nil {
		return r
	}
	ctx := a.options.Incoming(r.Context(), r.Header)
	if ctx == r.Context() {
		return r
	}
	return r.WithContext(ctx)
}

func clean(p string) bool { return strings.HasPrefix(p, "/") && p == path.Clean(p) }

// recover answers for a handler that panicked, which has released its resources.
func (a *API) recover(w http.ResponseWriter, r *http.Request) {
	switch p := recover(); p {
	case nil:
	case http.ErrAbortHandler:
		panic(p)
	default:
		w.Header().Set("Connection", "close")
		a.fail(w, r, a.panicked(r, p))
	}
}

var errPanic = errors.New("internal fault, see the log of allocnetd")

// panicked logs a panic and returns the error for the client.
func (a *API) panicked(r *http.Request, p any) error {
	a.logger.Error("handler panicked", "method", r.Method, "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
	return fmt.Errorf("%s %s: %w", r.Method, r.URL.Path, errPanic)
}
