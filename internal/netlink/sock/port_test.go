package sock

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func portOf(t *testing.T, s *Socket) uint32 {
	t.Helper()
	address, err := unix.Getsockname(s.fd)
	require.NoError(t, err)
	return address.(*unix.SockaddrNetlink).Pid
}

// TestPorts: all sockets have port IDs of a block that no other process has.
func TestPorts(t *testing.T) {
	used := map[uint32]bool{}
	for range 3 {
		port := portOf(t, opened(t, unix.NETLINK_ROUTE))
		require.Equal(t, block(), port-port%blockSize)
		require.Greater(t, port, uint32(1<<22), "not one that the kernel assigns")
		require.Less(t, port, uint32(1<<31))
		require.False(t, used[port])
		used[port] = true
	}
	require.NotEqual(t, block(), claimBlock())
}

// TestPortIsTaken: a port ID that another socket has is not used.
func TestPortIsTaken(t *testing.T) {
	before := sockets.Load()
	first := portOf(t, opened(t, unix.NETLINK_ROUTE))
	sockets.Store(before) // as after a round of all port IDs
	require.NotEqual(t, first, portOf(t, opened(t, unix.NETLINK_ROUTE)))
}

// TestPortsAreTaken: another user has all port IDs of the block that would be next.
func TestPortsAreTaken(t *testing.T) {
	from := sockets.Load() + 1
	for i := range uint32(mostTaken) {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
		require.NoError(t, err)
		t.Cleanup(func() { unix.Close(fd) })
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Pid: block() + (from+i)%blockSize})
		require.True(t, err == nil || errors.Is(err, unix.EADDRINUSE), "%v", err)
	}
	s := opened(t, unix.NETLINK_ROUTE)
	require.NotEqual(t, block(), portOf(t, s)&^(blockSize-1), "the kernel has chosen")
	answers := 0
	var r Requests
	r.Begin("loopback", unix.RTM_GETLINK, 0)
	r.Append(append([]byte{0, 0, 0, 0, 1, 0, 0, 0}, make([]byte, 8)...)...) // struct ifinfomsg
	require.NoError(t, s.Exchange(t.Context(), &r, func(_ int, _ []byte, err error) {
		require.NoError(t, err)
		answers++
	}))
	require.Equal(t, 1, answers)

	sockets.Store(from - 1)
	l, err := Listen(ListenOptions{Protocol: unix.NETLINK_ROUTE, Buffer: 1 << 16})
	require.NoError(t, err)
	require.NoError(t, l.Close())
}
