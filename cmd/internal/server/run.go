package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/errgroup"

	"github.com/allocnet/allocnet/internal/redact"
)

// daemon is the state of one call of Run.
type daemon struct {
	Options
	notifier notifier
	hangups  chan struct{}
	forced   chan struct{}
	// requests is the parent of the contexts of all requests.
	requests       context.Context
	cancelRequests context.CancelFunc
}

// Run serves until ctx ends, SIGTERM or SIGINT arrives, or a part of the daemon fails;
// it returns the error of that part. Run handles the signals of the process, so only one
// Run is possible at a time. After ErrForced parts of it still run, and the process must
// exit.
func Run(ctx context.Context, o Options) error {
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	d := &daemon{
		Options: o, notifier: notifier{logger: o.Logger},
		hangups: make(chan struct{}, 1), forced: make(chan struct{}),
	}
	d.requests, d.cancelRequests = context.WithCancel(context.WithoutCancel(ctx))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer d.signals(stop)()

	done := make(chan error, 1)
	go func() { done <- d.run(ctx, stop) }()
	select {
	case err := <-done:
		return err
	case <-d.forced:
		return ErrForced
	}
}

// signals handles the signals of the process until undo is called.
func (d *daemon) signals(stop func()) (undo func()) {
	arrived := make(chan os.Signal, 8)
	signal.Notify(arrived, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	// SIGPIPE arrives when the reader of the log exits. It must not end the daemon.
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	ended := make(chan struct{})
	go func() {
		ends := 0
		for {
			select {
			case <-ended:
				return
			case s := <-arrived:
				switch {
				case s != syscall.SIGHUP:
					if ends++; ends == 2 {
						close(d.forced)
					}
					d.Logger.Info("ending", "signal", s)
					stop()
				default:
					select {
					case d.hangups <- struct{}{}:
					default: // the pending reload will read the newest settings
					}
				}
			}
		}
	}()
	return func() {
		signal.Stop(arrived)
		signal.Stop(broken)
		close(ended)
	}
}

// run runs all parts of the daemon and returns when they have ended.
func (d *daemon) run(ctx context.Context, stop func()) error {
	tasks, cancelTasks := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelTasks()
	group, running := errgroup.WithContext(tasks)
	context.AfterFunc(running, stop) // after the first error
	for _, t := range d.Tasks {
		group.Go(func() error { return t.run(running) })
	}
	group.Go(d.serve)
	group.Go(func() error { return d.start(ctx) })
	group.Go(func() error { return d.reloads(ctx) })
	group.Go(func() error { return d.watch(running, ctx) })
	group.Go(func() error { return d.keepSocket(ctx) })

	<-ctx.Done()
	d.drain()
	cancelTasks()
	return errors.Join(group.Wait(), d.Listener.Release())
}

func (t Task) run(ctx context.Context) error {
	err := t.Run(ctx)
	if err == nil || ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil
	}
	return fmt.Errorf("%s: %w", t.Name, err)
}

func (d *daemon) serve() error {
	d.Server.BaseContext = func(net.Listener) context.Context { return d.requests }
	l := net.Listener(d.Listener)
	if d.Admit != nil {
		l = d.Admit(l)
	}
	if err := d.Server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// start reconciles and reports that the daemon is ready.
func (d *daemon) start(ctx context.Context) error {
	d.Logger.Info("listening", "socket", d.Listener.Path(), "passed_by_systemd", d.Listener.Passed())
	reconciled := make(chan struct{})
	if d.Reconcile == nil {
		close(reconciled)
	} else {
		d.notifier.starting(d.ReconcileWait, "comparing records with the kernel")
		go func() {
			defer close(reconciled)
			d.reconcile(ctx)
		}()
	}
	late := time.NewTimer(d.ReconcileWait)
	defer late.Stop()
	select {
	case <-reconciled:
	case <-late.C:
		d.Logger.Warn("ready, although the comparison of records with the kernel still runs", "after", d.ReconcileWait)
	}
	if d.notifier.becomeReady("ready") {
		d.Logger.Info("ready")
	}
	<-reconciled
	return nil
}

func (d *daemon) reconcile(ctx context.Context) {
	if err := d.Reconcile(ctx); err != nil && ctx.Err() == nil {
		d.Logger.Error("records and kernel do not agree", "error", redact.Text(err.Error()))
	}
}

// reloads reloads after each SIGHUP.
func (d *daemon) reloads(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.hangups:
			if d.Reload != nil {
				d.notifier.reload(func() string { return d.reload(ctx) })
			}
		}
	}
}

func (d *daemon) reload(ctx context.Context) (status string) {
	if err := d.Reload(ctx); err != nil {
		d.Logger.Error("not reloaded: the previous settings stay active", "error", err)
		return "ready; the last reload was refused, see the log"
	}
	d.Logger.Info("reloaded")
	return "ready"
}

// drain stops accepting connections. It returns when all requests have ended or their
// time is over.
func (d *daemon) drain() {
	var grace time.Duration
	if d.Grace != nil {
		grace = d.Grace()
	}
	d.notifier.stop(grace + undoTime)
	if d.shutdown(grace) != nil {
		d.Logger.Warn("cancelling running requests", "after", grace)
		d.cancelRequests()
		if err := d.shutdown(undoTime); err != nil {
			d.Logger.Error("requests still run at the exit", "after", undoTime, "error", err)
		}
	}
	d.cancelRequests()
	_ = d.Server.Close()
}

func (d *daemon) shutdown(within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return d.Server.Shutdown(ctx)
}
