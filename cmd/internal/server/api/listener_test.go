package api

import (
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/wire"
)

func TestOnlyUnixSockets(t *testing.T) {
	a := New(Options{Metrics: unused{}})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	c, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	_, err = a.Listener(listener).Accept()
	require.ErrorContains(t, err, "needs a Unix socket")
	require.Nil(t, connContext(t.Context(), c).Value(verdictKey{}), "without the API's Listener there is no verdict")

	got := httptest.NewRecorder()
	a.serve(got, httptest.NewRequest(http.MethodGet, "/v1/allocs", nil))
	require.ErrorIs(t, admitted(httptest.NewRequest(http.MethodGet, "/v1/allocs", nil)), wire.ErrForbidden)
	require.NotEqual(t, http.StatusOK, got.Code)
}
