package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/allocnet/allocnet"
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

// identityAt is that of the network namespace at a path; the zero value for none.
func identityAt(path string) sandbox.Identity {
	s, err := sandbox.Open(path)
	if err != nil {
		return sandbox.Identity{}
	}
	defer s.Close()
	id, _ := s.Identity()
	return id
}

// recordedNetns is the network namespace of an allocation's record; the zero value where
// the record's path does not lead there, or there is no record.
func recordedNetns(r *configurator.Record) sandbox.Identity {
	if r == nil || r.NetnsGone {
		return sandbox.Identity{}
	}
	return identityAt(r.Netns)
}

// owners maps the paths of network namespaces to the allocations that the
// records give them to.
type owners map[string]string

// netnsOwners leaves out what cannot be read. It reads also where the context has ended:
// without owners, a namespace would be taken for free.
func netnsOwners(ctx context.Context, conf allocnet.Service) owners {
	records, _ := conf.List(context.WithoutCancel(ctx))
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
