// Package readiness checks whether a Setup can be expected to work: for the daemon, which
// serves the answer, and for the command line without a daemon.
package readiness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/state/conflist"
)

// Check is one condition for an ADD. Err is the reason if the condition is not met.
// Warning is a problem that the administrator should repair although an ADD can
// succeed.
type Check struct {
	Name    string // see the constants for those that are not conditions of an ADD
	Network string // "" for a condition of all networks
	Err     error
	Warning error
}

// The names of checks that only have a Warning: a file of the configuration directory that is
// not used, and a listener of the daemon that could not be made.
const (
	File     = "file"
	Listener = "listener"
)

// Service is the part of an allocnet.Service that checks networks.
type Service interface {
	Ready(ctx context.Context) error
	ReadyFor(ctx context.Context, a allocnet.Allocation) error
}

// NoDefault reports whether a check has failed because no network is the default one. Setups that name a network
// can work nevertheless.
func (c *Check) NoDefault() bool {
	return c.Network == "" && errors.Is(c.Err, allocnet.ErrUnknownNetwork)
}

// Networks checks networks, all at the same time; without names, the default network, or the embedded
// one in addition if there is none. The result is sorted by their names.
func Networks(ctx context.Context, s Service, names []string) []Check {
	if len(names) == 0 {
		unnamed := Check{Name: "network", Err: s.Ready(ctx)}
		if !unnamed.NoDefault() {
			return []Check{unnamed}
		}
		return append([]Check{unnamed}, Networks(ctx, s, []string{conflist.EmbeddedName})...)
	}
	found := make(chan Check, len(names))
	for _, name := range names {
		go func() {
			err := s.ReadyFor(ctx, allocnet.Allocation{Networks: []string{name}})
			found <- Check{Name: "network", Network: name, Err: err}
		}()
	}
	var checks []Check
	for range names {
		checks = append(checks, <-found)
	}
	slices.SortStableFunc(checks, func(a, b Check) int { return strings.Compare(a.Network, b.Network) })
	return checks
}

// CheckFile returns an error while the readiness file is missing: a file that the provider of a
// network, such as flanneld, creates when the network can be used. The path is "" if the
// settings name none; then CheckFile returns nil.
func CheckFile(path string) error {
	if path == "" {
		return nil
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("readiness file: %w: the provider of the network has to create it", err)
	}
	return nil
}
