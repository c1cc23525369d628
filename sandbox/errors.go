package sandbox

import (
	"errors"
	"io/fs"
)

// The errors of this package, in addition to system errors. errors.Is finds them.
var (
	// ErrExist means that a file with that name exists. It is the same as os.ErrExist.
	ErrExist = fs.ErrExist

	// ErrNotExist means that no file exists at that path. It is the same as
	// os.ErrNotExist.
	ErrNotExist = fs.ErrNotExist

	// ErrInvalidName means that a sandbox cannot have that name: see ValidateName.
	ErrInvalidName = errors.New("invalid name")

	// ErrNotNamespace means that the file at that path is not a network namespace.
	ErrNotNamespace = errors.New("not a network namespace")

	// ErrHostNamespace means that the network namespace at that path is the namespace
	// of this process, which cannot be a sandbox.
	ErrHostNamespace = errors.New("network namespace of the host")
)
