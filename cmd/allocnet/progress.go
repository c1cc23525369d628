package main

import (
	"fmt"
	"sync"
	"time"
)

const (
	// patience is how long a command may take before a person wants to know
	// what it does.
	patience = 300 * time.Millisecond
	refresh  = 100 * time.Millisecond
)

// progress shows on a terminal what takes its time, until done is called.
func (a *app) progress(format string, args ...any) (done func()) {
	return a.progressOf(func() string { return "" }, format, args...)
}

// progressOf is progress that also shows how far it has come; far may take its time.
func (a *app) progressOf(far func() string, format string, args ...any) (done func()) {
	if !a.err.terminal || a.flags.json {
		return func() {}
	}
	what, start := fmt.Sprintf(format, args...), time.Now()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(refresh)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				a.err.setStatus("")
				return
			case now := <-ticker.C:
				if took := now.Sub(start); took > patience {
					a.err.setStatus(fmt.Sprintf("%s ...%s %.1f s", what, far(), took.Seconds()))
				}
			}
		}
	}()
	return sync.OnceFunc(func() { close(stop); <-stopped })
}
