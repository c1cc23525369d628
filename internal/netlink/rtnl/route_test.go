package rtnl_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
)

// TestSharedAddress: the route of the newest link stands before the others by its
// metric, and no two have the same hash.
func TestSharedAddress(t *testing.T) {
	h := open(t)
	shared := net.IPv4(10, 5, 0, 1)
	var names []string
	for _, name := range []string{"a", "b", "c"} {
		s, v := newSandbox(t, name), veth(name)
		require.NoError(t, h.CreateVeth(v, s))
		defer h.DeleteLink(context.Background(), v.Name)
		index, err := h.Index(v.Name)
		require.NoError(t, err)
		var changes rtnl.Batch
		changes.AddSharedAddress(index, shared)
		require.NoError(t, h.Apply(&changes))
		require.ErrorIs(t, h.Apply(&changes), os.ErrExist)
		names = append([]string{v.Name}, names...)
	}
	hashes := map[uint32]bool{}
	listed := func() (links []string) {
		out, err := exec.Command("ip", "-4", "route", "show", "table", "local", "exact", "10.5.0.1").CombinedOutput()
		require.NoError(t, err, "%s", out)
		for line := range strings.Lines(string(out)) {
			require.Contains(t, line, "local 10.5.0.1 ")
			require.Contains(t, line, "proto kernel scope host src 10.5.0.1")
			fields := strings.Fields(line)
			links = append(links, fields[3])
			metric, err := strconv.ParseUint(fields[slices.Index(fields, "metric")+1], 10, 32)
			require.NoError(t, err, line)
			index, err := h.Index(fields[3])
			require.NoError(t, err)
			hashes[uint32(metric)^uint32(index)] = true
		}
		return links
	}
	require.Equal(t, names, listed())
	require.Len(t, hashes, len(names))
	_, err := h.DeleteLink(t.Context(), names[0])
	require.NoError(t, err)
	require.Equal(t, names[1:], listed(), "it went with its link")
	for i, name := range names[1:] {
		link, err := h.LinkByName(name)
		require.NoError(t, err)
		require.NoError(t, h.AddrDel(link, &netlink.Addr{IPNet: netlink.NewIPNet(shared)}))
		require.Equal(t, names[i+2:], append([]string{}, listed()...), "it went with its address")
	}
}

func TestDropMulticast(t *testing.T) {
	h := open(t)
	s, v := newSandbox(t, "a"), veth("multicast")
	require.NoError(t, h.CreateVeth(v, s))
	peer, err := s.Index("eth0")
	require.NoError(t, err)
	require.NoError(t, s.SetUp(peer))
	require.Eventually(t, func() (up bool) {
		up, err = h.AreOperational(v.Name)
		return err == nil && up
	}, waitTime, pollTime)
	routes := func() string {
		out, err := exec.Command("ip", "-6", "route", "show", "table", "local", "dev", v.Name).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	require.Contains(t, routes(), "ff00::/8")
	var changes rtnl.Batch
	changes.DropMulticast(v.Index)
	for range 2 { // that there is none is no error
		require.NoError(t, h.Apply(&changes))
		require.NotContains(t, routes(), "ff00::/8")
	}
}

// TestBridgeIsOperational: a bridge has a carrier when it and its port are operational. The kernel
// notices that in the background, unless it is asked for the state of the bridge.
func TestBridgeIsOperational(t *testing.T) {
	h := open(t)
	bridge := addBridge(t, h, "brup")
	for i := range 20 {
		name := fmt.Sprintf("b%d", i)
		s, v := newSandbox(t, name), veth(name)
		v.Master = bridge
		require.NoError(t, h.CreateVeth(v, s))
		require.NoError(t, s.SetUp(v.PeerIndex))
		require.Eventually(t, func() bool {
			up, err := h.AreOperational(v.Name, "brup")
			return err == nil && up
		}, waitTime, pollTime)
		state, err := os.ReadFile("/sys/class/net/brup/operstate")
		require.NoError(t, err)
		require.Equal(t, "up\n", string(state), "round %d", i)
		_, err = h.DeleteLink(t.Context(), v.Name)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			up, err := h.AreOperational("brup")
			return err == nil && !up
		}, waitTime, pollTime)
	}
	_, err := h.AreOperational("brup", "absent")
	require.ErrorContains(t, err, `find link "absent"`)
}

// TestDropMulticastAtOnce: the route is not made after it was removed, although the kernel
// notices the carrier of a link in the background. That needs Linux 6.8.
func TestDropMulticastAtOnce(t *testing.T) {
	h := open(t)
	for i := range 40 {
		name := fmt.Sprintf("m%d", i)
		s, v := newSandbox(t, name), veth(name)
		require.NoError(t, h.CreateVeth(v, s))
		require.NoError(t, s.SetUp(v.PeerIndex))
		var changes rtnl.Batch
		changes.DropMulticast(v.Index)
		require.NoError(t, h.Apply(&changes))
		require.Eventually(t, func() bool {
			up, err := h.AreOperational(v.Name)
			return err == nil && up
		}, waitTime, pollTime)
	}
	out, err := exec.Command("ip", "-6", "route", "show", "table", "local").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NotContains(t, string(out), "ff00::/8")
}
