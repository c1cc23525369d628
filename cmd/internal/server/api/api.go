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
	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/internal/wire"
)

// Sandboxes makes and destroys network namespaces by their names.
type Sandboxes interface {
	Create(ctx context.Context, name string) (path string, err error)
	Destroy(name string) error
	// Path is where one of that name lies, or would.
	Path(name string) string
}

// Check is one thing that has to be so before an ADD can succeed; Err says why it
// is not. Warning is what somebody has to mend although an ADD can.
type Check struct {
	Name    string
	Network string // "" where it is about no network
	Err     error
	Warning error
}

// Queue is told what the gate of the operations does. It must not wait.
type Queue interface {
	Waiting(more int)       // so many more wait; fewer, if negative
	Running(more int)       // so many more were let through; fewer, if negative
	Waited(d time.Duration) // how long one waited that was let through
	Refused()               // one found the queue full
}

// Options say what an API serves. All must be given but AllowConflists, Queue, Groups,
// Limits and Logger.
type Options struct {
	// Service is asked for at every request, so that a reload takes effect.
	Service func() allocnet.Service
	// Sandboxes makes and destroys network namespaces.
	Sandboxes Sandboxes
	// Ready finds out whether ADDs can be expected to succeed. It is never called
	// twice at once.
	Ready func(context.Context) []Check
	// CNI does what a runtime asked the plugin for.
	CNI func(context.Context, cni.Request) cni.Response
	// Events are those after the one with the ID last; for 0, those from now on. The
	// channel is closed when the context ends.
	Events func(ctx context.Context, last uint64) <-chan wire.Event
	// Metrics serves /metrics.
	Metrics http.Handler
	// AllowConflists says that also others than root may bring network configurations
	// along.
	AllowConflists bool
	// Groups are the IDs of the groups whose members may use the API, beside root.
	Groups []uint32
	Limits Limits
	Queue  Queue        // default none
	Logger hclog.Logger // default none
}

// API serves allocnetd's clients. It is safe for concurrent use.
type API struct {
	options      Options
	limits       Limits
	mux          *http.ServeMux
	operations   *gate
	reads        *gate
	streams      chan struct{}
	bodies       *semaphore.Weighted
	answers      *semaphore.Weighted
	roomPatience time.Duration
	readiness    singleflight.Group
	admission    *admission
	stopped      chan struct{}
	stopStreams  func()
	logger       hclog.Logger
}

// New makes an API.
func New(o Options) *API {
	l := o.Limits.withDefaults()
	a := &API{
		options: o, limits: l, logger: o.Logger,
		operations: newGate(gateLimits{l.Operations, l.Operations + l.Queue, l.PerAllocation, l.Patience}, o.Queue),
		reads:      newGate(gateLimits{slots: l.Reads, most: l.Reads + l.Queue, patience: l.Patience}, nil),
		streams:    make(chan struct{}, l.Streams),
		bodies:     semaphore.NewWeighted(l.AllBodies),
		answers:    semaphore.NewWeighted(l.AllAnswers), roomPatience: roomPatience,
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

// Server is an http.Server for the API, with the timeouts of its Limits, to be
// served on a Listener of the API. Its Shutdown ends event streams and waits for what else
// runs; its Close cancels that.
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

// serve is every request's way in.
func (a *API) serve(w http.ResponseWriter, r *http.Request) {
	defer a.recover(w, r)
	control := http.NewResponseController(w)
	err := control.SetWriteDeadline(time.Now().Add(a.limits.WriteTimeout))
	if r.ContentLength != 0 { // whoever reads the body, or throws it away, does not wait for ever
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
		a.mux.ServeHTTP(w, r)
	}
}

func clean(p string) bool { return strings.HasPrefix(p, "/") && p == path.Clean(p) }

// recover answers for a handler that panicked. What it held is given back by then.
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

// panicked logs a panic, and is the error for the client.
func (a *API) panicked(r *http.Request, p any) error {
	a.logger.Error("handler panicked", "method", r.Method, "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
	return fmt.Errorf("%s %s: %w", r.Method, r.URL.Path, errPanic)
}
