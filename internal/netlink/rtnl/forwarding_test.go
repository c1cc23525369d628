package rtnl_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

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
	of := map[string]func(rtnl.Forwarding) bool{
		"net/ipv4/ip_forward":                 func(f rtnl.Forwarding) bool { return f.IPv4 },
		"net/ipv4/conf/br-forward/forwarding": func(f rtnl.Forwarding) bool { return f.IPv4Link },
		"net/ipv6/conf/all/forwarding":        func(f rtnl.Forwarding) bool { return f.IPv6 },
	}
	all := func(value string) {
		for _, path := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			setSysctl(t, path, value)
		}
	}
	for off := range of {
		all("1")
		setSysctl(t, off, "0")
		found, err := h.Forwarding(index, true, true)
		require.NoError(t, err)
		for path, forwards := range of {
			value, err := os.ReadFile("/proc/sys/" + path)
			require.NoError(t, err)
			require.Equal(t, string(value) == "1\n", forwards(found), "%s is %s while %s is 0", path, value, off)
		}
		only4, err := h.Forwarding(index, true, false)
		require.NoError(t, err)
		require.Equal(t, rtnl.Forwarding{IPv4: found.IPv4, IPv4Link: found.IPv4Link, IPv6: true}, only4)
		only6, err := h.Forwarding(index, false, true)
		require.NoError(t, err)
		require.Equal(t, rtnl.Forwarding{IPv4: true, IPv4Link: true, IPv6: found.IPv6}, only6)
	}
	_, err := h.Forwarding(1<<20, true, false)
	require.Error(t, err)
}

func TestEnableForwardingFrom(t *testing.T) {
	h := open(t)
	index := addBridge(t, h, "br-forward")
	setSysctl(t, "net/ipv4/ip_forward", "0")
	require.NoError(t, h.EnableForwardingFrom(index))
	found, err := h.Forwarding(index, true, false)
	require.NoError(t, err)
	require.True(t, found.IPv4Link)
	require.False(t, found.IPv4, "of the other links nothing is changed")
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
		found, err := h.Forwarding(v.Index, true, false)
		require.NoError(t, err)
		require.Equal(t, forward, found.IPv4Link)
		on, _ := rtnl.LoopbackRouted(v.Name)
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
