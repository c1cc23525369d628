package firewall

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/iptables"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

func requireUnavailable(t *testing.T, err error) {
	t.Helper()
	var coded *types.Error
	require.ErrorAs(t, err, &coded)
	require.EqualValues(t, types.ErrPluginNotAvailable, coded.Code)
	require.NotEmpty(t, coded.Details)
}

func (h *host) del1(id, conf string) error {
	return h.plugin(conf).Del(context.Background(), h.call(id))
}

// restore replaces the content of iptables' filter table.
func (h *host) restore(rules string) {
	h.Helper()
	h.run("sh", "-c", "iptables-restore <<'END'\n"+rules+"\nEND")
}

// owned returns the elements of an attachment.
func (h *host) owned(id string) string {
	h.Helper()
	lines, err := h.Rules.Owned(context.Background(), func(o names.Owner) bool { return o.OfID(id) })
	require.NoError(h, err)
	return strings.Join(lines, "\n")
}

func TestNativeMakesTheOpeningOnce(t *testing.T) {
	h := newHost(t)
	h.add("c1", conf(`"iptablesAdminChainName": "MINE",`, "10.1.0.2/24"))
	require.Equal(t, strings.TrimSpace(`
-P INPUT ACCEPT
-P FORWARD ACCEPT
-P OUTPUT ACCEPT
-N ALLOCNET-FORWARD
-N MINE
-A FORWARD -m comment --comment allocnet -j ALLOCNET-FORWARD
-A ALLOCNET-FORWARD -j MINE
-A ALLOCNET-FORWARD -m mark --mark 0x1000/0x1000 -j ACCEPT
`), strings.TrimSpace(h.run("iptables", "-S")))
	require.NotContains(t, h.run("ip6tables", "-S"), iptables.AcceptChain, "no IPv6 address")
	one := h.rules()
	h.add("c2", conf(`"iptablesAdminChainName": "MINE",`, "10.1.0.3/24"))
	require.Equal(t, one, h.rules())
	h.add("c3", conf(`"iptablesAdminChainName": "MINE",`, "fd00::3/64"))
	require.Contains(t, h.run("ip6tables", "-S"), iptables.AcceptChain)
}

// TestNativeNoticesRemovalAtOnce: an ADD restores the forward-accept rule that another program has removed
// directly before.
func TestNativeNoticesRemovalAtOnce(t *testing.T) {
	h := newHost(t)
	h.Cache = &sdk.TTLCache{}
	for i := range 4 {
		h.add(fmt.Sprint("c", i), conf("", fmt.Sprintf("10.1.0.%d/24", i+2)))
		require.Contains(t, h.run("iptables", "-S", "FORWARD"), "-j "+iptables.AcceptChain)
		h.run("iptables", "-F", "FORWARD")
	}
}

func TestNativeLife(t *testing.T) {
	h := newHost(t)
	first, second := conf("", "10.1.0.2/24", "fd00::2/64"), conf("", "10.1.0.3/24")
	h.add("c1", first)
	h.add("c1", first)
	h.add("c2", second)
	require.Contains(t, h.owned("c1"), "10.1.0.2")
	require.Contains(t, h.owned("c1"), "fd00::2")
	require.NoError(t, h.check("c1", first))
	require.NoError(t, h.check("c2", second))

	h.del("c1", first)
	h.del("c1", first)
	require.Empty(t, h.owned("c1"))
	require.ErrorIs(t, h.check("c1", first), ruleset.ErrMissing)
	require.NoError(t, h.check("c2", second))

	h.run("iptables", "-F", "FORWARD")
	require.ErrorIs(t, h.check("c2", second), iptables.ErrMissing)
	require.NoError(t, h.plugin(second).(sdk.Repairer).Repair(context.Background(), h.call("c2")))
	require.NoError(t, h.check("c2", second))
}

func TestNativeDelWithoutResult(t *testing.T) {
	without := map[string]string{
		"none":       `{"cniVersion": "1.1.0", "name": "net", "type": "firewall"}`,
		"no address": conf(""),
	}
	for name, conf1 := range without {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.add("c1", conf("", "10.1.0.2/24"))
			h.add("c2", conf("", "10.1.0.3/24"))
			h.del("c1", conf1)
			require.Empty(t, h.owned("c1"))
			require.NotEmpty(t, h.owned("c2"))
		})
	}
}

// TestNativeDelOfTheRefused: DEL accepts what ADD refuses.
func TestNativeDelOfTheRefused(t *testing.T) {
	h := newHost(t)
	h.add("c1", conf("", "10.1.0.2/24"))
	h.del("c1", conf(`"ingressPolicy": "none",`, "10.1.0.2/24"))
	require.Empty(t, h.owned("c1"))
	h.add("c1", conf("", "10.1.0.2/24"))
	h.del("c1", `{"cniVersion": "1.1.0", "name": "net", "type": "firewall", "prevResult": {"ips": 1}}`)
	require.Empty(t, h.owned("c1"))
}

func TestNativeWithoutAddressDoesNothing(t *testing.T) {
	h := newHost(t)
	conf := conf(`"ingressPolicy": "isolated",`)
	h.add("c1", conf)
	require.Empty(t, h.run("nft", "list", "ruleset"))
	require.NoError(t, h.check("c1", conf))
}

func TestNativeGC(t *testing.T) {
	h := newHost(t)
	for id, address := range map[string]string{"c1": "10.1.0.2/24", "c2": "10.1.0.3/24"} {
		h.add(id, conf("", address))
	}
	h.add("c3", strings.Replace(conf("", "10.1.0.4/24"), `"name": "net"`, `"name": "other"`, 1))
	gc := h.call("")
	gc.Valid = []types.GCAttachment{{ContainerID: "c2", IfName: "eth0"}}
	require.NoError(t, h.plugin(`{"cniVersion": "1.1.0", "name": "net", "type": "firewall"}`).GC(context.Background(), gc))
	require.Empty(t, h.owned("c1"))
	require.NotEmpty(t, h.owned("c2"))
	require.NotEmpty(t, h.owned("c3"))
}

func TestNativeStatus(t *testing.T) {
	h := newHost(t)
	p := h.plugin(conf(""))
	require.NoError(t, p.Status(context.Background(), h.call("")))
	h.add("c1", conf("", "10.1.0.2/24"))
	require.NoError(t, p.Status(context.Background(), h.call("")))
	closed, err := ruleset.Open()
	require.NoError(t, err)
	require.NoError(t, closed.Close())
	requireUnavailable(t, p.Status(context.Background(), &sdk.CmdArgs{Host: &sdk.Host{Rules: closed}}))
}
