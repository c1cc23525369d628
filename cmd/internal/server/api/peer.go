package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/wire"
)

// verdictKey is the key of the *verdict in the context of a connection.
type verdictKey struct{}

// verdict is the authorisation of a connection: why it is refused, or nil, and whether
// the peer is root.
type verdict struct {
	err  error
	root bool
	conn net.Conn
}

// connContext adds the verdict on a connection to its context.
func connContext(ctx context.Context, c net.Conn) context.Context {
	judged, ok := c.(*conn)
	if !ok {
		return ctx
	}
	judged.verdict.conn = judged.UnixConn
	return context.WithValue(ctx, verdictKey{}, &judged.verdict)
}

// admitted returns why the connection of a request is refused, or nil. A connection
// without a verdict is refused.
func admitted(r *http.Request) error {
	v, ok := r.Context().Value(verdictKey{}).(*verdict)
	if !ok {
		return fmt.Errorf("%w: the peer of the connection is not known", wire.ErrForbidden)
	}
	return v.err
}

// byRoot reports whether root sent a request.
func byRoot(r *http.Request) bool {
	v, ok := r.Context().Value(verdictKey{}).(*verdict)
	return ok && v.root
}

// maySendConflists reports whether a request may contain network configurations.
func (a *API) maySendConflists(r *http.Request) bool { return a.options.AllowConflists || byRoot(r) }

func (a *API) judge(c *net.UnixConn) (user uint32, root bool, err error) {
	uid, gids, err := peer(c)
	switch {
	case err != nil:
		return uid, false, fmt.Errorf("%w: get the peer's credentials: %w", wire.ErrForbidden, err)
	case uid == 0:
		return uid, true, nil
	case slices.ContainsFunc(gids, func(gid uint32) bool { return slices.Contains(a.options.Groups, gid) }):
		return uid, false, nil
	}
	return uid, false, fmt.Errorf("%w: user %d is neither root nor in an allowed group", wire.ErrForbidden, uid)
}

// peer returns the user and all groups of the peer at the time of its connection.
func peer(c *net.UnixConn) (uid uint32, gids []uint32, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, nil, err
	}
	var inner error
	err = raw.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, inner = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); inner != nil {
			return
		}
		var more []uint32
		more, inner = peerGroups(fd)
		uid, gids = cred.Uid, append(more, cred.Gid)
	})
	return uid, gids, errors.Join(err, inner)
}

// maxGroups is NGROUPS_MAX of the kernel.
const maxGroups = 65536

// peerGroups returns the supplementary groups of the peer.
func peerGroups(fd uintptr) ([]uint32, error) {
	gids := make([]uint32, 64)
	for {
		size := uint32(len(gids) * 4)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&gids[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0:
			return gids[:size/4], nil
		case errno == syscall.ENOPROTOOPT: // older than Linux 4.13
			return nil, nil
		case errno == syscall.ERANGE && len(gids) < maxGroups:
			gids = make([]uint32, maxGroups)
		default:
			return nil, errno
		}
	}
}
