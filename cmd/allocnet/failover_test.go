package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/client"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// TestDaemonIsRestarted: if the daemon stops listening between the question whether it does and
// a call, this process makes the call, and all later ones, unless --socket names the daemon.
func TestDaemonIsRestarted(t *testing.T) {
	privhost.Require(t)
	for name, named := range map[string]bool{"default socket": false, "--socket": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			socket := filepath.Join(dir, "s")
			l, err := net.Listen("unix", socket)
			require.NoError(t, err)
			a := newApp(nil, os.Stdout, os.Stderr)
			a.flags.register(&cobra.Command{})
			if named {
				require.NoError(t, a.flags.set.Parse([]string{"--socket", socket}))
			}
			a.flags.socket, a.flags.stateDir = socket, filepath.Join(dir, "state")
			s, err := a.service()
			require.NoError(t, err)
			defer s.Close()
			require.True(t, asksDaemon(s))
			require.NoError(t, l.Close())

			_, err = s.List(t.Context())
			if named {
				require.ErrorIs(t, err, client.ErrUnavailable)
				return
			}
			require.NoError(t, err)
			require.False(t, asksDaemon(s))
			networks, skipped := s.Networks(t.Context())
			require.NotEmpty(t, networks)
			require.Empty(t, skipped)
		})
	}
}

// TestNetworksOfARestartedDaemon: the error of the first call can be in the list of files. If this process
// cannot make the call either, its error is there as well.
func TestNetworksOfARestartedDaemon(t *testing.T) {
	privhost.Require(t)
	for _, works := range []bool{true, false} {
		dir := t.TempDir()
		socket := filepath.Join(dir, "s")
		l, err := net.Listen("unix", socket)
		require.NoError(t, err)
		a := newApp(nil, os.Stdout, os.Stderr)
		a.flags.register(&cobra.Command{})
		a.flags.socket, a.flags.stateDir = socket, filepath.Join(dir, "state")
		if !works {
			a.flags.stateDir = "relative"
		}
		s, err := a.service()
		require.NoError(t, err)
		require.NoError(t, l.Close())
		networks, skipped := s.Networks(t.Context())
		if works {
			require.NotEmpty(t, networks)
			require.Empty(t, skipped)
		} else {
			require.Len(t, skipped, 2)
			require.ErrorIs(t, skipped[1].Err, configurator.ErrInvalidConfig)
		}
		require.NoError(t, s.Close())
	}
}

// TestInterruptedSetupWithAHungDaemon: one signal ends the command.
func TestInterruptedSetupWithAHungDaemon(t *testing.T) {
	defer func(d time.Duration) { undoTime = d }(undoTime)
	undoTime = 50 * time.Millisecond
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket) // accepts nothing, as a stopped process
	require.NoError(t, err)
	defer l.Close()
	a := newApp(nil, os.Stdout, os.Stderr)
	a.flags.register(&cobra.Command{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done := make(chan struct{})
	go func() { awaitUndo(ctx, client.New(client.Config{Socket: socket}), "a"); close(done) }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		require.Fail(t, "the command does not end")
	}
}
