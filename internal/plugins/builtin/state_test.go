package builtin_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/retry"
	"github.com/allocnet/allocnet/sandbox"
)

var (
	random = regexp.MustCompile(`veth\S*|([0-9a-f]{2}:){5}[0-9a-f]{2}|if\d+`)
	// askedFor matches the MAC addresses that the tests ask for, and no random one.
	askedFor = regexp.MustCompile(`02:aa:00:00:00:([0-9a-f]{2})`)
)

// scrub removes random names and addresses, the widths of columns, and the flag onlink, which only the native
// ptp gives its routes, so that a vrf plugin can move them in any order.
func scrub(text string) string {
	text = strings.ReplaceAll(text, " onlink", "")
	text = askedFor.ReplaceAllString(text, "asked-for-$1")
	text = random.ReplaceAllString(text, "RANDOM")
	return regexp.MustCompile(` +`).ReplaceAllString(text, " ")
}

func sorted(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

func clone(t testing.TB, v any) any {
	t.Helper()
	data, err := json.Marshal(v)
	require.NoError(t, err)
	var copied any
	require.NoError(t, json.Unmarshal(data, &copied))
	return copied
}

func removeBridge(t testing.TB) {
	t.Helper()
	link, err := netlink.LinkByName("br0")
	if err == nil {
		require.NoError(t, netlink.LinkDel(link))
	}
}

// requireGone checks that the sandbox has no link, no lease and no
// masquerading.
func requireGone(t testing.TB, a attachment) {
	t.Helper()
	s, err := sandbox.Open(a.netns)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Do(func() error {
		links, err := retry.List(netlink.LinkList)
		require.Len(t, links, 1, "only lo")
		return err
	}))
	for _, entry := range list("/var/lib/cni/networks/net") {
		require.True(t, entry == "lock" || strings.HasPrefix(entry, "last_reserved_ip."), "lease %s is left", entry)
	}
	require.NotContains(t, output(t, "iptables-save", "-t", "nat"), a.id)
	require.NotContains(t, output(t, "nft", "list", "ruleset"), a.id)
}

func list(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// awaitCarrier waits until both ends of the link have a carrier, which the
// kernel reports some time after they are up.
func awaitCarrier(t testing.TB, a attachment, conf object) {
	t.Helper()
	if conf["type"] == "loopback" || conf["disableContainerInterface"] == true {
		return
	}
	s, err := sandbox.Open(a.netns)
	require.NoError(t, err)
	defer s.Close()
	operational := func(name string) bool {
		link, err := netlink.LinkByName(name)
		return err == nil && link.Attrs().OperState == netlink.OperUp
	}
	require.Eventually(t, func() bool {
		inside := false
		require.NoError(t, s.Do(func() error { inside = operational(a.ifName); return nil }))
		return inside && (!hasBridge(conf) || operational("br0"))
	}, 5*time.Second, 5*time.Millisecond)
}

// hasBridge reports whether a plugin attaches the sandbox to a bridge.
func hasBridge(conf object) bool {
	delegate, _ := conf["delegate"].(object)
	return conf["type"] == "bridge" || conf["type"] == "flannel" && delegate["type"] == nil
}
