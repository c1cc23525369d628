package pluginexec

import (
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"
)

func TestInNetns(t *testing.T) {
	of := func(sandbox string) *types100.Result {
		return &types100.Result{CNIVersion: "1.1.0", Interfaces: []*types100.Interface{
			{Name: "veth1"}, nil, {Name: "eth0", Mac: "02:00:00:00:00:01", Sandbox: sandbox}, {Name: "eth0", Sandbox: "/other"},
		}}
	}
	result := of("/run/netns/a")
	require.Equal(t, of("/proc/1/fd/9"), InNetns(result, "/run/netns/a", "/proc/1/fd/9"))
	require.Equal(t, of("/run/netns/a"), result, "it is not changed")
	require.Same(t, result, InNetns(result, "/run/netns/b", "/proc/1/fd/9"))
	require.Nil(t, InNetns(nil, "a", "b"))
}
