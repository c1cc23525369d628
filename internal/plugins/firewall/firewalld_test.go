package firewall

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/firewalld"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/firewalldtest"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

// besideFirewalld starts firewalld on a host.
func (h *host) besideFirewalld(t *testing.T, backend string) (*firewalldtest.Bus, *firewalldtest.Firewalld) {
	bus := firewalldtest.StartBus(t)
	f := bus.Start(backend)
	h.Firewalld = &firewalld.Client{}
	return bus, f
}

// runs waits until the plugins have noticed that firewalld runs, or has ended.
func (h *host) runs(want bool) {
	h.Helper()
	require.Eventually(h, func() bool {
		runs, err := h.Firewalld.Runs(context.Background())
		return err == nil && runs == want
	}, 10*time.Second, time.Millisecond)
}

func (h *host) repair(id, conf string) error {
	h.Helper()
	return h.plugin(conf).(sdk.Repairer).Repair(context.Background(), h.call(id))
}

func TestFirewalldTraffic(t *testing.T) {
	h := newRouter(t)
	a, b, outside := h.attach("a", "br0", 1), h.attach("b", "br1", 2), h.attach("outside", "br9", 9)
	for i, backend := range []string{"nftables", "iptables"} {
		t.Run(backend, func(t *testing.T) {
			skip.InTurn(t, i, 2)
			h.trafficBesideFirewalld(t, backend, a, b, outside)
		})
	}
}

func (h *host) trafficBesideFirewalld(t *testing.T, backend string, a, b, outside *attached) {
	_, f := h.besideFirewalld(t, backend)
	conf := resultOf(a, "")
	h.requireReach(false, a, outside, "firewalld forwards nothing by itself")

	h.add("a", conf)
	h.add("a", conf)
	require.ElementsMatch(t, []string{a.v4 + "/32", a.v6 + "/128"}, f.Sources("trusted"))
	h.requireReach(true, a, outside, "the zone accepts")
	h.requireReach(false, outside, a, "nobody asked")
	require.NoError(t, h.check("a", conf))
	require.NoError(t, h.reference("CHECK", "a", conf))

	f.Reload()
	require.ErrorContains(t, h.check("a", conf), "is not in zone")
	h.requireReach(false, a, outside, "the sources are gone")
	require.NoError(t, h.repair("a", conf))
	require.NoError(t, h.check("a", conf))
	h.requireReach(true, a, outside, "the zone accepts again")
	h.requireGuards(t, a, b)

	h.del("a", conf)
	h.del("a", conf)
	require.Empty(t, f.Sources("trusted"))
	require.Empty(t, h.owned("a"))
	h.requireReach(false, a, outside, "nothing is accepted any more")
}

// requireGuards guards the bridges of two attachments, of which the first is added.
func (h *host) requireGuards(t *testing.T, a, b *attached) {
	open := onBridge(resultOf(b, ""), "br1")
	h.add("b", open)
	h.requireReach(true, a, b, "the zone accepts both")
	h.add("a", resultOf(a, `"ingressPolicy": "same-bridge",`))
	guarded := onBridge(resultOf(b, `"ingressPolicy": "same-bridge",`), "br1")
	h.add("b", guarded)
	require.NoError(t, h.check("b", guarded))
	h.requireReach(false, a, b, "both bridges are guarded")
	h.del("b", guarded)
	h.run("nft", "flush", "set", "ip", "allocnet", "guarded")
	h.run("nft", "flush", "set", "ip6", "allocnet", "guarded")
}

