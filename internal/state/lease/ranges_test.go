package lease

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAfter(t *testing.T) {
	for name, test := range map[string]struct{ set, last, want string }{
		"from the beginning":          {"10.0.0.1-10.0.0.4", "", "10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4"},
		"around":                      {"10.0.0.1-10.0.0.4", "10.0.0.2", "10.0.0.3 10.0.0.4 10.0.0.1 10.0.0.2"},
		"after the end":               {"10.0.0.1-10.0.0.3", "10.0.0.3", "10.0.0.1 10.0.0.2 10.0.0.3"},
		"last is of no range":         {"10.0.0.1-10.0.0.3", "10.9.0.2", "10.0.0.1 10.0.0.2 10.0.0.3"},
		"last is of the other family": {"10.0.0.1-10.0.0.3", "fd00::2", "10.0.0.1 10.0.0.2 10.0.0.3"},
		"without the gateway":         {"10.0.0.1-10.0.0.3@10.0.0.1", "", "10.0.0.2 10.0.0.3"},
		"the gateway comes first":     {"10.0.0.1-10.0.0.3@10.0.0.2", "10.0.0.1", "10.0.0.3 10.0.0.1"},
		"only the gateway":            {"10.0.0.1-10.0.0.1@10.0.0.1", "", ""},
		"only one":                    {"10.0.0.1-10.0.0.1", "10.0.0.1", "10.0.0.1"},
		"two ranges": {"10.0.0.1-10.0.0.2 10.0.1.1-10.0.1.3@10.0.1.2", "10.0.1.1",
			"10.0.1.3 10.0.0.1 10.0.0.2 10.0.1.1"},
		"IPv6":                     {"fd00::fffe-fd00::1:1@fd00::1:0", "fd00::fffe", "fd00::ffff fd00::1:1 fd00::fffe"},
		"the end of all addresses": {"255.255.255.254-255.255.255.255", "", "255.255.255.254 255.255.255.255"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for addr := range ranges(test.set).after(parseLast(test.last)) {
				got = append(got, addr.String())
				require.Less(t, len(got), 10, "it does not end")
			}
			require.Equal(t, test.want, strings.Join(got, " "))
		})
	}
}

func TestRangeSetString(t *testing.T) {
	require.Equal(t, "10.0.0.1-10.0.0.2,fd00::1-fd00::2", ranges("10.0.0.1-10.0.0.2 fd00::1-fd00::2").String())
}
