package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/state/netns"
	"github.com/allocnet/allocnet/sandbox"
)

// netnsPath returns the path of an allocation's network namespace.
func netnsPath(id, given string) string {
	if given == "" {
		return filepath.Join(sandbox.DefaultDir, id)
	}
	if abs, err := filepath.Abs(given); err == nil {
		return abs
	}
	return given
}

// isNamed reports whether a path is in the directory of named network namespaces.
func isNamed(path string) bool {
	_, ok := netns.In(sandbox.DefaultDir, path)
	return ok
}

// destroyNetns destroys a network namespace and reports whether it existed. A symbolic link to it stays.
func destroyNetns(path string) (destroyed bool, err error) {
	if file, err := filepath.EvalSymlinks(path); err == nil {
		path = file
	}
	there := sandbox.Validate(path) == nil
	if err := sandbox.Destroy(path); err != nil {
		return false, err
	}
	return there, nil
}

// identityAt returns the identity of the network namespace at a path, or the zero value.
func identityAt(path string) sandbox.Identity {
	s, err := sandbox.Open(path)
	if err != nil {
		return sandbox.Identity{}
	}
	defer s.Close()
	id, _ := s.Identity()
	return id
}

// recordedNetns returns the identity of the network namespace in a record. It is the zero
// value if the record's path does not lead to it or there is no record.
func recordedNetns(r *configurator.Record) sandbox.Identity {
	if r == nil || r.NetnsGone {
		return sandbox.Identity{}
	}
	return identityAt(r.Netns)
}

// owners maps allocations to the paths of their network namespaces by their records.
type owners map[string]string

// netnsOwners ignores unreadable records. It also reads if the context has ended, because
// without owners a network namespace would count as free.
func netnsOwners(ctx context.Context, conf allocnet.Service) owners {
	records, _ := conf.List(context.WithoutCancel(ctx))
	o := owners{}
	for i := range records {
		if records[i].Acknowledged { // it is torn down, and its namespace may go
			continue
		}
		o[records[i].ID] = records[i].Netns
	}
	return o
}

// checkFree returns ErrInUse for the network namespace of an allocation other than the one with the ID.
func (o owners) checkFree(path, id string) error {
	for other, netnsOfOther := range o {
		if other != id && netns.Same(netnsOfOther, path) {
			return fmt.Errorf("destroy network namespace: %w", &configurator.NetnsError{Netns: path, ID: id, OtherID: other})
		}
	}
	return nil
}
