package sandbox

import (
	"errors"
	"path/filepath"
)

// Ensure returns the sandbox of that name in DefaultDir, and makes it if it is
// not there; created says which. What a crash left of one that was being made is
// replaced. It is for programs that come back after a restart.
func Ensure(name string) (s *Sandbox, created bool, err error) {
	s, err = Create(name)
	if !errors.Is(err, ErrExist) {
		return s, err == nil, err
	}
	path := filepath.Join(DefaultDir, name)
	s, err = Open(path)
	if !errors.Is(err, ErrNotNamespace) {
		return s, false, err
	}
	if err := Destroy(path); err != nil {
		return nil, false, err
	}
	s, err = Create(name)
	return s, err == nil, err
}
