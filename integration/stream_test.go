package integration

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// stream sends to a host port from outside, always from the same port, until
// the test ends. The interval is shorter than any step of a teardown that a
// packet must not come after.
func (h *host) stream(to string) net.Conn { return h.streamEvery(500*time.Microsecond, to) }

func (h *host) streamEvery(interval time.Duration, to string) net.Conn {
	h.T.Helper()
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
	h.T.Cleanup(func() { close(done); wg.Wait() })
	return c
}

// requireAnswer requires that an answer to the stream comes from a server, after those of others.
func requireAnswer(t *testing.T, stream net.Conn, server string) {
	t.Helper()
	require.NoError(t, stream.SetReadDeadline(time.Now().Add(testbed.Timeout)))
	buf := make([]byte, 64)
	for {
		n, err := stream.Read(buf)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "%s does not answer at %s", server, stream.RemoteAddr())
		if strings.HasPrefix(string(buf[:n]), server+" ") {
			return
		}
	}
}

// TestStream: a UDP client that keeps sending to a host port prevents neither a
// Teardown nor the roll-back of an ADD, and the next owner of the port receives
// its packets.
func TestStream(t *testing.T) {
	unknownKey := map[string]any{"type": "tuning", "aKeyOfTomorrow": true}
	for name, c := range map[string]struct {
		testbed.Way
		dropIns bool
		extra   map[string]any
		full    bool // other cases have its engine, and its backend
	}{
		"exec iptables":  {Way: testbed.ExecTables, full: true},
		"exec nftables":  {Way: testbed.ExecNFT},
		"drop-in":        {Way: testbed.ExecTables, dropIns: true},
		"mixed":          {Way: testbed.Native, extra: unknownKey, full: true},
		"mixed iptables": {Way: testbed.NativeTables, extra: unknownKey, full: true},
		"native":         {Way: testbed.Native},
	} {
		t.Run(name, func(t *testing.T) {
			if c.full {
				skip.InShort(t)
			}
			dirs := []string{testbed.PluginDir, dropInsFor(t, c.dropIns)}
			if c.dropIns {
				slices.Reverse(dirs)
			}
			h := newHost(t, c.Engine, func(cfg *configurator.Config) { cfg.PluginDirs, cfg.Retry.Attempts = dirs, 1 })
			plugins := testbed.Chain("bridge", testbed.Dual, c.Backend)
			if c.extra != nil {
				plugins = slices.Insert(plugins, 2, c.extra)
			}
			h.Network("net", plugins...)
			h.Network("broken", append(plugins, map[string]any{
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
		return testbed.DropIns(t, "one")
	}
	dir := t.TempDir()
	require.NoError(t, fakeplugin.Install(dir, "one"))
	return dir
}

func testStream(t *testing.T, h *host) {
	testbed.SetSysctls(t, "", testbed.Quick)
	ports := []portmap.Port{{Value: 8080, To: 80, Protocols: []string{"udp"}}}
	first, second, broken := h.Alloc("first"), h.Alloc("second"), h.Alloc("broken")
	for _, a := range []*configurator.Allocation{&first, &second, &broken} {
		a.Networks, a.Ports = []string{"net"}, ports
		h.InNew(*a, func() { testbed.Serve(t, a.Netns, "udp", 80, a.ID) })
	}
	broken.Networks = []string{"broken"}
	streams := []net.Conn{h.stream(testbed.At(testhost.Host4.Addr(), 8080)), h.stream(testbed.At(testhost.Host6.Addr(), 8080))}
	for _, a := range []configurator.Allocation{first, second} {
		h.SetUp(a)
		for _, s := range streams {
			requireAnswer(t, s, a.ID)
		}
		h.TearDown(a)
	}
	_, err := h.Setup(h.Context(), broken)
	require.ErrorContains(t, err, "made to fail")
	require.NotErrorIs(t, err, configurator.ErrIncomplete)
}
