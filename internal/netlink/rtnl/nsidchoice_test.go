package rtnl

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestChooseNSID: the existing numbers are read for the second link, and again after many
// refusals in a row.
func TestChooseNSID(t *testing.T) {
	var n nsids
	reads, lowest := 0, int32(highestNSID)
	read := func() (int32, error) { reads++; return lowest, nil }
	choose := func(answer error) int32 {
		id, ok := n.choose(read)
		require.True(t, ok)
		n.chosen(answer)
		return id
	}
	_, ok := n.choose(read)
	require.False(t, ok)
	require.Zero(t, reads)
	require.EqualValues(t, highestNSID-1, choose(nil))
	require.EqualValues(t, highestNSID-2, choose(nil))
	for range mostTaken - 1 {
		choose(errors.New("taken"))
	}
	choose(nil)
	require.Equal(t, 1, reads)
	for range mostTaken {
		choose(errors.New("taken"))
	}
	lowest = smallestNSID + 1
	require.EqualValues(t, smallestNSID, choose(nil))
	require.Equal(t, 2, reads)
	require.EqualValues(t, highestNSID, choose(nil), "from the highest again")
	n = nsids{links: 1}
	_, ok = n.choose(func() (int32, error) { return 0, errors.New("not listed") })
	require.False(t, ok)
}
