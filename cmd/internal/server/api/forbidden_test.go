package api

import (
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/wire"
)

// TestForbiddenUsersMakeNoRoom checks that no idle connection is closed for a
// user that may not use the daemon. Such a user gets ErrForbidden, also without
// room.
func TestForbiddenUsersMakeNoRoom(t *testing.T) {
	d := newAdmission(2) // one of them for root
	admit := func(user uint32, verdictErr error) (*conn, error) {
		c := &conn{UnixConn: &net.UnixConn{}, user: user, verdict: verdict{err: verdictErr}}
		ok, err := d.admit(c)
		require.True(t, ok)
		return c, err
	}
	idle, err := admit(1, nil)
	require.NoError(t, err)
	d.connState(idle, http.StateIdle)
	forbidden, err := admit(2, wire.ErrForbidden)
	require.ErrorIs(t, err, wire.ErrForbidden)
	require.False(t, idle.gone)
	forbidden.release()
	_, err = admit(3, nil)
	require.NoError(t, err)
	require.True(t, idle.gone, "closed for a permitted user")
}
