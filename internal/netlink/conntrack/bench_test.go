package conntrack

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkFlush flushes an address without entries, with many other entries
// present.
func BenchmarkFlush(b *testing.B) {
	address, host := netip.MustParseAddr("10.77.0.5"), netip.MustParseAddr("127.0.0.1")
	calls := []struct {
		name string
		call func(c *Conn) error
	}{
		{"port", func(c *Conn) error { return c.FlushPorts(b.Context(), v4, port(udp, 53, anyIP)) }},
		{"port of an address", func(c *Conn) error { return c.FlushPorts(b.Context(), v4, port(udp, 53, host)) }},
		{"address v6", func(c *Conn) error { return c.FlushAddresses(b.Context(), ip4("fd00::5")) }},
		{"address", func(c *Conn) error { return c.FlushAddresses(b.Context(), address) }},
	}
	for _, entries := range []int{0, 1, 1000, 20000} {
		for _, modern := range []bool{true, false} {
			c := opened(b, modern)
			for i := range entries {
				track(b, udp, fmt.Sprintf("192.0.%d.%d:1", i/250, i%250), "192.0.2.3:999", "10.77.0.6:53")
			}
			for _, call := range calls {
				b.Run(fmt.Sprintf("%s/entries=%d/modern=%t", call.name, entries, modern), func(b *testing.B) {
					for b.Loop() {
						require.NoError(b, call.call(c))
					}
				})
			}
		}
	}
}
