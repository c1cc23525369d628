package integration

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/sandbox"
)

// TestSwappedNetns: the path of a namespace alternates between it and the
// host's. Setup works in the namespace, and never in the host's.
func TestSwappedNetns(t *testing.T) {
	testbed.Each(t, testbed.Engines, func(t *testing.T, w testbed.Way) {
		h := newHost(t, w.Engine, func(c *configurator.Config) { c.Network = "net" })
		h.Network("net", testbed.Chain("bridge", testbed.Families{V4: "10.77.0.0/24"}, w.Backend)...)
		a := h.Alloc("swapped")
		real := a.Netns
		a.Netns = testhost.Swapped(t, real)
		for set := 0; set < 5; {
			_, err := h.Setup(h.Context(), a)
			if errors.Is(err, sandbox.ErrHostNamespace) {
				continue
			}
			require.NoError(t, err)
			set++
			_, err = netlink.LinkByName("eth0")
			require.ErrorAs(t, err, &netlink.LinkNotFoundError{}, "on the host")
			testbed.Within(t, real, func() error {
				_, err := netlink.LinkByName("eth0")
				return err
			})
			h.TearDownUnreached(a) // its path may be the host's now
		}
	})
}
