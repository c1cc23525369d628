package policy

import (
	"testing"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
)

// host is the host of one test, with what the tests of this package do on it.
type host struct{ *testbed.Host }

// newHost returns a host with one engine: see [testbed.New].
func newHost(t testing.TB, engine configurator.Engine, change ...func(*configurator.Config)) *host {
	t.Helper()
	return &host{testbed.New(t, engine, change...)}
}

// in returns the host for a subtest.
func (h *host) in(t testing.TB) *host { return &host{h.In(t)} }
