package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/wire"
)

func TestLargeAnswerWaitsForRoom(t *testing.T) {
	a := New(Options{Metrics: unused{}, Limits: Limits{AllAnswers: 100 << 10}})
	a.roomTimeout = time.Hour
	r := httptest.NewRequest(http.MethodGet, "/v1/allocs", nil)
	before := a.encode(r, http.StatusOK, strings.Repeat("x", small))
	require.True(t, before.fits())
	o := a.encode(r, http.StatusOK, strings.Repeat("x", small))
	require.False(t, o.fits())
	time.AfterFunc(10*time.Millisecond, before.release)
	require.NoError(t, o.wait(t.Context()))

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, a.encode(r, http.StatusOK, strings.Repeat("x", small)).wait(ended), wire.ErrBusy)
	o.release()
	require.True(t, o.fits())
}
