package conntrack

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFlushRedirections: only the connections that a host port has led to an address go.
func TestFlushRedirections(t *testing.T) {
	to := func(p Port, address string) Redirection { return Redirection{p, netip.MustParseAddrPort(address)} }
	tests := []struct {
		name   string
		family uint8
		list   []Redirection
		gone   []int
	}{
		{"none", v4, nil, nil},
		{"redirected", v4, []Redirection{to(port(udp, 5353, anyIP), "10.77.0.5:53")}, []int{1}},
		{"another destination port", v4, []Redirection{to(port(udp, 5353, anyIP), "10.77.0.5:54")}, nil},
		{"another host port", v4, []Redirection{to(port(udp, 53, anyIP), "10.77.0.5:53")}, nil},
		{"of one address", v4, []Redirection{to(port(tcp, 8080, ip4("127.0.0.1")), "10.77.0.6:80")}, []int{6}},
		{"of another address", v4, []Redirection{to(port(tcp, 8080, ip4("127.0.0.3")), "10.77.0.6:80")}, nil},
		{"several", v4, []Redirection{to(port(tcp, 5353, anyIP), "10.77.0.5:53"), to(port(sctp, 53, anyIP), "10.77.0.6:53")}, []int{5, 8}},
		{"v6", v6, []Redirection{to(port(udp, 5353, anyIP), "[fd00:77::5]:53")}, []int{9}},
	}
	bothWays(t, func(t *testing.T, c *Conn) {
		for _, test := range tests {
			t.Run(test.name, func(t *testing.T) {
				check := fill(t, c)
				require.NoError(t, c.FlushRedirections(t.Context(), test.family, test.list...))
				check(test.gone)
			})
		}
	})
}
