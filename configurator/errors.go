package configurator

// about is an error of an allocation; nil for nil.
func about(id string, err error) error {
	if err == nil {
		return nil
	}
	return &AllocationError{ID: id, Err: err}
}
