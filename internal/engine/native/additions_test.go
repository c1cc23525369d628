package native_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/internal/engine"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/netlink/sock"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// publishing returns a request that publishes a host port of a container.
func (h *testHost) publishing(ifName string, hostPort int) *engine.Request {
	ranges := object{"type": "host-local", "subnet": "10.77.0.0/24", "dataDir": h.dir + "/leases"}
	r := h.request(network(h.t, "net", "1.0.0", nil,
		object{"type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "ipam": ranges},
		object{"type": "firewall"},
		object{"type": "portmap", "snat": true, "capabilities": object{"portMappings": true}}))
	r.ID, r.InterfacePrefix, r.Instance = "web-"+ifName, ifName, new(string)
	r.Capabilities = map[string]json.RawMessage{
		"portMappings": json.RawMessage(fmt.Sprintf(`[{"hostPort":%d,"containerPort":80,"protocol":"udp"}]`, hostPort)),
	}
	return r
}

// transactions returns a number that grows by one with each transaction of nf_tables.
func transactions(t *testing.T) (generation uint32) {
	t.Helper()
	const getGeneration, generationID = 16, 1 // NFT_MSG_GETGEN, NFTA_GEN_ID
	err := sock.Lend(unix.NETLINK_NETFILTER, func(s *sock.Socket) error {
		return sock.Build(func(r *sock.Requests) {
			r.BeginNetfilter("", unix.NFNL_SUBSYS_NFTABLES, getGeneration, 0, unix.AF_UNSPEC)
		}, func(r *sock.Requests) error {
			return s.Exchange(t.Context(), r, func(_ int, payload []byte, err error) {
				require.NoError(t, err)
				sock.EachNetfilterAttribute(payload, func(kind uint16, value []byte) {
					if kind == generationID {
						generation = sock.Uint32BE(value)
					}
				})
			})
		})
	})
	require.NoError(t, err)
	require.NotZero(t, generation)
	return generation
}

// TestOneTransaction: ADD adds the elements of all plugins in one transaction.
func TestOneTransaction(t *testing.T) {
	h := newTestHost(t)
	first, second := h.publishing("a", 8080), h.publishing("b", 8081)
	h.add(first) // makes the tables
	before := transactions(t)
	h.add(second)
	require.EqualValues(t, 1, transactions(t)-before)
	require.NoError(t, h.Check(t.Context(), second))
	require.NoError(t, h.Del(t.Context(), second))
	require.NoError(t, h.Del(t.Context(), first))
}

// TestHostPortsRouteLoopback: the link of a routed network has route_localnet if there are host
// ports, with and without the source guard, and there are rules that guard the loopback.
func TestHostPortsRouteLoopback(t *testing.T) {
	h := newTestHost(t)
	rules, err := ruleset.Open()
	require.NoError(t, err)
	defer rules.Close()
	for _, guarded := range []bool{true, false} {
		for ports, want := range map[string]string{`[]`: "0\n", `[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]`: "1\n"} {
			r := h.request(network(h.t, "routed", "1.0.0", nil,
				object{"type": "ptp", "sourceGuard": guarded, "ipam": object{"type": "host-local", "subnet": "10.78.0.0/24", "dataDir": h.dir + "/leases"}},
				object{"type": "portmap", "snat": true, "capabilities": object{"portMappings": true}}))
			r.ID, r.InterfacePrefix, r.Instance = "routed", "eth", new(string)
			r.Capabilities = map[string]json.RawMessage{"portMappings": json.RawMessage(ports)}
			h.add(r)
			name := names.Owner{Network: "routed", ID: r.ID, IfName: r.IfName(0)}.Veth()
			value, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + name + "/route_localnet")
			require.NoError(t, err)
			require.Equal(t, want, string(value), ports)
			if ports != `[]` {
				require.NoError(t, rules.CheckGuard(t.Context(), ruleset.IPv4))
			}
			require.NoError(t, h.Del(t.Context(), r))
		}
	}
}

// TestTakenPortNamesPlugin: although the elements of all plugins are added together, the
// error names the plugin that failed, and DEL removes what the others have added.
func TestTakenPortNamesPlugin(t *testing.T) {
	h := newTestHost(t)
	first, second := h.publishing("a", 8080), h.publishing("b", 8080)
	h.add(first)
	_, err := h.Add(t.Context(), second)
	var taken *ruleset.PortTakenError
	require.ErrorAs(t, err, &taken)
	require.ErrorContains(t, err, `plugin "portmap": `)
	var failed *engine.AddError
	require.ErrorAs(t, err, &failed)
	require.True(t, failed.Reached(engine.Place{Plugin: 2}))
	require.NoError(t, h.Del(t.Context(), second))
	require.NoError(t, h.Check(t.Context(), first))
	require.NoError(t, h.Del(t.Context(), first))
	second = h.publishing("b", 8080)
	h.add(second)
	require.NoError(t, h.Del(t.Context(), second))
}

// TestZoneIsAddedAtOnce: addresses may enter a zone of firewalld only after their
// elements were added, so these elements do not wait for the end of the chain. Added is
// called after the others were added.
func TestZoneIsAddedAtOnce(t *testing.T) {
	newTestHost(t)
	host, err := sdk.OpenHost(hclog.NewNullLogger())
	require.NoError(t, err)
	defer host.Close()
	addition := func(address, zone string) (sdk.Addition, netip.Addr) {
		a := netip.MustParseAddr(address)
		owner := names.Owner{Network: "net", ID: "web", IfName: "eth0"}
		return sdk.Addition{Elements: &ruleset.Elements{Owner: owner, Open: []netip.Addr{a}, Zone: zone}}, a
	}
	zoned, inZone := addition("10.77.0.2", "trusted")
	plain, other := addition("10.77.0.3", "")
	second, third := addition("10.77.0.4", "")
	added := 0
	second.Added = func(context.Context) error { added++; return nil }
	args := &sdk.CmdArgs{Host: host, Additions: &sdk.Additions{}}
	require.NoError(t, args.AddElements(t.Context(), zoned))
	require.NoError(t, args.AddElements(t.Context(), plain))
	require.NoError(t, args.AddElements(t.Context(), second))
	open := func() int {
		list, err := host.Rules.OpenAddresses(t.Context(), []netip.Addr{inZone, other, third})
		require.NoError(t, err)
		return len(list)
	}
	require.Equal(t, 1, open())
	require.Zero(t, added)
	require.NoError(t, args.Additions.Apply(t.Context(), host))
	require.Equal(t, 3, open())
	require.Equal(t, 1, added)
	for _, n := range []sdk.Addition{zoned, plain, second} {
		require.NoError(t, host.Rules.Del(t.Context(), n.Elements))
	}
}
