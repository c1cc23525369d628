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

// daemon is one Run.
type daemon struct {
	Options
	notifier notifier
	hangups  chan struct{}
	forced   chan struct{}
	// requests is what the contexts of all requests derive from.
	requests       context.Context
	cancelRequests context.CancelFunc
}

// Run serves until ctx ends, a signal asks for the end, or something fails, whose
// error it returns. It handles the signals of the process, so there can be one Run
// at a time. After ErrForced parts of it still run, and the process is expected to
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
	go func() { done <- d.live(ctx, stop) }()
	select {
	case err := <-done:
		return err
	case <-d.forced:
		return ErrForced
	}
}

// signals handles them until it is undone.
func (d *daemon) signals(stop func()) (undo func()) {
	arrived := make(chan os.Signal, 8)
	signal.Notify(arrived, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	// Who reads the log may go away: that must not end the daemon.
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
					default: // a reload that has not begun will read the newest
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

// live is Run but for the signals: it returns when everything has ended.
func (d *daemon) live(ctx context.Context, stop func()) error {
	tasks, cancelTasks := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelTasks()
	group, running := errgroup.WithContext(tasks)
	context.AfterFunc(running, stop) // the first error
	for _, t := range d.Tasks {
		group.Go(func() error { return t.run(running) })
	}
	group.Go(d.serve)
	group.Go(func() error { return d.start(ctx) })
	group.Go(func() error { return d.reloads(ctx) })
	group.Go(func() error { return d.watch(running, ctx) })

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

// start makes the daemon ready.
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
		d.Logger.Warn("still comparing records with the kernel: ready without it", "after", d.ReconcileWait)
	}
	if d.notifier.becomeReady("ready") {
		d.Logger.Info("ready")
	}
	<-reconciled
	return nil
}

func (d *daemon) reconcile(ctx context.Context) {
	if err := d.Reconcile(ctx); err != nil && ctx.Err() == nil {
		d.Logger.Error("not everything agrees with the records", "error", redact.Text(err.Error()))
	}
}

// reloads reloads whenever a signal asks for it.
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
		d.Logger.Error("not reloaded: everything stays as it was", "error", err)
		return "ready; the last reload was refused, see the log"
	}
	d.Logger.Info("reloaded")
	return "ready"
}

// drain stops accepting, and returns when no request runs any more, or cannot be
// waited for.
func (d *daemon) drain() {
	var grace time.Duration
	if d.Grace != nil {
		grace = d.Grace()
	}
	d.notifier.stop(grace + undoTime)
	if d.shutdown(grace) != nil {
		d.Logger.Warn("cancelling what still runs", "after", grace)
		d.cancelRequests()
		if err := d.shutdown(undoTime); err != nil {
			d.Logger.Error("leaving what does not end", "after", undoTime, "error", err)
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
