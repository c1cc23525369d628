package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/cmd/internal/server/settings"
)

// TestSubnetsComeAndGo: the log tells what flanneld does, once each.
func TestSubnetsComeAndGo(t *testing.T) {
	w := newWorkspace(t)
	var log bytes.Buffer
	s := settings.Default()
	s.StateDir, s.ConfDir, s.SubnetsFrom = w.path("state"), w.path("conf"), w.path("subnet.env")
	h, err := newHost(settings.Source{}, s, hclog.New(&hclog.LoggerOptions{Output: &log}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.close()) })
	known := map[string]string{}
	logged := func() string {
		log.Reset()
		h.noteSubnets(known)
		text := log.String()
		log.Reset()
		h.noteSubnets(known)
		require.Empty(t, log.String())
		return text
	}
	leased := func(subnet string) {
		text := "FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=" + subnet + "\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
		require.NoError(t, os.WriteFile(s.SubnetsFrom, []byte(text), 0o600))
	}
	require.Contains(t, logged(), "[WARN]  the network has no subnet")
	leased("10.5.1.1/24")
	require.Contains(t, logged(), "the network has subnets of flanneld: network=allocnet subnets=10.5.1.0/24")
	leased("10.5.2.1/24")
	text := logged()
	require.Contains(t, text, "flanneld has leased other subnets")
	require.Contains(t, text, "subnets=10.5.2.0/24 before=10.5.1.0/24")
	require.NoError(t, os.Remove(s.SubnetsFrom))
	require.Contains(t, logged(), "the network has no subnet")
}