// TestFirewalldAndTheReference: each plugin removes what the other added.
func TestFirewalldAndTheReference(t *testing.T) {
	h := newHost(t)
	_, f := h.besideFirewalld(t, "nftables")
	conf := conf(`"firewalldZone": "work",`, "10.1.0.2/24", "fd00::2/64")
	sources := []string{"10.1.0.2/32", "fd00::2/128"}
	require.NoError(t, h.reference("ADD", "a", conf))
	require.ElementsMatch(t, sources, f.Sources("work"))
	require.NoError(t, h.check("a", conf))
	h.del("a", conf)
	require.Empty(t, f.Sources("work"))
	require.ErrorContains(t, h.check("a", conf), "is not in zone")

	h.add("a", conf)
	require.ElementsMatch(t, sources, f.Sources("work"))
	require.Empty(t, f.Sources("trusted"))
	require.NotContains(t, h.rules(), "ALLOCNET-FORWARD", "another zone may drop packets")
	require.NoError(t, h.reference("DEL", "a", conf))
	require.Empty(t, f.Sources("work"))
	h.del("a", conf)
	require.Empty(t, h.owned("a"))
}

// TestFirewalldDelByOwner: the tables show which addresses are in a zone.
func TestFirewalldDelByOwner(t *testing.T) {
	h := newHost(t)
	_, f := h.besideFirewalld(t, "nftables")
	h.add("a", conf("", "10.1.0.2/24"))
	h.add("b", conf("", "10.1.0.3/24"))
	h.del("a", `{"cniVersion": "1.1.0", "name": "net", "type": "firewall"}`)
	require.Equal(t, []string{"10.1.0.3/32"}, f.Sources("trusted"))

	h.add("c", conf("", "10.1.0.3/24"))
	h.del("b", conf("", "10.1.0.3/24"))
	require.Equal(t, []string{"10.1.0.3/32"}, f.Sources("trusted"), "it is the next holder's")

	h.del("c", conf(`"firewalldZone": "work",`, "10.1.0.3/24"))
	require.Empty(t, f.Sources("trusted"), "the zone of its ADD")

	h.add("d", conf("", "10.1.0.4/24"))
	p := h.plugin(`{"cniVersion": "1.1.0", "name": "net", "type": "firewall"}`)
	require.NoError(t, p.GC(context.Background(), h.call("")))
	require.Empty(t, f.Sources("trusted"))

	h.add("e", conf("", "10.1.0.5/24"))
	h.run("nft", "delete", "table", "ip", "allocnet")
	h.del("e", conf("", "10.1.0.5/24"))
	require.Empty(t, f.Sources("trusted"), "no element tells")
}

// TestFirewalldFlushed: without its table, firewalld neither accepts nor
// changes anything.
func TestFirewalldFlushed(t *testing.T) {
	h := newHost(t)
	bus, f := h.besideFirewalld(t, "nftables")
	one := conf("", "10.1.0.2/24")
	h.add("a", one)
	privhost.FlushRuleset(h.T)
	require.Error(t, h.check("a", one))
	h.del("a", one)
	f.End()
	f = bus.Start("nftables")
	h.runs(true)
	require.Empty(t, f.Sources("trusted"))
	h.add("a", one)
	require.Equal(t, []string{"10.1.0.2/32"}, f.Sources("trusted"))
	h.del("a", one)
	require.Empty(t, f.Sources("trusted"))
}

// TestFirewalldAddFails: a failed ADD leaves nothing. A failed Repair changes
// nothing.
func TestFirewalldAddFails(t *testing.T) {
	h := newHost(t)
	_, f := h.besideFirewalld(t, "nftables")
	h.add("other", conf(`"firewalldZone": "work",`, "fd00::2/64"))
	two := conf("", "10.1.0.2/24", "fd00::2/64")
	_, err := h.plugin(two).Add(context.Background(), h.call("a"))
	require.ErrorContains(t, err, "ZONE_CONFLICT")
	require.Empty(t, f.Sources("trusted"))
	require.NotContains(t, h.owned("a"), "10.1.0.2")

	h.add("b", conf("", "10.1.0.3/24"))
	require.ErrorContains(t, h.repair("b", conf("", "10.1.0.3/24", "fd00::2/64")), "ZONE_CONFLICT")
	require.Equal(t, []string{"10.1.0.3/32"}, f.Sources("trusted"))
	require.Contains(t, h.owned("b"), "10.1.0.3 (firewalld zone trusted)")
}

