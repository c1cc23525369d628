package configurator

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// damage runs a command of another program. VETH is the host's end of the only allocation, and
// IFB its ifb.
func damage(t *testing.T, command string) {
	t.Helper()
	links, err := retry.List(netlink.LinkList)
	require.NoError(t, err)
	for _, l := range links {
		switch {
		case l.Type() == "veth" && l.Attrs().Alias != "":
			command = strings.ReplaceAll(command, "VETH", l.Attrs().Name)
		case l.Type() == "ifb":
			command = strings.ReplaceAll(command, "IFB", l.Attrs().Name)
		}
	}
	out, err := exec.Command("sh", "-c", command).CombinedOutput()
	require.NoError(t, err, "%s: %s", command, out)
}

// TestUpdateOfLostPorts: an Update restores the host ports that it names, also if the record has
// them.
func TestUpdateOfLostPorts(t *testing.T) {
	h, a := updateHost(t, "")
	want := published(t)
	require.NotEmpty(t, want)
	before, err := h.Get(t.Context(), a.ID)
	require.NoError(t, err)
	for _, change := range []Change{
		{Publish: a.Ports},
		{Unpublish: []portmap.Port{tcpPort(8082, 0)}}, // it is not published
	} {
		privhost.FlushRuleset(t)
		require.Empty(t, published(t))
		s, err := h.Update(t.Context(), a.ID, change)
		require.NoError(t, err)
		require.Equal(t, want, published(t))
		require.Equal(t, before.Revision, s.Revision)
	}
	privhost.FlushRuleset(t)
	_, err = h.Update(t.Context(), a.ID, Change{Publish: []portmap.Port{tcpPort(8081, 80)}})
	require.NoError(t, err)
	require.Len(t, published(t), len(want)+1)
}

var lostLimits = []string{
	"tc qdisc del dev VETH root", "tc qdisc change dev VETH root handle 1: tbf rate 1gbit burst 100k latency 20ms",
	"ip link del IFB", "tc qdisc del dev VETH ingress", "tc qdisc del dev IFB root", "tc filter del dev VETH parent ffff:",
	"tc qdisc del dev VETH root; tc qdisc del dev VETH ingress; ip link del IFB",
}

// TestUpdateOfLostLimits is the same for limits.
func TestUpdateOfLostLimits(t *testing.T) {
	h, a := shapedHost(t, &slow)
	before, err := h.Get(t.Context(), a.ID)
	require.NoError(t, err)
	for _, command := range lostLimits {
		damage(t, command)
		require.ErrorIs(t, h.CheckOnly(t.Context(), a), ErrUnhealthy, command)
		s, err := h.Update(t.Context(), a.ID, Change{Bandwidth: &slow})
		require.NoError(t, err)
		require.Equal(t, before.Revision, s.Revision)
		h.requireLimits(a, slow)
	}
	damage(t, "tc qdisc del dev VETH root")
	_, err = h.Update(t.Context(), a.ID, Change{Bandwidth: &slow, Publish: []portmap.Port{tcpPort(8081, 80)}})
	require.NoError(t, err)
	h.requireLimits(a, slow)
}

// TestRepairOfLimits: Repair, and a Setup of the same, restore limits in place.
func TestRepairOfLimits(t *testing.T) {
	h, a := shapedHost(t, &slow)
	before, err := h.store.Get(a.ID)
	require.NoError(t, err)
	for _, command := range lostLimits {
		damage(t, command)
		report, err := h.Repair(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{a.ID}, report.Repaired, command)
		h.requireLimits(a, slow)

		damage(t, command)
		s, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
		require.False(t, s.SetUpAgain, command)
		h.requireLimits(a, slow)
	}
	after, err := h.store.Get(a.ID)
	require.NoError(t, err)
	require.Equal(t, string(before.Attachments[0].Result), string(after.Attachments[0].Result))
	link, err := netlink.LinkByName(ifbOf(t))
	require.NoError(t, err)
	require.Contains(t, string(after.Attachments[0].Result), link.Attrs().HardwareAddr.String())

	report, err := h.Restore(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{a.ID}, report.Unchecked)
	_, err = h.Update(t.Context(), a.ID, Change{Bandwidth: &Bandwidth{}})
	require.NoError(t, err)
	report, err = h.Restore(t.Context())
	require.NoError(t, err)
	require.Empty(t, report.Unchecked, "there is nothing to look at one by one")
}

