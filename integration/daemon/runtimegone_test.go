package daemon

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/portmap"
	"github.com/allocnet/allocnet/sandbox"
)

// TestRuntimesNetnsGone: a runtime's attachment is torn down some time after
// its network namespace is gone. Other allocations stay.
func TestRuntimesNetnsGone(t *testing.T) {
	h := newHost(t, testbed.Native.Engine)
	h.Network("net", testbed.Chain("bridge", testbed.Dual, "")...)
	d := h.startDaemon(`networks = ["net"]` + "\n" + `reconcile { netns_gone = "1s" }`)
	ports := []portmap.Mapping{{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}}
	config := d.pluginConfig(map[string]any{"delegate": "net"})
	withPort := d.pluginConfig(map[string]any{"delegate": "net", "runtimeConfig": map[string]any{"portMappings": ports}})
	netns := func(name string) *sandbox.Sandbox {
		s, err := sandbox.Create(name)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Destroy()) })
		return s
	}
	add := func(name string, config []byte) *sandbox.Sandbox {
		s := netns(name)
		_, err := d.run(pluginProgram, "ADD", name, s.Path(), config)
		require.NoError(t, err)
		return s
	}
	lost, _ := add("lost", withPort), add("live", config)
	own := netns("own")
	_, err := d.client().Setup(h.Context(), configurator.Allocation{ID: "own", Netns: own.Path()})
	require.NoError(t, err)
	require.NoError(t, errors.Join(lost.Destroy(), own.Destroy()))

	require.Eventually(t, func() bool {
		_, err := d.client().Get(t.Context(), "lost.eth0")
		return errors.Is(err, configurator.ErrNotFound)
	}, time.Minute, 10*time.Millisecond)
	_, err = d.client().Get(t.Context(), "own")
	require.NoError(t, err, "a scheduler's allocation is the scheduler's to tear down")
	_, err = d.run(pluginProgram, "CHECK", "live", "/run/netns/live", config)
	require.NoError(t, err)
	add("next", withPort) // the host port is free again
	require.Contains(t, d.log(), "network namespace is gone: tore the allocation down")
	for _, name := range []string{"live", "next"} {
		_, err := d.run(pluginProgram, "DEL", name, "/run/netns/"+name, config)
		require.NoError(t, err)
	}
	require.NoError(t, d.client().Teardown(h.Context(), configurator.Allocation{ID: "own"}))
	d.term()
}
