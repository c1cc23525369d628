package firewalld

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/firewalldtest"
)

// TestSilentFirewalld: after one call without an answer, further ones do not wait for
// firewalld, until it answers.
func TestSilentFirewalld(t *testing.T) {
	bus := firewalldtest.StartBus(t)
	f := bus.Start("nftables")
	c := &Client{}
	awaitRuns(t, c, true)
	require.NoError(t, c.Add(t.Context(), "trusted", addr4))
	f.Stop()
	hasty, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := c.Add(hasty, "trusted", addr6)
	require.ErrorIs(t, err, ErrSilent)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	err = c.Remove(t.Context(), "trusted", addr4)
	require.ErrorIs(t, err, ErrSilent, "it may be in the zone")
	require.NotErrorIs(t, err, context.DeadlineExceeded, "nothing was waited for until its end")
	_, err = c.Has(t.Context(), "trusted", addr4)
	require.ErrorIs(t, err, ErrSilent)
	_, err = c.Sources(t.Context())
	require.ErrorIs(t, err, ErrSilent)

	f.Continue()
	require.Eventually(t, func() bool {
		is, err := c.Has(t.Context(), "trusted", addr6)
		return err == nil && is
	}, 10*time.Second, time.Millisecond, "the call that nobody waited for is done")
	require.NoError(t, c.Remove(t.Context(), "trusted", addr4))
	require.NoError(t, c.Remove(t.Context(), "trusted", addr6))
	require.Empty(t, f.Sources("trusted"))
}

// TestGivenUpIsNotSilent: a caller that gives up at once says nothing of firewalld.
func TestGivenUpIsNotSilent(t *testing.T) {
	f := firewalldtest.StartBus(t).Start("nftables")
	c := &Client{}
	awaitRuns(t, c, true)
	f.Stop()
	hasty, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Add(hasty, "trusted", addr4) }()
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	f.Continue()
	require.NoError(t, c.Remove(t.Context(), "trusted", addr4), "it waits for the answer to the first call")
	require.Empty(t, f.Sources("trusted"))
}