// TestFirewalldOtherZone: ADD warns of addresses that are in another zone.
func TestFirewalldOtherZone(t *testing.T) {
	h := newHost(t)
	_, f := h.besideFirewalld(t, "nftables")
	var log bytes.Buffer
	h.Log = hclog.New(&hclog.LoggerOptions{Output: &log})
	h.add("a", conf("", "10.1.0.2/24"))
	require.Empty(t, log.String())
	f.Bind("drop", "10.1.0.3")
	f.Bind("block", "fd00::/64")
	h.add("b", conf("", "10.1.0.3/24", "fd00::2/64"))
	require.Regexp(t, "address=10.1.0.3 zone=drop", log.String())
	require.Regexp(t, "address=fd00::2 zone=block", log.String())
	require.NotContains(t, log.String(), "10.1.0.2")
}

// TestFirewalldComesAndGoes starts and stops firewalld between operations.
func TestFirewalldComesAndGoes(t *testing.T) {
	h := newHost(t)
	bus, f := h.besideFirewalld(t, "nftables")
	one, two := conf("", "10.1.0.2/24"), conf("", "10.1.0.3/24")
	h.add("a", one)
	f.End()
	h.runs(false)
	require.Error(t, h.check("a", one), "firewalld removes the rules of others as well")
	require.NoError(t, h.repair("a", one))
	require.NoError(t, h.check("a", one))
	h.del("a", one)
	require.Empty(t, h.owned("a"))

	h.add("a", one)
	h.add("b", two)
	f = bus.Start("nftables")
	h.runs(true)
	require.Error(t, h.check("a", one))
	require.NoError(t, h.repair("a", one))
	require.NoError(t, h.check("a", one))
	h.del("a", one)
	h.del("b", two)
	require.Empty(t, f.Sources("trusted"))
	require.Empty(t, h.owned("a")+h.owned("b"))
}

// TestFirewalldUnreachable: an address that may be in a zone is not released.
func TestFirewalldUnreachable(t *testing.T) {
	h := newHost(t)
	_, f := h.besideFirewalld(t, "nftables")
	in, out := conf("", "10.1.0.2/24"), conf("", "10.1.0.3/24")
	h.add("a", in)
	reachable := h.Firewalld
	h.Firewalld = &firewalld.Client{}
	t.Run("no bus", func(t *testing.T) {
		t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+filepath.Join(t.TempDir(), "none"))
		require.ErrorIs(t, h.check("a", in), firewalld.ErrUnreachable)
		require.ErrorIs(t, h.del1("a", in), firewalld.ErrUnreachable)
		require.ErrorIs(t, h.del1("a", conf("")), firewalld.ErrUnreachable)
		require.Contains(t, h.owned("a"), "10.1.0.2")
		_, err := h.plugin(conf(`"backend": "firewalld",`, "10.1.0.3/24")).Add(context.Background(), h.call("b"))
		require.ErrorIs(t, err, firewalld.ErrUnreachable)
		h.add("b", out)
		require.NoError(t, h.check("b", out))
		h.del("b", out)
		require.Empty(t, h.owned("b"), "it was in no zone")
	})
	h.Firewalld = reachable
	h.del("a", in)
	require.Empty(t, f.Sources("trusted"))
}

func TestFirewalldStatus(t *testing.T) {
	h := newHost(t)
	bus := firewalldtest.StartBus(t)
	h.Firewalld = &firewalld.Client{}
	ctx := context.Background()
	required := conf(`"backend": "firewalld",`)
	requireUnavailable(t, h.plugin(required).Status(ctx, h.call("")))
	_, err := h.plugin(conf(`"backend": "firewalld",`, "10.1.0.2/24")).Add(ctx, h.call("a"))
	require.ErrorIs(t, err, errNotRunning)
	h.del("a", conf(`"backend": "firewalld",`, "10.1.0.2/24"))
	bus.Start("nftables")
	h.runs(true)
	require.NoError(t, h.plugin(required).Status(ctx, h.call("")))
}
