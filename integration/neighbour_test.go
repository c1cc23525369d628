package integration

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

// TestAddressChangesHands: the host and the neighbours on a bridge reach the next holder of an
// address at once, although their neighbour tables still have the MAC of the previous holder.
func TestAddressChangesHands(t *testing.T) {
	with := func(main string, key string, value any) []map[string]any {
		plugins := testbed.Chain(main, testbed.Dual, "")
		plugins[1][key] = value
		return plugins
	}
	binary := append(testbed.Chain("bridge", testbed.Dual, ""), map[string]any{"type": "tuning", "mac": "02:00:00:00:00:78", "aKeyOfTomorrow": true})
	for name, plugins := range map[string][]map[string]any{
		"binary":           binary,
		"binary, policy":   append(slices.Clone(binary), map[string]any{"type": "policy"}),
		"ptp":              testbed.Chain("ptp", testbed.Dual, ""),
		"bridge":           testbed.Chain("bridge", testbed.Dual, ""),
		"bridge with DAD":  with("bridge", "enabledad", true),
		"bridge unguarded": with("bridge", "sourceGuard", false),
		"policy":           append(testbed.Chain("bridge", testbed.Dual, ""), map[string]any{"type": "policy"}),
		"own MAC":          append(testbed.Chain("bridge", testbed.Dual, ""), map[string]any{"type": "tuning", "mac": "02:00:00:00:00:77"}),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, configurator.EngineAuto)
			plugins[1]["capabilities"] = map[string]bool{"ips": true}
			h.Network("net", plugins...)
			plain := testbed.Chain(plugins[1]["type"].(string), testbed.Dual, "")
			plain[1] = plugins[1]
			h.Network("plain", plain...) // on the same bridge
			other := h.Alloc("other")    // without another port, the bridge loses its carrier and its neighbours
			other.Networks, other.IPs = []string{"plain"}, []string{"10.99.0.70/24", "fd00:99::70/64"}
			h.SetUp(other)
			for _, id := range []string{"a", "b"} {
				a := h.Alloc(id)
				a.Networks = []string{map[string]string{"a": "plain", "b": "net"}[id]}
				a.Ports = []portmap.Port{{Value: 8080, To: 80}}
				a.IPs = []string{"10.99.0.77/24", "fd00:99::77/64"}
				h.SetUp(a)
				testbed.Serve(t, a.Netns, "tcp", 80, id)
				for _, at := range []struct {
					from string
					to   string
				}{
					{h.Outside.Path(), testbed.HostPort(testhost.Host4, 8080)},
					{h.Outside.Path(), testbed.HostPort(testhost.Host6, 8080)},
					{other.Netns, "10.99.0.77:80"},
					{other.Netns, "[fd00:99::77]:80"},
				} {
					answer, err := testbed.Ask(testbed.Timeout, at.from, "tcp", at.to)
					require.NoError(t, err, "%s at %s", id, at.to)
					require.Contains(t, answer, id+" ")
				}
				h.TearDown(a)
			}
			h.TearDown(other)
		})
	}
}

// TestReceivesIPv6AtOnce: when Setup returns, the container has joined the
// multicast group of neighbour solicitations for its address. Otherwise the
// first solicitation may be lost, and the next one follows a second later. The
// test runs many times, because the kernel's worker that joins groups is only
// sometimes late.
func TestReceivesIPv6AtOnce(t *testing.T) {
	for _, main := range []string{"bridge", "ptp"} {
		t.Run(main, func(t *testing.T) {
			h := newHost(t, testbed.Native.Engine)
			h.Network("net", testbed.Chain(main, testbed.Dual, "")...)
			a := h.Alloc("a")
			for range 60 {
				address := h.SetUp(a).AddressIPv6
				testbed.Within(t, a.Netns, func() error { return hasJoined(address) })
				h.TearDown(a)
			}
		})
	}
}

// hasJoined returns an error unless the calling thread's namespace has joined
// the solicited-node group of an address.
func hasJoined(address string) error {
	groups, err := os.ReadFile("/proc/thread-self/net/igmp6")
	if err != nil {
		return err
	}
	ip := netip.MustParseAddr(address).As16()
	group := fmt.Sprintf("ff0200000000000000000001ff%x", ip[13:])
	if !strings.Contains(string(groups), group) {
		return fmt.Errorf("%s has not joined %s:\n%s", address, group, groups)
	}
	return nil
}

// TestGatewayInAnotherTable: policy rules of the host that hide the local route to the
// gateway, as a VRF may, only delay Setup.
func TestGatewayInAnotherTable(t *testing.T) {
	h := newHost(t, testbed.Native.Engine)
	rule := func(args string) {
		t.Helper()
		out, err := exec.Command("ip", strings.Fields("-6 "+args)...).CombinedOutput()
		require.NoError(t, err, "ip -6 %s: %s", args, out)
	}
	rule("rule add pref 10 lookup local")
	rule("rule del pref 0 lookup local")
	rule("rule add pref 5 to fd00:99::1 prohibit")
	defer func() {
		rule("rule add pref 0 lookup local")
		rule("rule del pref 10 lookup local")
		rule("rule del pref 5 to fd00:99::1 prohibit")
	}()
	for _, main := range []string{"bridge", "ptp"} {
		h.Network("net", testbed.Chain(main, testbed.Dual, "")...)
		a := h.Alloc(main)
		h.SetUp(a)
		h.TearDownUnreached(a) // because of the rules
	}
}
