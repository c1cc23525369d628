package sockdiag

import (
	"fmt"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/stretchr/testify/require"
)

// BenchmarkLook asks for one port over TCP and UDP, beside listeners on others.
func BenchmarkLook(b *testing.B) {
	for _, others := range []int{0, 10_000} {
		b.Run(fmt.Sprint(others), func(b *testing.B) {
			for i := range others {
				l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 20_000+i))
				require.NoError(b, err)
				defer l.Close()
			}
			for b.Loop() {
				_, err := Look(Ports{Protocol: unix.IPPROTO_TCP, Numbers: []uint16{80}}, Ports{Protocol: unix.IPPROTO_UDP, Numbers: []uint16{80}})
				require.NoError(b, err)
			}
		})
	}
}
