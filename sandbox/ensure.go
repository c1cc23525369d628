package sandbox

import (
	"errors"
	"path/filepath"
)

// Ensure returns the sandbox with the given name in DefaultDir, and creates it if it
// does not exist; created reports whether it did. Ensure replaces a sandbox that a
// crash left unfinished. It is for programs that continue their work after a restart.
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
