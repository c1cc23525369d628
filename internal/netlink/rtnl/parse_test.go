package rtnl

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzParse: what the kernel never sends is no panic.
func FuzzParse(f *testing.F) {
	link := append(make([]byte, 16), 12, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 0, 16, 0, 18, 0, 11, 0, 1, 0, 'b', 'r', 'i', 'd', 'g', 'e', 0, 0)
	require.NotNil(f, parseLinkState(link))
	f.Add(link)
	f.Add([]byte("0000000000000000\x10\x00\x12\x00\x0b\x00\x01\x0000000000")) // a kind that does not end
	f.Add([]byte{2, 8, 128, 254, 1, 0, 0, 0, 8, 0, 1, 0, 127, 0, 0, 1, 8, 0, 2, 0, 127, 0, 0, 1})
	f.Fuzz(func(_ *testing.T, data []byte) {
		parseLinkState(data)
		_, _, _ = parseAddress(data)
		ends(data)
		parseRouteInfo(data)
	})
}
