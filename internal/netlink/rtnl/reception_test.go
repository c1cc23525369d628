package rtnl_test

import (
	"context"
	"encoding/binary"
	"net"
	"os/exec"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/sock"
)

// routes has a local route over link 7 from a number of lookups and of lists on; never if that is 0.
type routes struct {
	lookup, list   int
	lookups, lists int
}

func (r *routes) Exchange(_ context.Context, _ *sock.Requests, each func(int, []byte, error)) error {
	if r.lookups++; r.lookup == 0 || r.lookups < r.lookup {
		each(0, nil, &sock.Error{Errno: unix.ENETUNREACH})
		return nil
	}
	each(0, localRoute, nil)
	return nil
}

func (r *routes) Dump(_ context.Context, _ *sock.Requests, each func([]byte) error) error {
	if r.lists++; r.list == 0 || r.lists < r.list {
		return nil
	}
	return each(localRoute)
}

var (
	localAddress = net.ParseIP("fd00::1")
	localRoute   = func() []byte {
		m := make([]byte, unix.SizeofRtMsg)
		m[0], m[1], m[7] = unix.AF_INET6, 128, unix.RTN_LOCAL
		m = append(binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(m, 20), unix.RTA_DST), localAddress...)
		m = binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(m, 8), unix.RTA_OIF)
		return binary.NativeEndian.AppendUint32(m, 7)
	}()
)

// TestAwaitLateReception: the wait lasts until the kernel has the route, which may take seconds, and no longer than
// until a list shows a route that a lookup does not find. The usual case needs one lookup and no list.
func TestAwaitLateReception(t *testing.T) {
	for name, test := range map[string]struct{ kernel, want routes }{
		"at once": {routes{lookup: 1}, routes{lookups: 1}},
		"soon":    {routes{lookup: 15}, routes{lookups: 15}},
		"late":    {routes{lookup: 1000}, routes{lookups: 1000, lists: 1000 / 16}},
		"hidden":  {routes{list: 2}, routes{lookups: 32, lists: 2}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				require.NoError(t, rtnl.AwaitReception(t.Context(), &test.kernel, &test.kernel, 7, []net.IP{net.IPv4(10, 1, 2, 3), localAddress}))
				require.Equal(t, []int{test.want.lookups, test.want.lists}, []int{test.kernel.lookups, test.kernel.lists})
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		err := rtnl.AwaitReception(t.Context(), &routes{lookup: 1}, &routes{list: 1}, 8, []net.IP{localAddress})
		require.ErrorIs(t, err, context.DeadlineExceeded, "the route leads over another link")
	})
}

// TestAwaitHiddenReception: policy rules of the host hide the local route from a lookup.
func TestAwaitHiddenReception(t *testing.T) {
	h := open(t)
	v := veth("hidden")
	require.NoError(t, h.CreateVeth(v, newSandbox(t, "hidden")))
	for _, args := range [][]string{{"add", "pref", "100", "lookup", "local"}, {"del", "pref", "0"}, {"add", "pref", "10", "to", "fd00::1", "prohibit"}} {
		ipRule(t, args...)
	}
	t.Cleanup(func() {
		for _, args := range [][]string{{"del", "pref", "10"}, {"add", "pref", "0", "lookup", "local"}, {"del", "pref", "100"}} {
			ipRule(t, args...)
		}
	})
	var changes rtnl.Batch
	changes.AddAddress(v.Index, &net.IPNet{IP: localAddress, Mask: net.CIDRMask(128, 128)}, rtnl.NoDAD)
	require.NoError(t, h.Apply(&changes))
	require.NoError(t, h.AwaitReception(t.Context(), v.Index, localAddress))
	require.Contains(t, groups(t), "ff0200000000000000000001ff000001")
}

func ipRule(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.Command("ip", append([]string{"-6", "rule"}, args...)...).CombinedOutput()
	require.NoError(t, err, "%s: %s", args, out)
}
