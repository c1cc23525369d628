package configurator

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
)

// about wraps an error in an *AllocationError. It returns nil for nil.
func about(id string, err error) error {
	if err == nil {
		return nil
	}
	return &AllocationError{ID: id, Err: err}
}

// wrapIncomplete wraps an error in ErrIncomplete. It returns nil for nil.
func wrapIncomplete(id string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("allocation %q: %w: %w", id, ErrIncomplete, err)
}

// joinDistinct joins errors and omits duplicates. Several audits of the same inaccessible
// object return the same error.
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

// joined is the type of the errors of errors.Join.
var joined = reflect.TypeOf(errors.Join(errors.ErrUnsupported))

// eachJoined returns the errors that errors.Join has joined, without nil.
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
