package names

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseMAC(t *testing.T) {
	mac, err := ParseMAC("02-00-00-00-00-0A")
	require.NoError(t, err)
	require.Equal(t, "02:00:00:00:00:0a", mac.String())
	for text, want := range map[string]string{
		"":                        "not a hardware address",
		"zz":                      "not a hardware address",
		"00:00:00:00:00:00":       "all bytes are zero",
		"ff:ff:ff:ff:ff:ff":       "a group address",
		"01:00:5e:00:00:01":       "a group address",
		"02:00:5e:10:00:00:00:01": "8 bytes",
	} {
		_, err := ParseMAC(text)
		require.ErrorContains(t, err, want, text)
	}
}
