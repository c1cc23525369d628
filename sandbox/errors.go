package sandbox

import (
	"errors"
	"io/fs"
)

// The kinds of errors that this package returns, beside those of the system. Find them with errors.Is.
var (
	// ErrExist means that there is something of that name. It is the same as os.ErrExist.
	ErrExist = fs.ErrExist

	// ErrNotExist means that there is nothing at that path. It is the same as os.ErrNotExist.
	ErrNotExist = fs.ErrNotExist

	// ErrInvalidName means that a name cannot be that of a sandbox, see ValidateName.
	ErrInvalidName = errors.New("invalid name")

	// ErrNotNamespace means that what is at that path is not a network namespace.
	ErrNotNamespace = errors.New("not a network namespace")

	// ErrHostNamespace means that the network namespace at that path is the one that this process itself
	// lives in, which cannot be used as a sandbox.
	ErrHostNamespace = errors.New("network namespace of the host")
)
