package main

import (
	"fmt"
	"path/filepath"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/sandbox"
)

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

// isNamed reports whether a namespace lies where those with a name do.
func isNamed(path string) bool {
	return filepath.Dir(path) == sandbox.DefaultDir
}

// ensureNetns makes the namespace of an allocation unless it is there. It must
// lie in the directory of named ones.
func ensureNetns(path string) (created bool, err error) {
	if !isNamed(path) {
		return false, usagef("--create with --netns %q: a namespace can only be made in %s", path, sandbox.DefaultDir)
	}
	ns, created, err := sandbox.Ensure(filepath.Base(path))
	if err != nil {
		return false, err
	}
	return created, ns.Close()
}

// owners maps the paths of network namespaces to the allocations that the
// records give them to.
type owners map[string]string

// netnsOwners leaves out what cannot be read.
func netnsOwners(conf *configurator.Configurator) owners {
	records, _ := conf.List()
	o := owners{}
	for i := range records {
		o[filepath.Clean(records[i].Netns)] = records[i].ID
	}
	return o
}

// checkFree returns ErrInUse for the namespace of another allocation.
func (o owners) checkFree(path, id string) error {
	if other := o[filepath.Clean(path)]; other != "" && other != id {
		return fmt.Errorf("destroy network namespace: %w: %q is that of allocation %q", configurator.ErrInUse, path, other)
	}
	return nil
}

// destroyNetns tells whether there was a namespace to be destroyed.
func destroyNetns(path string) (destroyed bool, err error) {
	there := sandbox.Validate(path) == nil
	if err := sandbox.Destroy(path); err != nil {
		return false, err
	}
	return there, nil
}
