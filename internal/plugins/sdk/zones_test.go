package sdk

import (
	"net"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"
)

// TestContainerIPs: an address without an interface of the result is the container's.
func TestContainerIPs(t *testing.T) {
	r := &types100.Result{Interfaces: []*types100.Interface{{Name: "cni0"}, {Name: "eth0", Sandbox: "/n"}}}
	for _, i := range []*int{types100.Int(0), types100.Int(1), types100.Int(2), types100.Int(-1), nil} {
		r.IPs = append(r.IPs, &types100.IPConfig{Interface: i, Address: net.IPNet{IP: net.IPv4(10, 0, 0, byte(len(r.IPs)))}})
	}
	got := ContainerIPs(r)
	require.Equal(t, r.IPs[1:], got)
	require.Len(t, r.IPs, 5, "the result is not changed")
	require.NotNil(t, r.IPs[0])

	r.Interfaces = append(r.Interfaces, &types100.Interface{Name: "tap0", Sandbox: "vm"})
	r.IPs = append(r.IPs, &types100.IPConfig{Interface: types100.Int(2), Address: r.IPs[1].Address})
	require.Equal(t, got, ContainerIPs(r), "the virtual machine has an address of the container")
}
