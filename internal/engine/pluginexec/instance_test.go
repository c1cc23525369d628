package pluginexec

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInstance(t *testing.T) {
	dirs := []string{"/opt/cni/bin", "/usr/lib/cni"}
	require.Equal(t, dirs, WithInstance(dirs, ""))
	require.Empty(t, InstanceOf(dirs))
	with := WithInstance(dirs, "0a1b2c3d")
	require.Equal(t, dirs, with[:2])
	require.Equal(t, "0a1b2c3d", InstanceOf(append(with, "/proc/self/allocnet/key/net1")))
	for _, bad := range []string{"x", "../a", "a:b", "a/b"} {
		require.Empty(t, InstanceOf(WithInstance(dirs, bad)), "becomes part of an owner")
	}
}
