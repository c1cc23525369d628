package sock

import (
	"fmt"
	"os"
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
	names, err := os.ReadFile("/proc/net/unix")
	require.NoError(t, err)
	require.Contains(t, string(names), fmt.Sprintf("@allocnet/netlink/%d", block()))
	require.NotEqual(t, block(), claimBlock())
}

// TestPortIsTaken: a port ID that another socket has is not used.
func TestPortIsTaken(t *testing.T) {
	before := sockets.Load()
	first := portOf(t, opened(t, unix.NETLINK_ROUTE))
	sockets.Store(before) // as after a round of all port IDs
	require.NotEqual(t, first, portOf(t, opened(t, unix.NETLINK_ROUTE)))
}
