package conntrack

import (
	"net"
	"net/netip"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestFind finds a connection whose addresses are translated, and deletes no other one.
func TestFind(t *testing.T) {
	c := opened(t, true)
	run := func(args ...string) {
		out, err := exec.Command("nft", args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	run("add table inet moved")
	defer run("delete table inet moved")
	run("add chain inet moved out { type nat hook output priority -100 ; }")
	run("add rule inet moved out udp dport 1111 redirect to :2222")
	for _, ip := range []string{"127.0.0.1", "::1"} {
		destination := netip.AddrPortFrom(netip.MustParseAddr(ip), 1111)
		var sources [2]netip.AddrPort
		for i := range sources {
			conn, err := net.Dial("udp", destination.String())
			require.NoError(t, err)
			_, err = conn.Write([]byte("x"))
			require.NoError(t, err)
			sources[i] = conn.LocalAddr().(*net.UDPAddr).AddrPort()
			require.NoError(t, conn.Close())
		}
		found, err := c.Find(t.Context(), unix.IPPROTO_UDP, sources[0], destination)
		require.NoError(t, err)
		require.Equal(t, &Connection{
			Protocol: unix.IPPROTO_UDP, Source: sources[0], Destination: destination,
			AnswersFrom: netip.AddrPortFrom(destination.Addr(), 2222), AnswersTo: sources[0],
		}, found)
		for range 2 {
			require.NoError(t, c.Delete(t.Context(), unix.IPPROTO_UDP, sources[0], destination))
		}
		found, err = c.Find(t.Context(), unix.IPPROTO_UDP, sources[0], destination)
		require.NoError(t, err)
		require.Nil(t, found)
		found, err = c.Find(t.Context(), unix.IPPROTO_UDP, sources[1], destination)
		require.NoError(t, err)
		require.NotNil(t, found, "of another source port")
	}
}
