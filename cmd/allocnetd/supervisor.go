package main

import (
	"context"
	"sync"

	"github.com/allocnet/allocnet/cmd/internal/confmanager"
)

// keeper is the part of a *confmanager.Manager that the daemon needs.
type keeper interface {
	Run(context.Context) error
	Ready() error
	State() confmanager.State
}

// supervisor runs the current manager of the CNI configuration, if there is one. Two
// managers never run at the same time.
type supervisor struct {
	mu       sync.Mutex
	current  keeper
	replaced chan struct{}
}

func newSupervisor() *supervisor { return &supervisor{replaced: make(chan struct{}, 1)} }

// replace ends the current manager. When it has ended, k runs, unless k is nil.
func (s *supervisor) replace(k keeper) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = k
	select {
	case s.replaced <- struct{}{}:
	default:
	}
}

// now returns the manager of the last call of replace.
func (s *supervisor) now() keeper {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

func (s *supervisor) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := s.runOne(ctx); err != nil {
			return err
		}
	}
	return nil
}

// runOne runs the current manager until the manager ends or is replaced. Without a
// manager it waits for a replacement or the end of the context.
func (s *supervisor) runOne(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		if k := s.now(); k != nil {
			done <- k.Run(ctx)
			return
		}
		<-ctx.Done()
		done <- nil
	}()
	select {
	case <-s.replaced:
		cancel()
		return <-done
	case err := <-done:
		return err
	}
}
