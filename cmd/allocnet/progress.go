package main

import (
	"fmt"
	"sync"
	"time"
)

const (
	// progressDelay is the time after which a command shows its progress.
	progressDelay = 300 * time.Millisecond
	refresh       = 100 * time.Millisecond
)

// progress shows a running command on a terminal until done is called.
func (a *app) progress(format string, args ...any) (done func()) {
	return a.progressOf(func() string { return "" }, format, args...)
}

// progressOf is like progress and also shows the result of far, which may block.
func (a *app) progressOf(far func() string, format string, args ...any) (done func()) {
	if !a.err.Terminal || a.flags.json {
		return func() {}
	}
	text, start := fmt.Sprintf(format, args...), time.Now()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(refresh)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				a.err.SetStatus("")
				return
			case now := <-ticker.C:
				if took := now.Sub(start); took > progressDelay {
					a.err.SetStatus(fmt.Sprintf("%s ...%s %.1f s", text, far(), took.Seconds()))
				}
			}
		}
	}()
	return sync.OnceFunc(func() { close(stop); <-stopped })
}
