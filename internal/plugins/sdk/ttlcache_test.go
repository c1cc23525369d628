package sdk

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTTLCache(t *testing.T) {
	c := &TTLCache{}
	checks := 0
	check := func() error { checks++; return nil }
	require.NoError(t, c.Unless("a", check))
	c.seen["a"] = time.Now().Add(time.Hour) // an entry that does not expire
	require.NoError(t, c.Unless("a", check))
	require.Equal(t, 1, checks)
	require.NoError(t, c.Unless("b", check))
	require.Equal(t, 2, checks)
	c.Clear()
	require.NoError(t, c.Unless("a", check))
	require.Equal(t, 3, checks)
	c.seen["a"] = time.Now().Add(-CacheTTL)
	require.NoError(t, c.Unless("a", check))
	require.Equal(t, 4, checks, "an entry expires after the TTL")

	failure := errors.New("gone")
	require.ErrorIs(t, c.Unless("c", func() error { return failure }), failure)
	require.NoError(t, c.Unless("c", check))
	require.Equal(t, 5, checks, "a failed check is not cached")

	var none *TTLCache
	none.Clear()
	require.NoError(t, none.Unless("a", check))
	require.NoError(t, none.Unless("a", check))
	require.Equal(t, 7, checks)
}
