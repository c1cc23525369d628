package names

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReservedPrefix(t *testing.T) {
	for _, reserved := range []string{"0.0.0.0/0", "127.0.0.0/24", "169.254.169.254/32", "224.0.0.0/8", "::/0", "::1/128", "fe80::/64", "ff02::/16"} {
		require.NotEmpty(t, ReservedPrefix(netip.MustParsePrefix(reserved)), reserved)
	}
	for _, usable := range []string{"10.0.0.0/8", "100.64.0.0/10", "192.168.0.0/16", "fd00::/8", "fc00::/48", "2001:db8::/32"} {
		require.Empty(t, ReservedPrefix(netip.MustParsePrefix(usable)), usable)
	}
}
