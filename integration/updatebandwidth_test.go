package integration

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

const (
	kilobit = 1000
	// burst is small, so that the rate soon decides how long a transfer takes.
	burst = 80 * kilobit
	// slowRate is 50 KB per second.
	slowRate = 400 * kilobit
)

// TestUpdateBandwidth changes the limits of an allocation while a client outside transfers data.
func TestUpdateBandwidth(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) { testUpdateBandwidth(t, main) })
	}
}

func testUpdateBandwidth(t *testing.T, main string) {
	h := newHost(t, configurator.EngineNative)
	h.Network("net", append(testbed.Chain(main, testbed.Dual, ""), map[string]any{"type": "bandwidth", "capabilities": map[string]bool{"bandwidth": true}})...)
	a := h.Alloc("a")
	a.Ports = []portmap.Port{testbed.TCPPort(8080, 80)}
	h.InNew(a, func() { testbed.ServeStreams(t, a.Netns) })
	h.SetUp(a)
	c := h.transfer()

	for name, limits := range map[string]configurator.Bandwidth{
		"what it sends":    {EgressRate: slowRate, EgressBurst: burst},
		"what it receives": {IngressRate: slowRate, IngressBurst: burst},
	} {
		h.setLimits(a, limits)
		began := time.Now()
		c.echo(50_000) // of which the bucket has 10,000 at the beginning
		require.Greater(t, time.Since(began), 600*time.Millisecond, name)

		// A transfer that is on its way when the limit ends would have taken half a minute.
		began = time.Now()
		ended := c.start(1_500_000)
		h.setLimits(a, configurator.Bandwidth{})
		require.NoError(t, <-ended)
		require.Less(t, time.Since(began), 15*time.Second, name)
	}

	both := configurator.Bandwidth{IngressRate: 80_000 * kilobit, IngressBurst: 8000 * kilobit, EgressRate: 80_000 * kilobit, EgressBurst: 8000 * kilobit}
	h.setLimits(a, both)
	c.echo(500_000)
	privhost.FlushRuleset(t)
	report, err := h.Repair(h.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, report.Repaired)
	a.Bandwidth = &both
	require.False(t, h.SetUp(a).SetUpAgain)
	c.echo(500_000)
	h.TearDown(a)
}

// setLimits changes the limits of an allocation, which stays healthy.
func (h *host) setLimits(a configurator.Allocation, limits configurator.Bandwidth) {
	h.T.Helper()
	_, err := h.Update(h.Context(), a.ID, configurator.Change{Bandwidth: &limits})
	require.NoError(h.T, err)
	require.NoError(h.T, h.CheckOnly(h.Context(), a))
}

// stream is a connection from outside to a server of testbed.ServeStreams.
type stream struct {
	t testing.TB
	net.Conn
}

// transfer opens a connection to host port 8080.
func (h *host) transfer() *stream {
	h.T.Helper()
	s := &stream{t: h.T}
	testbed.Within(h.T, h.Outside.Path(), func() (err error) {
		s.Conn, err = net.DialTimeout("tcp", testbed.HostPort(testhost.Host4, 8080), testbed.Timeout)
		return err
	})
	h.T.Cleanup(func() { s.Close() })
	return s
}

// start sends data and receives it again. The channel gets the error at the end.
func (s *stream) start(size int) (ended <-chan error) {
	require.NoError(s.t, s.SetDeadline(time.Now().Add(time.Minute)))
	errs := make(chan error, 1)
	go func() {
		sent := make(chan error, 1)
		go func() {
			_, err := s.Write(bytes.Repeat([]byte{'.'}, size))
			sent <- err
		}()
		if _, err := io.CopyN(io.Discard, s, int64(size)); err != nil {
			errs <- err
			return
		}
		errs <- <-sent
	}()
	return errs
}

// echo is start that waits for the end.
func (s *stream) echo(size int) {
	s.t.Helper()
	require.NoError(s.t, <-s.start(size))
}
