package api

import (
	"net"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/wire"
)

// TestStrangersMakeNoRoom: the connection of a user who may not use the daemon closes
// no other user's, and is refused for that reason, also where there is no room.
func TestStrangersMakeNoRoom(t *testing.T) {
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
	stranger, err := admit(2, wire.ErrForbidden)
	require.ErrorIs(t, err, wire.ErrForbidden)
	require.False(t, idle.gone)
	stranger.release()
	_, err = admit(3, nil)
	require.NoError(t, err)
	require.True(t, idle.gone, "for a user who may")
}
