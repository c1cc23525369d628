package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// keywords are the values of --network that runtimes do not take for the name of a network.
var keywords = []string{"bridge", "host", "none", "private", "default", "pod", "slirp4netns", "pasta"}

// TestReferenceConflists sets up allocations with the network configurations
// that packages contain, with both engines.
func TestReferenceConflists(t *testing.T) {
	testbed.EachElsewhere(t, testbed.Engines, testReferenceConflists)
}

func testReferenceConflists(t *testing.T, w testbed.Way) {
	h := newHost(t, w.Engine, func(*configurator.Config) {})
	files, err := filepath.Glob("../packaging/conflists/*")
	require.NoError(t, err)
	require.Len(t, files, 2)
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		var list struct{ Name string }
		require.NoError(t, json.Unmarshal(content, &list))
		require.NotContains(t, keywords, list.Name)
		require.NoError(t, os.WriteFile(filepath.Join(h.ConfDir, filepath.Base(file)), content, 0o600))
	}
	for i, network := range []string{"bridged", "routed"} {
		a := h.Alloc(network)
		a.Networks = []string{network}
		a.IPs = []string{fmt.Sprintf("10.%d.0.77", 88+i), fmt.Sprintf("fd0a:110c:%d::77", 88+i)}
		a.Ports = []portmap.Port{{Value: 8080 + i, To: 80}}
		s := h.SetUp(a)
		require.Equal(t, a.IPs, []string{s.Address, s.AddressIPv6})
		testbed.Serve(t, a.Netns, "tcp", 80, network)
		for _, address := range []string{s.Address, s.AddressIPv6} {
			testbed.RequireAnswer(t, "", "tcp", net.JoinHostPort(address, "80"), network)
		}
		for _, outside := range []string{testbed.HostPort(testhost.Host4, 8080+i), testbed.HostPort(testhost.Host6, 8080+i)} {
			testbed.RequireAnswer(t, h.Outside.Path(), "tcp", outside, network)
		}
		require.NoError(t, h.Check(h.Context(), a))
		h.TearDown(a)
	}
}
