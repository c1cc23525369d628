package demo

import (
	"context"
	"errors"
	"slices"
	"time"
)

// Step is a completed step of the demo.
type Step struct {
	Section string
	Name    string
	Detail  string // result of the step
	Err     error
	Took    time.Duration
}

// Reporter receives the steps of a demo as they begin and end.
type Reporter interface {
	Begin(section, name string)
	End(Step)
}

// steps runs steps and keeps their undo functions.
type steps struct {
	reporter Reporter
	section  string
	count    int
	undo     []undo
}

type action = func(context.Context) (detail string, err error)

type undo struct {
	name string
	do   action
}

// do runs a step and reports it.
func (s *steps) do(ctx context.Context, name string, act action) error {
	s.reporter.Begin(s.section, name)
	start := time.Now()
	err := ctx.Err()
	var detail string
	if err == nil {
		detail, err = act(ctx)
	}
	s.count++
	if err != nil {
		detail = ""
	}
	s.reporter.End(Step{Section: s.section, Name: name, Detail: detail, Err: err, Took: time.Since(start)})
	return err
}

// later registers the function that undoes a step.
func (s *steps) later(name string, act action) {
	s.undo = append(s.undo, undo{name, act})
}

// unwind undoes all steps in reverse order, including those after a failed one.
func (s *steps) unwind(ctx context.Context) error {
	var errs []error
	for _, u := range slices.Backward(s.undo) {
		errs = append(errs, s.do(ctx, u.name, u.do))
	}
	s.undo = nil
	return errors.Join(errs...)
}

func median(list []time.Duration) time.Duration {
	if len(list) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}
