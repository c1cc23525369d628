package integration

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/portmap"
)

// TestReferenceConflists sets up allocations with the network configurations
// that packages contain, with both engines.
func TestReferenceConflists(t *testing.T) { each(t, engines, testReferenceConflists) }

func testReferenceConflists(t *testing.T, w way) {
	h := newHost(t, w.engine, func(*configurator.Config) {})
	files, err := filepath.Glob("../packaging/conflists/*")
	require.NoError(t, err)
	require.Len(t, files, 2)
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(h.conf, filepath.Base(file)), content, 0o600))
	}
	for i, network := range []string{"bridge", "routed"} {
		a := h.alloc(network)
		a.Networks = []string{network}
		a.IPs = []string{fmt.Sprintf("10.%d.0.77", 88+i), fmt.Sprintf("fd0a:110c:%d::77", 88+i)}
		a.Ports = []portmap.Port{{Value: 8080 + i, To: 80}}
		s := h.setUp(a)
		require.Equal(t, a.IPs, []string{s.Address, s.AddressIPv6})
		serve(t, a.Netns, "tcp", 80, network)
		for _, address := range []string{s.Address, s.AddressIPv6} {
			requireAnswer(t, "", "tcp", net.JoinHostPort(address, "80"), network)
		}
		for _, outside := range []string{hostPort(host4, 8080+i), hostPort(host6, 8080+i)} {
			requireAnswer(t, h.outside.Path(), "tcp", outside, network)
		}
		require.NoError(t, h.Check(h.ctx(), a))
		h.tearDown(a)
	}
}