func ifbOf(t *testing.T) string {
	t.Helper()
	links, err := retry.List(netlink.LinkList)
	require.NoError(t, err)
	for _, l := range links {
		if l.Type() == "ifb" {
			return l.Attrs().Name
		}
	}
	t.Fatal("there is no ifb")
	return ""
}

// TestUpdateOfLostPolicy is the same for the policy and the labels.
func TestUpdateOfLostPolicy(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"policy","capabilities":{"policy":true}}`)
	a := h.alloc("a")
	a.Policy = &policy.Policy{Presets: []policy.Preset{policy.Isolated}}
	a.Labels = map[string]string{"tier": "front"}
	first, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	tier := "front"
	for _, change := range []Change{{Policy: a.Policy}, {Labels: map[string]*string{"tier": &tier}}} {
		damage(t, "nft delete table ip allocnet_policy")
		require.ErrorIs(t, h.CheckOnly(t.Context(), a), ErrUnhealthy)
		s, err := h.Update(t.Context(), a.ID, change)
		require.NoError(t, err)
		require.Equal(t, first.Revision, s.Revision)
		require.NoError(t, h.CheckOnly(t.Context(), a))
	}
	require.NoError(t, h.Teardown(t.Context(), a))
	h.settle()
}

// TestUpdateOfBinaries: binaries cannot change host ports. If they have what an Update names, CHECK
// tells whether it is still there.
func TestUpdateOfBinaries(t *testing.T) {
	h := newTestHost(t)
	healthy := behaviours{"ADD": {Result: json.RawMessage(result)}}
	h.network("net", "1.0.0", healthy)
	a := h.alloc("a")
	first, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	same := Change{Unpublish: []portmap.Port{tcpPort(8080, 0)}}
	s, err := h.Update(t.Context(), a.ID, same)
	require.NoError(t, err)
	require.Equal(t, first.Revision, s.Revision)
	require.Contains(t, h.commands(), "one CHECK")
	require.NoError(t, h.Teardown(t.Context(), a))

	broken := behaviours{"ADD": {Result: json.RawMessage(result)}, "CHECK": fakeplugin.Behaviour{Code: 999, Msg: "it is gone"}}
	h.network("net", "1.0.0", broken)
	_, err = h.Setup(t.Context(), a)
	require.NoError(t, err)
	_, err = h.Update(t.Context(), a.ID, same)
	require.ErrorIs(t, err, ErrUnhealthy)
	require.NoError(t, h.Teardown(t.Context(), a))
}

// TestUnpublishOfEveryProtocol: a port without a protocol stands for all of them.
func TestUnpublishOfEveryProtocol(t *testing.T) {
	h, a := updateHost(t, "")
	port := portmap.Port{Value: 8081, To: 80, Protocols: []string{"tcp", "udp", "sctp"}}
	s, err := h.Update(t.Context(), a.ID, Change{Publish: []portmap.Port{port}})
	require.NoError(t, err)
	require.Len(t, s.Ports, 4)
	s, err = h.Update(t.Context(), a.ID, Change{Unpublish: []portmap.Port{{Value: 8081}}})
	require.NoError(t, err)
	require.Len(t, s.Ports, 1)
	require.Equal(t, 8080, s.Ports[0].HostPort)
}

// TestUpdateOfBroken: what cannot be repaired does not prevent an Update, and is a warning.
func TestUpdateOfBroken(t *testing.T) {
	h, a := updateHost(t, "")
	before, err := h.Get(t.Context(), a.ID)
	require.NoError(t, err)
	do(t, "ip route add unreachable "+before.Status.Address)
	defer do(t, "ip route del unreachable "+before.Status.Address)
	status, err := h.Update(t.Context(), a.ID, Change{Unpublish: a.Ports})
	require.NoError(t, err)
	require.Empty(t, status.Ports)
	require.Empty(t, published(t))
	require.Len(t, status.Warnings, 1)
	require.Contains(t, status.Warnings[0], "a route of another program is in its place")
}
