package hostports

import (
	"context"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
)

// TestSearchEndsWithTheContext: a search that does not end holds no operation.
func TestSearchEndsWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := &Search{done: make(chan struct{})}
	require.ErrorIs(t, s.Errors(ctx, "a"), context.Canceled)
	c := Checker{Logger: hclog.NewNullLogger(), First: func(string) bool { return true }}
	require.Empty(t, c.Warnings(ctx, nil, s, "a", &allocnet.Status{}))
	close(s.done)
	require.NoError(t, s.Errors(t.Context(), "a"))
}
