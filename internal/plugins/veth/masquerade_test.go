package veth

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKept: the networks to which an address keeps its source address are those of its
// family, and none is within another.
func TestKept(t *testing.T) {
	for name, c := range map[string]struct {
		address string
		except  []string
		want    []string
		nft     string
	}{
		"none":             {"10.1.2.3/24", nil, []string{"10.1.2.0/24"}, "10.1.2.0/24"},
		"around":           {"10.1.2.3/24", []string{"10.1.0.0/16"}, []string{"10.1.0.0/16"}, "10.1.0.0/16"},
		"elsewhere":        {"10.1.2.3/24", []string{"9.0.0.0/8"}, []string{"9.0.0.0/8", "10.1.2.0/24"}, "{ 9.0.0.0/8, 10.1.2.0/24 }"},
		"within":           {"10.1.2.3/24", []string{"10.1.2.128/25", "10.1.2.0/24"}, []string{"10.1.2.0/24"}, "10.1.2.0/24"},
		"within another":   {"10.1.2.3/24", []string{"10.2.3.0/24", "10.2.0.0/16", "10.2.0.0/16"}, []string{"10.1.2.0/24", "10.2.0.0/16"}, "{ 10.1.2.0/24, 10.2.0.0/16 }"},
		"with an address":  {"10.1.2.3/24", []string{"10.1.3.4/16"}, []string{"10.1.0.0/16"}, "10.1.0.0/16"},
		"of both families": {"fd00:1::3/64", []string{"10.0.0.0/8", "fd00::/16"}, []string{"fd00::/16"}, "fd00::/16"},
		"of another one":   {"fd00:1::3/64", []string{"10.0.0.0/8"}, []string{"fd00:1::/64"}, "fd00:1::/64"},
		"everything":       {"10.1.2.3/24", []string{"0.0.0.0/0", "11.0.0.0/8"}, []string{"0.0.0.0/0"}, "0.0.0.0/0"},
	} {
		t.Run(name, func(t *testing.T) {
			var m Masquerade
			for _, text := range c.except {
				m.Except = append(m.Except, netip.MustParsePrefix(text))
			}
			var want []netip.Prefix
			for _, text := range c.want {
				want = append(want, netip.MustParsePrefix(text))
			}
			got := m.kept(netip.MustParsePrefix(c.address))
			require.Equal(t, want, got)
			require.Equal(t, c.nft, masqueraded{kept: got}.nftKept())
		})
	}
}
