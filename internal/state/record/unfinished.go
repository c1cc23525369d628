package record

import "errors"

// ErrUnfinished: a change of an allocation that is set up has begun and could not be finished or
// undone. The record has it as Update or Pending.
var ErrUnfinished = errors.New("the change is unfinished")

// Unfinished returns err with its text, for which errors.Is also finds ErrUnfinished.
func Unfinished(err error) error { return unfinished{err} }

type unfinished struct{ error }

func (e unfinished) Unwrap() error { return e.error }

func (unfinished) Is(target error) bool { return target == ErrUnfinished }
