package configurator

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
)

// about is an error of an allocation; nil for nil.
func about(id string, err error) error {
	if err == nil {
		return nil
	}
	return &AllocationError{ID: id, Err: err}
}

func wrapIncomplete(id string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("allocation %q: %w: %w", id, ErrIncomplete, err)
}

// joinDistinct joins errors without those that are there already: what cannot be
// looked at fails each look alike.
func joinDistinct(errs ...error) error {
	var distinct []error
	for _, err := range eachJoined(errs...) {
		same := func(d error) bool { return errors.Is(d, err) || d.Error() == err.Error() }
		if !slices.ContainsFunc(distinct, same) {
			distinct = append(distinct, err)
		}
	}
	return errors.Join(distinct...)
}

// joined is the type of what errors.Join returns.
var joined = reflect.TypeOf(errors.Join(errors.ErrUnsupported))

// eachJoined are the errors that were joined, without nil.
func eachJoined(errs ...error) (list []error) {
	for _, err := range errs {
		switch {
		case err == nil:
		case reflect.TypeOf(err) == joined:
			list = append(list, eachJoined(err.(interface{ Unwrap() []error }).Unwrap()...)...)
		default:
			list = append(list, err)
		}
	}
	return list
}
