package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/allocnet/allocnet/sandbox"
)

// errNetnsExists: setup was to make a namespace that is there.
var errNetnsExists = errors.New("the network namespace exists already")

// netnsPath is where the network namespace of an allocation lies.
func netnsPath(id, given string) string {
	if given == "" {
		return filepath.Join(sandbox.DefaultDir, id)
	}
	if abs, err := filepath.Abs(given); err == nil {
		return abs
	}
	return given
}

// createNetns makes the namespace of an allocation, which must lie in
// the directory of named ones.
func createNetns(path string) (destroy func() error, err error) {
	dir, name := filepath.Split(path)
	if filepath.Clean(dir) != sandbox.DefaultDir {
		return nil, usagef("--create with --netns %q: a namespace can only be made in %s", path, sandbox.DefaultDir)
	}
	ns, err := sandbox.Create(name)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%w: %w", errNetnsExists, err)
	}
	if err != nil {
		return nil, err
	}
	return ns.Destroy, nil
}
