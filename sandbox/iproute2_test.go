package sandbox

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUnderstoodByIproute2(t *testing.T) {
	needKernel(t)
	s := create(t, "ours")
	require.Contains(t, iproute2(t, "netns list"), "ours")
	require.Contains(t, iproute2(t, "netns exec ours ip -brief link show lo"), "UNKNOWN", "it is up")
	iproute2(t, "netns del ours")
	require.ErrorIs(t, Validate(s.Path()), ErrNotExist)
}

func TestUnderstandsIproute2(t *testing.T) {
	needKernel(t)
	iproute2(t, "netns add theirs")
	s, err := Open("/run/netns/theirs")
	require.NoError(t, err)
	require.NoError(t, LoopbackUp(s.Path()))
	require.Contains(t, iproute2(t, "-n theirs -brief address show lo"), "127.0.0.1/8")
	require.NoError(t, s.Destroy())
	require.NotContains(t, iproute2(t, "netns list"), "theirs")
}
