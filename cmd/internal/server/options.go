package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
)

// ErrForced is the error of Run after a second signal: running requests have not been
// finished.
var ErrForced = errors.New("ended at once by a second signal")

// Task is a part of the daemon that runs in the background until its context ends.
type Task struct {
	Name string
	// Run may return nil early. Any error except the context's ends the daemon.
	Run func(context.Context) error
}

// Options configure Run. Listener and Server are required.
type Options struct {
	Listener *Listener    // Run owns it
	Server   *http.Server // Run sets its BaseContext
	// Admit wraps the Listener before the Server accepts from it; nil for no wrapper.
	Admit func(net.Listener) net.Listener
	// HealthPath is the path that the daemon requests from itself before it sends a
	// keepalive to the watchdog.
	HealthPath string
	Tasks      []Task

	// Reconcile runs once, while the daemon serves. The daemon becomes ready when
	// Reconcile returns, or after ReconcileWait. Its error is only logged, because it may
	// concern a single allocation. It may be nil.
	Reconcile     func(context.Context) error
	ReconcileWait time.Duration

	// Reload is called at SIGHUP, one call at a time. If it returns an error it must have
	// changed nothing. If it is nil, SIGHUP is ignored.
	Reload func(context.Context) error

	// Grace returns the grace period for running requests at shutdown; nil stands for
	// none.
	Grace  func() time.Duration
	Logger hclog.Logger // default none
}

// undoTime is the time for requests to undo what they have begun after their context has
// ended.
const undoTime = 15 * time.Second
