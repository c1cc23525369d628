package server

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
)

// ErrForced is what Run returns after a second signal: what ran has not been
// finished.
var ErrForced = errors.New("ended at once by a second signal")

// Task is a part of the daemon that runs in the background until its context ends.
type Task struct {
	Name string
	// Run may return nil early. Its error ends the daemon, but for that of the
	// context.
	Run func(context.Context) error
}

// Options say what Run does. Listener and Server are required.
type Options struct {
	Listener *Listener    // Run owns it
	Server   *http.Server // Run sets its BaseContext
	// Admit makes the listener that the Server gets connections from; nil is the
	// Listener itself.
	Admit func(net.Listener) net.Listener
	// HealthPath is what the daemon asks itself for on behalf of the watchdog.
	HealthPath string
	Tasks      []Task

	// Reconcile runs once, while the daemon serves. The daemon is ready when it is
	// done, or has taken ReconcileWait. Its error is logged, no more: what it could
	// not put right may only concern one allocation. nil: there is nothing to do.
	Reconcile     func(context.Context) error
	ReconcileWait time.Duration

	// Reload is called at SIGHUP, one call at a time. After an error everything is
	// expected to be as it was. nil: SIGHUP does nothing.
	Reload func(context.Context) error

	// Grace is asked when the daemon is to end for how long requests may go on; nil
	// is no time.
	Grace  func() time.Duration
	Logger hclog.Logger // default none
}

// undoTime is how long requests may take to undo what they did when their context
// has ended.
const undoTime = 15 * time.Second
