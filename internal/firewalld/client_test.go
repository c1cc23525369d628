package firewalld

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/firewalldtest"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

func TestMain(m *testing.M) { os.Exit(privhost.Main(m)) }

var (
	addr4 = netip.MustParseAddr("10.77.0.2")
	addr6 = netip.MustParseAddr("fd00:77::2")
)

func TestSources(t *testing.T) {
	bus := firewalldtest.StartBus(t)
	ctx, c := t.Context(), &Client{}
	runs, err := c.Runs(ctx)
	require.NoError(t, err)
	require.False(t, runs)
	require.NoError(t, c.Remove(ctx, "trusted", addr4), "nothing is left of what has ended")
	require.Error(t, c.Add(ctx, "trusted", addr4))

	f := bus.Start("nftables")
	awaitRuns(t, c, true)
	for _, a := range []netip.Addr{addr4, addr6} {
		require.NoError(t, c.Add(ctx, "trusted", a))
		require.NoError(t, c.Add(ctx, "trusted", a), "again")
		is, err := c.Has(ctx, "trusted", a)
		require.NoError(t, err)
		require.True(t, is)
	}
	require.ErrorContains(t, c.Add(ctx, "internal", addr4), "ZONE_CONFLICT")
	require.ErrorContains(t, c.Add(ctx, "nozone", addr4), "INVALID_ZONE")
	sources, err := c.Sources(ctx)
	require.NoError(t, err)
	require.Equal(t, map[netip.Addr]string{addr4: "trusted", addr6: "trusted"}, sources)

	require.NoError(t, c.Remove(ctx, "internal", addr4), "it is in another zone")
	require.NoError(t, c.Remove(ctx, "nozone", addr4))
	require.Contains(t, f.Sources("trusted"), "10.77.0.2/32")
	require.NoError(t, c.Remove(ctx, "trusted", addr4))
	require.NoError(t, c.Remove(ctx, "trusted", addr4), "again")
	require.NoError(t, c.Remove(ctx, "trusted", addr6))
	is, err := c.Has(ctx, "trusted", addr4)
	require.NoError(t, err)
	require.False(t, is)
	require.Empty(t, f.Sources("trusted"))

	f.End()
	awaitRuns(t, c, false)
	bus.End()
	runs, err = c.Runs(ctx)
	require.NoError(t, err)
	require.False(t, runs)
}

func awaitRuns(t *testing.T, c *Client, want bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		runs, err := c.Runs(t.Context())
		return err == nil && runs == want
	}, 10*time.Second, time.Millisecond)
}

// TestWithoutBus: only traces tell.
func TestWithoutBus(t *testing.T) {
	privhost.Require(t, "nft")
	traces := traceFiles
	t.Cleanup(func() { traceFiles = traces })
	traceFiles = []string{filepath.Join(t.TempDir(), "firewalld.pid")}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "none"))
	runs, err := (&Client{}).Runs(t.Context())
	require.NoError(t, err)
	require.False(t, runs)
	require.NoError(t, os.WriteFile(traceFiles[0], nil, 0o600))
	_, err = (&Client{}).Runs(t.Context())
	require.ErrorIs(t, err, ErrUnreachable)
	require.True(t, errors.Is(err, fs.ErrNotExist), "%v", err)
}

// TestSilentBus: a caller waits for a bus that does not answer no longer than its context.
func TestSilentBus(t *testing.T) {
	privhost.Require(t)
	path := filepath.Join(t.TempDir(), "bus")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer l.Close()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+path)
	c := &Client{}
	patient, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := c.Runs(patient)
		ended <- err
	}()
	conn, err := l.Accept() // the first caller waits for an answer now
	require.NoError(t, err)
	c.mu.Lock()
	attempt := c.dialing
	c.mu.Unlock()
	require.NotNil(t, attempt)
	defer func() { // it reads variables that other tests change
		require.NoError(t, conn.Close())
		<-attempt.done
	}()
	hasty, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	_, err = c.Runs(hasty)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	select {
	case err := <-ended:
		t.Fatalf("the other caller ended first: %v", err)
	default:
	}
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

// TestSilentBusIsLeft: an attempt to connect ends, and the next caller does not wait for another one.
func TestSilentBusIsLeft(t *testing.T) {
	privhost.Require(t, "nft")
	traces, limit := traceFiles, busTime
	t.Cleanup(func() { traceFiles, busTime = traces, limit })
	require.Less(t, busTime, callTime, "a bus is no service that may be busy")
	traceFiles, busTime = nil, 10*time.Millisecond
	path := filepath.Join(t.TempDir(), "bus")
	l, err := net.Listen("unix", path)
	require.NoError(t, err)
	defer l.Close()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+path)
	c := &Client{}
	for range 3 {
		runs, err := c.Runs(t.Context())
		require.NoError(t, err)
		require.False(t, runs)
	}
	c.failed.at = c.failed.at.Add(-2 * retryTime)
	at := c.failed.at
	_, err = c.Runs(t.Context())
	require.NoError(t, err)
	require.Equal(t, at, c.failed.at, "there was no other attempt")
	traceFiles = []string{path}
	_, err = (&Client{}).Runs(t.Context())
	require.ErrorIs(t, err, ErrUnreachable)
	require.ErrorContains(t, err, "does not answer")
}

// BenchmarkRuns is what an ADD pays.
func BenchmarkRuns(b *testing.B) {
	without := func(b *testing.B) {
		c := &Client{}
		for b.Loop() {
			_, _ = c.Runs(b.Context())
		}
	}
	b.Run("no bus", func(b *testing.B) {
		b.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(b.TempDir(), "none"))
		without(b)
	})
	b.Run("bus", func(b *testing.B) {
		firewalldtest.StartBus(b)
		without(b)
	})
}
