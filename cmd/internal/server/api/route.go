package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/allocnet/allocnet/cmd/internal/cni"
	"github.com/allocnet/allocnet/cmd/internal/dropin"
	"github.com/allocnet/allocnet/internal/wire"
)

// route is a method and a path, as in the OpenAPI description, with its handler.
type route struct {
	method, path string
	serve        http.HandlerFunc
}

func (a *API) routes() []route {
	allocation := routeOptions{limiter: a.operations, key: keyOfAllocation, timeout: a.limits.OperationTimeout, body: a.limits.Body}
	create := routeOptions{limiter: a.operations, key: keyOfNewSandbox, timeout: a.limits.OperationTimeout, body: a.limits.Body}
	destroy := routeOptions{limiter: a.operations, key: keyOfSandbox, timeout: a.limits.OperationTimeout}
	sweep := routeOptions{limiter: a.operations, timeout: a.limits.SweepTimeout, body: a.limits.Body}
	ask := routeOptions{limiter: a.operations, timeout: a.limits.ReadTimeout, body: a.limits.Body}
	read := routeOptions{limiter: a.reads, timeout: a.limits.ReadTimeout}
	return []route{
		{"GET", "/v1/allocs", a.pass(read, a.listAllocations)},
		{"GET", "/v1/allocs/{id}", a.pass(read, a.getAllocation)},
		{"PUT", "/v1/allocs/{id}", a.pass(allocation, a.setup)},
		{"PATCH", "/v1/allocs/{id}", a.pass(allocation, a.update)},
		{"DELETE", "/v1/allocs/{id}", a.pass(allocation, a.teardown)},
		{"POST", "/v1/allocs/{id}/attachments", a.pass(allocation, a.attach)},
		{"DELETE", "/v1/allocs/{id}/attachments/{interface}", a.pass(allocation, a.detach)},
		{"POST", "/v1/allocs/{id}/check", a.pass(allocation, a.check)},
		{"POST", "/v1/allocs/{id}/teardown-gone", a.pass(allocation, a.teardownGone)},
		{"POST", "/v1/allocs/{id}/audit", a.pass(allocation, a.audit)},
		{"POST", "/v1/allocs/{id}/force", a.pass(allocation, a.force)},
		{"POST", "/v1/sandboxes", a.pass(create, a.createSandbox)},
		{"DELETE", "/v1/sandboxes/{name}", a.pass(destroy, a.destroySandbox)},
		{"GET", "/v1/networks", a.pass(read, a.listNetworks)},
		{"GET", "/v1/status", a.pass(read, a.hostStatus)},
		{"GET", "/v1/traffic", a.pass(read, a.hostTraffic)},
		{"GET", "/v1/denials", a.pass(read, a.hostDenials)},
		{"GET", "/v1/history", a.pass(read, a.history)},
		{"POST", "/v1/ready", a.pass(ask, a.readyFor)},
		{"POST", "/v1/gc", a.pass(sweep, a.gc)},
		{"POST", "/v1/repair", a.pass(sweep, a.repair)},
		{"POST", "/v1/recover", a.pass(sweep, a.recoverAllocations)},
		{"GET", "/v1/events", a.bodyless(a.events)},
		{"POST", cni.Path, a.cni},
		{"POST", dropin.Path + "{plugin}", a.plugin},
		{"GET", "/healthz", a.bodyless(a.healthz)},
		{"GET", "/readyz", a.bodyless(a.readyz)},
		{"GET", "/metrics", a.bodyless(a.options.Metrics.ServeHTTP)},
		{"GET", "/openapi.json", a.bodyless(a.openAPI)},
	}
}

// newMux returns a mux that serves the routes, and errors for all other requests.
func (a *API) newMux() *http.ServeMux {
	mux := http.NewServeMux()
	methods := map[string][]string{}
	for _, r := range a.routes() {
		mux.HandleFunc(r.method+" "+r.path, r.serve)
		methods[r.path] = append(methods[r.path], r.method)
	}
	for path, allowed := range methods {
		slices.Sort(allowed)
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", strings.Join(allowed, ", "))
			a.fail(w, r, fmt.Errorf("%w: %s takes %s", wire.ErrMethod, path, strings.Join(allowed, ", ")))
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { a.fail(w, r, noSuchPath(r)) })
	return mux
}

func noSuchPath(r *http.Request) error {
	return fmt.Errorf("%w: %q; see /openapi.json", wire.ErrNoSuchPath, r.URL.Path)
}

func pathID(r *http.Request) string { return r.PathValue("id") }

func keyOfAllocation(r *http.Request, _ *body) string { return pathID(r) }

// routeOptions configure the admission of a route's requests.
type routeOptions struct {
	limiter *limiter
	key     func(*http.Request, *body) string // nil for no key
	timeout time.Duration
	body    int64 // maximum size; 0 if the request must have no body
}

// work performs the operation of a request. With both a value and an error, the value
// must contain the error.
type work func(context.Context) (value any, err error)

// prepare decodes and validates a request before it waits. The body is kept until the
// work is done.
type prepare func(*http.Request, *body) (work, error)

// pass returns a handler that reads and prepares a request, enters the limiter, does the
// work, leaves the limiter and answers. So a client that does not read its answer holds
// no slot.
func (a *API) pass(opts routeOptions, understand prepare) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		o, err := a.work(w, r, opts, understand)
		if err != nil {
			a.fail(w, r, err)
			return
		}
		defer o.release()
		a.write(w, r, o)
	}
}

// work returns an answer that has got its room, or an error. An encoded answer that
// waits for room is inside the limiter, which bounds their number.
func (a *API) work(w http.ResponseWriter, r *http.Request, opts routeOptions, understand prepare) (*answer, error) {
	b, err := a.readBody(r, opts.body)
	if err != nil {
		w.Header().Set("Connection", "close")
		return nil, err
	}
	defer b.release()
	timeout, err := timeoutOf(r, opts.timeout)
	if err != nil {
		return nil, err
	}
	do, err := understand(r, b)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	ctx = withClient(ctx, r)
	key := ""
	if opts.key != nil {
		key = opts.key(r, b)
	}
	leave, err := opts.limiter.enter(ctx, key)
	if err != nil {
		return nil, err
	}
	defer leave()
	value, err := do(ctx)
	if value == nil && err != nil {
		return nil, err
	}
	o := a.encode(r, statusOf(value, err), value)
	if opts.limiter != a.reads { // these answers are small, and "busy" would deny the work
		return o, nil
	}
	return o, o.wait(ctx)
}

// timeoutOf returns the timeout that the client requests, at most the given one.
func timeoutOf(r *http.Request, most time.Duration) (time.Duration, error) {
	text := r.Header.Get(wire.TimeoutHeader)
	if text == "" {
		return most, nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || !(seconds > 0) {
		return 0, fmt.Errorf("%w: header %s: %q is not a number of seconds above 0", wire.ErrMalformed, wire.TimeoutHeader, text)
	}
	if seconds < most.Seconds() {
		return time.Duration(seconds * float64(time.Second)), nil
	}
	return most, nil
}

// bodyless returns a handler that refuses requests with a body.
func (a *API) bodyless(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			w.Header().Set("Connection", "close")
			a.fail(w, r, tooLarge(0))
			return
		}
		serve(w, r)
	}
}
