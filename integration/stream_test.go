package integration

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/plugins/builtin"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/portmap"
)

// stream sends to a host port from outside, always from the same port, until
// the test ends.
func (h *host) stream(to string) { h.streamEvery(50*time.Microsecond, to) }

func (h *host) streamEvery(interval time.Duration, to string) {
	h.t.Helper()
	c := h.client(to)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		pace := time.NewTicker(interval)
		defer pace.Stop()
		for {
			select {
			case <-done:
				return
			case <-pace.C:
				_, _ = c.Write([]byte("?")) // errors are expected: a closed port is part of the test
			}
		}
	})
	h.t.Cleanup(func() { close(done); wg.Wait() })
}

// dropIns returns a directory with the native plugins as binaries, and other
// plugins.
func dropIns(t *testing.T, others ...string) string {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	dir := t.TempDir()
	for name := range builtin.Plugins {
		require.NoError(t, os.Symlink(self, filepath.Join(dir, name)))
	}
	require.NoError(t, fakeplugin.Install(dir, others...))
	return dir
}

// TestStream: a UDP client that keeps sending to a host port prevents neither a
// Teardown nor the roll-back of an ADD, and the next owner of the port receives
// its packets.
func TestStream(t *testing.T) {
	unknownKey := map[string]any{"type": "tuning", "aKeyOfTomorrow": true}
	for name, c := range map[string]struct {
		way
		dropIns bool
		extra   map[string]any
	}{
		"exec iptables":  {way: execTables},
		"exec nftables":  {way: execNFT},
		"drop-in":        {way: way{configurator.EngineExec, ""}, dropIns: true},
		"mixed":          {way: native, extra: unknownKey},
		"mixed iptables": {way: nativeTables, extra: unknownKey},
		"native":         {way: native},
	} {
		t.Run(name, func(t *testing.T) {
			dirs := []string{pluginDir, dropInsFor(t, c.dropIns)}
			if c.dropIns {
				slices.Reverse(dirs)
			}
			h := newHost(t, c.engine, func(cfg *configurator.Config) { cfg.PluginDirs, cfg.Retry.Attempts = dirs, 1 })
			plugins := chain("bridge", dual, c.backend)
			if c.extra != nil {
				plugins = slices.Insert(plugins, 2, c.extra)
			}
			h.network("net", plugins...)
			h.network("broken", append(plugins, map[string]any{
				"type": "one", "fake": fakeplugin.Config{
					Log: filepath.Join(t.TempDir(), "log"), On: map[string]fakeplugin.Behaviour{"ADD": {Code: 100, Msg: "made to fail"}},
				},
			})...)
			testStream(t, h)
		})
	}
}

// dropInsFor returns a directory with a plugin that fails on request and, if
// wanted, with the drop-in plugins.
func dropInsFor(t *testing.T, wanted bool) string {
	t.Helper()
	if wanted {
		return dropIns(t, "one")
	}
	dir := t.TempDir()
	require.NoError(t, fakeplugin.Install(dir, "one"))
	return dir
}

func testStream(t *testing.T, h *host) {
	setSysctls(t, "", quick)
	ports := []portmap.Port{{Value: 8080, To: 80, Protocols: []string{"udp"}}}
	first, second, broken := h.alloc("first"), h.alloc("second"), h.alloc("broken")
	for _, a := range []*configurator.Allocation{&first, &second, &broken} {
		a.Networks, a.Ports = []string{"net"}, ports
		h.inNew(*a, func() { serve(t, a.Netns, "udp", 80, a.ID) })
	}
	broken.Networks = []string{"broken"}
	h.stream(at(host4.Addr(), 8080))
	h.stream(at(host6.Addr(), 8080))
	for _, a := range []configurator.Allocation{first, second} {
		h.setUp(a)
		requireAnswer(t, h.outside.Path(), "udp", hostPort(host4, 8080), a.ID)
		h.tearDown(a)
	}
	_, err := h.Setup(h.ctx(), broken)
	require.ErrorContains(t, err, "made to fail")
	require.NotErrorIs(t, err, configurator.ErrIncomplete)
}
