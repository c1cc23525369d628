package rtnl_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// setSysctl sets a sysctl of the host until the test ends.
func setSysctl(t *testing.T, path, value string) {
	t.Helper()
	before, err := os.ReadFile("/proc/sys/" + path)
	require.NoError(t, err)
	require.NoError(t, rtnl.SetSysctl(path, value))
	t.Cleanup(func() { require.NoError(t, os.WriteFile("/proc/sys/"+path, before, 0)) })
}

// TestForwards: each function reads the sysctl that it names.
func TestForwards(t *testing.T) {
	h := open(t)
	index := addBridge(t, h, "br-forward")
	functions := map[string]func() (bool, error){
		"net/ipv4/ip_forward":                 func() (bool, error) { return h.Forwards(unix.AF_INET) },
		"net/ipv4/conf/br-forward/forwarding": func() (bool, error) { return h.ForwardsFrom(index) },
		"net/ipv6/conf/all/forwarding":        func() (bool, error) { return h.Forwards(unix.AF_INET6) },
	}
	all := func(value string) {
		for _, path := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			setSysctl(t, path, value)
		}
	}
	for off := range functions {
		all("1")
		setSysctl(t, off, "0")
		for path, forwards := range functions {
			on, err := forwards()
			require.NoError(t, err)
			value, err := os.ReadFile("/proc/sys/" + path)
			require.NoError(t, err)
			require.Equal(t, string(value) == "1\n", on, "%s is %s while %s is 0", path, value, off)
		}
	}
	_, err := h.ForwardsFrom(1 << 20)
	require.Error(t, err)
}

func TestEnableForwardingFrom(t *testing.T) {
	h := open(t)
	index := addBridge(t, h, "br-forward")
	setSysctl(t, "net/ipv4/ip_forward", "0")
	require.NoError(t, h.EnableForwardingFrom(index))
	on, err := h.ForwardsFrom(index)
	require.NoError(t, err)
	require.True(t, on)
	on, err = h.Forwards(unix.AF_INET)
	require.NoError(t, err)
	require.False(t, on, "of the other links nothing is changed")
	require.True(t, rtnl.IsNotFound(h.EnableForwardingFrom(1<<20)))
}

// TestCreateVethForwards: the host's end forwards also if new links do not by default.
func TestCreateVethForwards(t *testing.T) {
	h := open(t)
	setSysctl(t, "net/ipv4/conf/default/forwarding", "0")
	for i, forward := range []bool{false, true} {
		v := veth(fmt.Sprint("forward", i))
		v.Forward, v.RouteLoopback = forward, true
		require.NoError(t, h.CreateVeth(v, newSandbox(t, fmt.Sprint("f", i))))
		on, err := h.ForwardsFrom(v.Index)
		require.NoError(t, err)
		require.Equal(t, forward, on)
		on, _ = rtnl.LoopbackRouted(v.Name)
		require.True(t, on)
	}
}

func TestLoopbackRouted(t *testing.T) {
	h := open(t)
	addBridge(t, h, "br-loop")
	for _, path := range []string{"", "none", "../all", "br-none"} {
		_, known := rtnl.LoopbackRouted(path)
		require.False(t, known, path)
	}
	on, known := rtnl.LoopbackRouted("br-loop")
	require.True(t, known)
	require.False(t, on)
	require.NoError(t, h.RouteLoopback("br-loop"))
	on, _ = rtnl.LoopbackRouted("br-loop")
	require.True(t, on)
}
