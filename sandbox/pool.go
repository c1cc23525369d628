package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

// PoolOptions are the options of a Pool. The zero value is valid: the pool then
// prepares no namespaces.
type PoolOptions struct {
	// Dir is the directory in which Take creates sandboxes; DefaultDir if empty.
	Dir string
	// Size is the number of prepared namespaces. Each needs a descriptor and some 200
	// KB of kernel memory.
	Size int
	// Interval is the minimum time between two namespaces that the pool creates in the
	// background; the default is one millisecond. Creating a namespace holds the
	// kernel's rtnl lock, which the configuration of sandboxes also needs.
	Interval time.Duration
	// OnError, if set, is called by the pool's goroutine when a namespace could not be
	// created in the background. The pool tries again after a second.
	OnError func(error)
}

const (
	defaultInterval = time.Millisecond
	retryInterval   = time.Second
)

// A Pool prepares network namespaces, so that Take needs only microseconds. Without a
// pool, creating a sandbox takes several hundred microseconds. The pool owns one
// goroutine, and one descriptor per prepared namespace, until Close.
//
// A prepared namespace has neither a name nor a mount. Only its descriptor keeps it
// alive, so the kernel destroys it when the process ends. All methods are safe for
// concurrent use. Several pools, even in several processes, may use the same Dir.
type Pool struct {
	options PoolOptions
	mu      sync.Mutex
	ready   []*os.File
	closed  bool
	taken   chan struct{} // has a value if ready may not be full
	stop    chan struct{} // closed by Close
	filler  sync.WaitGroup
}

// NewPool returns a pool that is filled in the background. It creates the first
// namespace itself, so that it can return an error such as missing privileges. It
// changes nothing on disk.
func NewPool(options PoolOptions) (*Pool, error) {
	if options.Size < 0 || options.Interval < 0 {
		return nil, fmt.Errorf("make sandbox pool: negative size %d or interval %v", options.Size, options.Interval)
	}
	if options.Dir == "" {
		options.Dir = DefaultDir
	}
	if options.Interval == 0 {
		options.Interval = defaultInterval
	}
	p := &Pool{options: options, taken: make(chan struct{}, 1), stop: make(chan struct{})}
	if options.Size == 0 {
		return p, nil
	}
	first, err := unnamed()
	if err != nil {
		return nil, fmt.Errorf("make sandbox pool: %w", err)
	}
	p.put(first)
	p.filler.Go(p.fill)
	return p, nil
}

// Take creates a sandbox with the given name in the pool's directory, as [CreateIn]
// does, from a prepared namespace. The caller owns the sandbox; closing the pool does
// not affect it. If no namespace is prepared, Take creates one: it never waits for the
// background.
//
// The errors are those of CreateIn, os.ErrClosed after Close, and the context's error
// if it ends before the call, or while another process makes the directory a mount point. After an error, nothing remains except the directory,
// and prepared namespaces stay prepared.
func (p *Pool) Take(ctx context.Context, name string) (*Sandbox, error) {
	path := filepath.Join(p.options.Dir, name)
	if err := errors.Join(ctx.Err(), p.errClosed()); err != nil {
		return nil, fmt.Errorf("take sandbox %q: %w", path, err)
	}
	if err := prepare(ctx, p.options.Dir, name); err != nil {
		return nil, err
	}
	namespace, err := p.get()
	if err == nil {
		if err = bind("/proc/self/fd/"+strconv.Itoa(int(namespace.Fd())), path); err == nil {
			return &Sandbox{path: path, file: namespace}, nil
		}
		p.put(namespace)
	}
	return nil, errors.Join(fmt.Errorf("take sandbox %q: %w", path, err), Destroy(path))
}

// Ready returns the number of prepared namespaces.
func (p *Pool) Ready() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready)
}

// Close destroys the prepared namespaces and waits for the pool's goroutine to end.
// Sandboxes that Take returned remain. Close may be called again.
func (p *Pool) Close() error {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.stop)
	}
	ready := p.ready
	p.ready = nil
	p.mu.Unlock()
	p.filler.Wait()
	var errs []error
	for _, namespace := range ready {
		errs = append(errs, namespace.Close())
	}
	return errors.Join(errs...)
}

func (p *Pool) errClosed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return os.ErrClosed
	}
	return nil
}

// get returns a prepared namespace, or a new one if none is prepared.
func (p *Pool) get() (*os.File, error) {
	p.mu.Lock()
	if n := len(p.ready); n > 0 {
		defer p.mu.Unlock()
		namespace := p.ready[n-1]
		p.ready = slices.Delete(p.ready, n-1, n)
		select {
		case p.taken <- struct{}{}:
		default:
		}
		return namespace, nil
	}
	p.mu.Unlock()
	return unnamed()
}

// put adds a namespace to the prepared ones, or destroys it if the pool is full or
// closed.
func (p *Pool) put(namespace *os.File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.ready) >= p.options.Size {
		namespace.Close()
		return
	}
	p.ready = append(p.ready, namespace)
}

// fill keeps the pool full until it is closed.
func (p *Pool) fill() {
	wait := p.options.Interval
	for p.pause(wait) && p.awaitRoom() {
		wait = p.options.Interval
		namespace, err := unnamed()
		if err != nil {
			wait = max(wait, retryInterval)
			p.report(err)
			continue
		}
		p.put(namespace)
	}
}

func (p *Pool) report(err error) {
	if p.options.OnError != nil {
		p.options.OnError(fmt.Errorf("fill sandbox pool: %w", err))
	}
}

// awaitRoom waits until the pool is not full, and reports whether it is still open.
func (p *Pool) awaitRoom() bool {
	for p.Ready() >= p.options.Size {
		select {
		case <-p.taken:
		case <-p.stop:
			return false
		}
	}
	return true
}

// pause waits and reports whether the pool is still open afterwards.
func (p *Pool) pause(wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.stop:
		return false
	}
}
