package builtin_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// TestAddressOfAnother: IPAM plugins such as static assign an address as often as they are asked. The
// second attachment is refused before anything is changed, and its DEL leaves what the first one has.
func TestAddressOfAnother(t *testing.T) {
	ipam := object{"type": "static", "addresses": []object{{"address": "10.81.0.5/24", "gateway": "10.81.0.1"}}}
	masquerading := func(kind string) object {
		return object{"cniVersion": "1.0.0", "name": "net", "type": kind, "ipMasq": true, "ipam": ipam}
	}
	for _, conf := range []object{with(with(masquerading("bridge"), "bridge", "br0"), "isGateway", true), masquerading("ptp")} {
		t.Run(conf["type"].(string), func(t *testing.T) {
			_, native := runners(t)
			native.t = t
			forgetMasquerading(t)
			t.Cleanup(func() { forgetMasquerading(t) })
			first, second := sandboxed(t, "first"), sandboxed(t, "second")
			result := withResult(t, conf, native.add(first, conf))
			before := hostState(t)
			sameContainer := first
			sameContainer.ifName = "eth1"
			for _, a := range []attachment{second, sameContainer} {
				_, err := native.run("ADD", a, conf)
				require.ErrorIs(t, err, allocnet.ErrAddressUnavailable)
				require.ErrorContains(t, err, "10.81.0.5")
				require.ErrorContains(t, err, "allocnet:net/first/eth0")
				_, err = native.run("DEL", a, conf)
				require.NoError(t, err)
				require.Equal(t, before, hostState(t))
			}
			for _, command := range []string{"CHECK", sdk.Repair, "CHECK"} {
				_, err := native.run(command, first, result)
				require.NoError(t, err, command)
			}

			// The link of an attachment disappears with its network namespace. Its elements stay.
			link, err := netlink.LinkByName(names.Owner{Network: "net", ID: first.id, IfName: first.ifName}.Veth())
			require.NoError(t, err)
			require.NoError(t, netlink.LinkDel(link))
			gone, taken := result, native.add(second, conf)
			_, err = native.run("DEL", first, gone)
			require.NoError(t, err)
			taken = withResult(t, conf, taken)
			_, err = native.run("CHECK", second, taken)
			require.NoError(t, err)
			_, err = native.run("DEL", second, taken)
			require.NoError(t, err)
		})
	}
}

// TestAddressOfAnotherBehindABridge: a bridge on which the host has no address may have addresses that
// another network of the host has.
func TestAddressOfAnotherBehindABridge(t *testing.T) {
	_, native := runners(t)
	forgetMasquerading(t)
	t.Cleanup(func() { forgetMasquerading(t) })
	ipam := object{"type": "static", "addresses": []object{{"address": "10.81.0.5/24", "gateway": "10.81.0.1"}}}
	routed := object{"cniVersion": "1.0.0", "name": "routed", "type": "ptp", "ipMasq": true, "ipam": ipam}
	separate := object{"cniVersion": "1.0.0", "name": "separate", "type": "bridge", "bridge": "br0", "ipam": ipam}
	a, b := sandboxed(t, "first"), sandboxed(t, "second")
	one := withResult(t, routed, native.add(a, routed))
	other := withResult(t, separate, native.add(b, separate))
	_, err := native.run("CHECK", a, one)
	require.NoError(t, err)
	_, err = native.run("DEL", b, other)
	require.NoError(t, err)
	_, err = native.run("CHECK", a, one)
	require.NoError(t, err)
	_, err = native.run("DEL", a, one)
	require.NoError(t, err)
}

// hostState describes what attachments have on the host.
func hostState(t *testing.T) string {
	t.Helper()
	return output(t, "nft", "--stateless", "list", "ruleset") + output(t, "ip", "-br", "link") + output(t, "ip", "-br", "addr") +
		output(t, "ip", "route") + output(t, "ip", "neigh")
}
