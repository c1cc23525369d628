// Package demo shows what allocnet does: it sets up two allocations, sends
// requests to their host ports from every side, tears the allocations down, and
// checks that nothing is left.
package demo

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/hostsnap"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// ErrNoPrivateHost means that the private namespaces, the default of a demo,
// could not be created.
var ErrNoPrivateHost = errors.New("no private namespaces")

// ErrInterrupted means that the context ended before the demo was complete.
var ErrInterrupted = errors.New("the demo was interrupted")

// Options configures a demo.
type Options struct {
	// Config is used except for its networks: the demo uses the embedded
	// network.
	Config configurator.Config
	// OnHost reports whether the demo runs on a real host. Other programs may change
	// that host during the demo.
	OnHost bool
	// Reporter receives the beginning and the end of every step.
	Reporter Reporter
}

// Summary contains the figures of a demo.
type Summary struct {
	Steps     int
	Requests  int
	Setups    []time.Duration
	Teardowns []time.Duration
	// Answer is the median time of a request.
	Answer time.Duration
	Took   time.Duration
	// Interrupted reports whether the context ended before the demo was complete.
	Interrupted bool
	// Clean reports whether the demo removed everything that it set up, and the host
	// is as before.
	Clean bool
}

// Run runs the demo on the host that the process sees, and returns all errors,
// ErrInterrupted first. It tears down everything that it set up, even after
// errors.
func Run(ctx context.Context, o Options) (*Summary, error) {
	start := time.Now()
	o.Config.Network, o.Config.Networks = conflist.EmbeddedName, nil
	// The embedded network is used only if no configuration file has its name.
	o.Config.ConfDir = filepath.Join(o.Config.StateDir, "no-configuration")
	d := &demo{Options: o, steps: &steps{reporter: o.Reporter}}
	err := d.up(ctx)
	s := &d.summary
	if s.Interrupted = err != nil && ctx.Err() != nil; s.Interrupted {
		err = fmt.Errorf("%w: %w", ErrInterrupted, err)
	}
	downErr := d.down(context.WithoutCancel(ctx))
	s.Clean = downErr == nil
	s.Steps, s.Took = d.steps.count, time.Since(start)
	s.Requests, s.Answer = len(d.answers), median(d.answers)
	return s, errors.Join(err, downErr)
}

// demo is one run.
type demo struct {
	Options
	steps   *steps
	summary Summary
	answers []time.Duration

	conf          *configurator.Configurator
	needsIPTables bool
	before        *hostsnap.Snapshot
	outside       *outside
	allocs        []*allocation
}

// up runs all sections before the teardown. It stops at the first failure.
func (d *demo) up(ctx context.Context) error {
	for _, section := range []struct {
		name string
		show func(context.Context) error
	}{
		{"What is needed", d.preflight},
		{"The host", d.prepareHost},
		{"Two allocations", d.setUpAll},
		{"Requests", d.requestAll},
		{"Checks", d.checkAll},
	} {
		d.steps.section = section.name
		if err := section.show(ctx); err != nil {
			return err
		}
	}
	return nil
}

// downTime bounds the teardown of an interrupted demo.
const downTime = time.Minute

// down tries every teardown step and then compares the host with the first
// snapshot.
func (d *demo) down(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, downTime)
	defer cancel()
	d.steps.section = "Teardown"
	err := d.steps.unwind(ctx)
	if d.before == nil {
		return err
	}
	return errors.Join(err, d.steps.do(ctx, "compare the host", d.compare))
}

func (d *demo) setUpAll(ctx context.Context) error {
	for _, a := range d.allocs {
		if err := d.makeSandbox(ctx, a); err != nil {
			return err
		}
	}
	for _, a := range d.allocs {
		if err := d.setUp(ctx, a); err != nil {
			return err
		}
	}
	for _, a := range d.allocs {
		if err := d.serve(ctx, a); err != nil {
			return err
		}
	}
	return d.steps.do(ctx, "wait until addresses are usable", d.settle)
}

func (d *demo) checkAll(ctx context.Context) error {
	for _, a := range d.allocs {
		err := d.steps.do(ctx, "check "+a.id, func(ctx context.Context) (string, error) {
			return "as it was set up", d.conf.Check(ctx, configurator.Allocation{ID: a.id})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// compare takes a second snapshot and returns an error if it differs from the
// first.
func (d *demo) compare(context.Context) (string, error) {
	after, err := hostsnap.Take(d.snapshotOptions())
	if err != nil {
		return "", err
	}
	if diff := d.ofConcern(hostsnap.Diff(*d.before, after)); diff != "" {
		return "", fmt.Errorf("the host is not as before:\n%s", diff)
	}
	return "as before; what all allocations share (chains, forwarding) stays for the next one", nil
}
