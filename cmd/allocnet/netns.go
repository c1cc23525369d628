package main

import (
	"fmt"
	"os"
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

// destroyNetns tells whether there was a network namespace.
func destroyNetns(path string) (destroyed bool, err error) {
	there := sandbox.Validate(path) == nil
	if err := sandbox.Destroy(path); err != nil {
		return false, err
	}
	return there, nil
}

// seen is a network namespace as it was found at a path; nil for none.
func seen(path string) os.FileInfo {
	if sandbox.Validate(path) != nil {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil
	}
	return info
}

// owners maps the paths of network namespaces to the allocations that the
// records give them to.
type owners map[string]string

// netnsOwners leaves out what cannot be read.
func netnsOwners(conf service) owners {
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
		return fmt.Errorf("destroy network namespace: %w", &configurator.NetnsError{Netns: path, ID: id, OtherID: other})
	}
	return nil
}
