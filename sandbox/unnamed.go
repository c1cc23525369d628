package sandbox

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
)

// New creates a sandbox without a name: a new network namespace with only the loopback
// link, which is up. Its Path is "". The kernel destroys the namespace when it is closed,
// and when the process ends, unless Mount has given it a name.
func New() (*Sandbox, error) {
	file, err := unnamed()
	if err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
	}
	return &Sandbox{file: file}, nil
}

// Mount gives a sandbox of New a name in dir, as CreateIn does, and returns the sandbox with
// its path. The returned sandbox takes over the descriptor: do not use s afterwards. After an
// error, s has no name and remains usable. The errors are those of CreateIn. The context ends
// the wait for another process that makes dir a mount point.
func (s *Sandbox) Mount(ctx context.Context, dir, name string) (*Sandbox, error) {
	if err := prepare(ctx, dir, name); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, name)
	err := s.With(func(fd int) error { return bind("/proc/self/fd/"+strconv.Itoa(fd), path) })
	if err != nil {
		return nil, errors.Join(fmt.Errorf("create sandbox %q: %w", path, err), Destroy(path))
	}
	return &Sandbox{path: path, file: s.file}, nil
}
