package api

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/api/wire"
)

func TestNoWayInButUnixSockets(t *testing.T) {
	a := New(Options{Metrics: nobody{}})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	c, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	root, err := a.judge(c)
	require.ErrorIs(t, err, wire.ErrForbidden)
	require.False(t, root)

	got := httptest.NewRecorder()
	a.serve(got, httptest.NewRequest(http.MethodGet, "/v1/allocs", nil))
	require.ErrorIs(t, admitted(httptest.NewRequest(http.MethodGet, "/v1/allocs", nil)), wire.ErrForbidden)
	require.NotEqual(t, http.StatusOK, got.Code)
}
