package builtin_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/sandbox"
)

// veths are configurations of the plugins that make a veth.
func veths() map[string]object {
	return map[string]object{
		"bridge": gateway(),
		"ptp":    {"cniVersion": "1.0.0", "name": "net", "type": "ptp", "ipMasq": true, "ipam": hostLocal("10.9.0.0/24")},
	}
}

// linkOf returns the host's end of the veth in a result.
func linkOf(t testing.TB, result object) netlink.Link {
	t.Helper()
	for _, itf := range result["interfaces"].([]any) {
		if name := itf.(object)["name"].(string); strings.HasPrefix(name, "veth") {
			link, err := netlink.LinkByName(name)
			require.NoError(t, err)
			return link
		}
	}
	require.Fail(t, "the result has no veth")
	return nil
}

// leaveNoLease removes the leases, with the last reserved address, which decides about the addresses
// of later tests.
func leaveNoLease(t testing.TB) {
	t.Helper()
	t.Cleanup(func() { require.NoError(t, os.RemoveAll("/var/lib/cni/networks/net")) })
}

// rename gives a link another name, as an operator can.
func rename(t testing.TB, link netlink.Link) {
	t.Helper()
	require.NoError(t, netlink.LinkSetDown(link))
	require.NoError(t, netlink.LinkSetName(link, "renamed0"))
	require.NoError(t, netlink.LinkSetUp(link))
}

// TestDelOfARenamedLink: DEL removes the host's end of its veth whatever its name is, with and
// without a result, and no other.
func TestDelOfARenamedLink(t *testing.T) {
	for kind, conf := range veths() {
		for name, previous := range map[string]bool{"with the result": true, "without a result": false} {
			t.Run(kind+" "+name, func(t *testing.T) {
				_, native := runners(t)
				defer removeBridge(t)
				leaveNoLease(t)
				a, other := sandboxed(t, "renamed"), sandboxed(t, "other")
				result, otherResult := native.add(a, conf), native.add(other, conf)
				link := linkOf(t, result)
				rename(t, link)

				// The DEL of another container with this namespace does not touch the link.
				late := a
				late.id = "late"
				_, err := native.run("DEL", late, conf)
				require.NoError(t, err)
				_, err = netlink.LinkByName("renamed0")
				require.NoError(t, err)

				del := conf
				if previous {
					del = with(conf, "prevResult", result)
				}
				_, err = native.run("DEL", a, del)
				require.NoError(t, err)
				_, err = netlink.LinkByName("renamed0")
				require.ErrorAs(t, err, &netlink.LinkNotFoundError{})
				linkOf(t, otherResult)
				_, err = native.run("DEL", other, with(conf, "prevResult", otherResult))
				require.NoError(t, err)
				requireGone(t, a)
			})
		}
	}
}

// TestDelOfAMovedLink: DEL removes a veth whose host end another program has moved to a third
// namespace.
func TestDelOfAMovedLink(t *testing.T) {
	for kind, conf := range veths() {
		t.Run(kind, func(t *testing.T) {
			_, native := runners(t)
			defer removeBridge(t)
			leaveNoLease(t)
			a, third := sandboxed(t, "gone-away"), sandboxed(t, "third")
			result := native.add(a, conf)
			s, err := sandbox.Open(third.netns)
			require.NoError(t, err)
			defer s.Close()
			require.NoError(t, s.With(func(fd int) error { return netlink.LinkSetNsFd(linkOf(t, result), fd) }))

			_, err = native.run("DEL", a, with(conf, "prevResult", result))
			require.NoError(t, err)
			requireGone(t, a)
			requireGone(t, third)
		})
	}
}

// TestDisconnectOfARenamedLink: nothing passes a disconnected link, whatever its name is.
func TestDisconnectOfARenamedLink(t *testing.T) {
	for kind, conf := range veths() {
		t.Run(kind, func(t *testing.T) {
			_, native := runners(t)
			defer removeBridge(t)
			leaveNoLease(t)
			a := sandboxed(t, "renamed")
			conf = with(conf, "sourceGuard", false)
			result := native.add(a, conf)
			rename(t, linkOf(t, result))

			_, err := native.run(sdk.Disconnect, a, with(conf, "prevResult", result))
			require.NoError(t, err)
			link, err := netlink.LinkByName("renamed0")
			require.NoError(t, err)
			require.Equal(t, netlink.LinkOperState(netlink.OperDown), link.Attrs().OperState)
			_, err = native.run("DEL", a, with(conf, "prevResult", result))
			require.NoError(t, err)
			requireGone(t, a)
		})
	}
}
