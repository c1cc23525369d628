package cleanup

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/netlink/announce"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
	"github.com/allocnet/allocnet/internal/netlink/ruleset"
	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// TestRoutes: routes are found by their elements, with and without a known network. Without
// elements, routes to addresses that the allocation alone has are found in the tables of its
// networks.
func TestRoutes(t *testing.T) {
	h := newTestHost(t)
	kernel := rtnl.OpenHost()
	defer kernel.Close()
	rules, err := ruleset.Open()
	require.NoError(t, err)
	defer rules.Close()
	h.run("ip", "link", "add", "br0", "type", "bridge")
	h.run("ip", "link", "set", "br0", "up")
	index, err := kernel.Index("br0")
	require.NoError(t, err)
	announcer := announce.Announcer{Kernel: kernel, Rules: rules}
	add := func(id string, addresses ...string) {
		var routes []announce.Route
		for _, a := range addresses {
			routes = append(routes, announce.Route{Route: ruleset.Route{Address: netip.MustParsePrefix(a), Table: 100, Protocol: 91, Link: index}})
		}
		require.NoError(t, announcer.Add(t.Context(), names.Owner{Network: "net", ID: id, IfName: "eth0"}, routes))
	}
	table := func() string {
		out, _ := exec.Command("ip", "route", "show", "table", "100").Output() // fails without the table
		var destinations []string
		for line := range strings.Lines(string(out)) {
			destinations = append(destinations, strings.Fields(line)[0])
		}
		return strings.Join(destinations, " ")
	}
	conf := `{"name": "net", "plugins": [{"type": "bridge", "ipam": {"type": "host-local", "dataDir": "` + h.dataDir + `"}}, {"type": "routes", "table": 100}]}`
	known := func(addresses ...string) Target {
		var ips []string
		for _, a := range addresses {
			ips = append(ips, fmt.Sprintf(`{"address": %q}`, a))
		}
		return Target{ID: "a", Attachments: []Attachment{{Network: "net", IfName: "eth0", Config: []byte(conf),
			Result: []byte(`{"cniVersion": "1.0.0", "ips": [` + strings.Join(ips, ",") + `]}`)}}}
	}
	const element = `nftables-element table allocnet announced address %s (table 100) of allocnet:net/a/eth0`
	for _, target := range []Target{{ID: "a"}, known(), known("10.1.0.2/24")} {
		add("a", "10.1.0.2/32", "10.2.0.2/24")
		add("b", "10.1.0.3/32", "10.2.0.3/24")
		require.ElementsMatch(t, []string{
			fmt.Sprintf(element, "10.1.0.2"), fmt.Sprintf(element, "10.2.0.2"),
			`route table 100 10.1.0.2/32 (network "net")`, `route table 100 10.2.0.0/24 (network "net")`,
		}, h.audit(target))
		require.ElementsMatch(t, []string{`route table 100 10.1.0.2/32 (network "net")`, `route table 100 10.2.0.0/24 (network "net")`}, h.force(target))
		require.Equal(t, "10.1.0.3 10.2.0.0/24", table())
		require.Empty(t, h.audit(target))
		require.Equal(t, []string{`route table 100 10.1.0.3/32 (network "net")`, `route table 100 10.2.0.0/24 (network "net")`}, h.force(Target{ID: "b"}))
		require.Empty(t, table())
	}

	add("a", "10.1.0.2/32", "10.1.0.4/32", "10.1.0.6/32")
	require.NoError(t, os.MkdirAll(filepath.Join(h.dataDir, "net"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(h.dataDir, "net", "10.1.0.6"), []byte("b\r\neth0"), 0o600)) // so has this one
	add("b", "10.1.0.3/32")
	h.run("ip", "route", "add", "10.1.0.5/32", "dev", "br0", "table", "100", "proto", "92")
	privhost.FlushRuleset(h.t)
	add("b", "10.1.0.4/32") // the address has changed hands
	target := known("10.1.0.2/24", "10.1.0.4/24", "10.1.0.5/24", "10.1.0.6/24")
	require.Empty(t, h.audit(Target{ID: "a"}))
	require.Equal(t, []string{`route table 100 10.1.0.2/32 (network "net")`}, h.audit(target))
	require.Equal(t, []string{`route table 100 10.1.0.2/32 (network "net")`}, h.force(target))
	require.Equal(t, "10.1.0.3 10.1.0.4 10.1.0.5 10.1.0.6", table())
	h.run("ip", "route", "flush", "table", "100")
}

// TestRouteKept: while a route may be left, its element and the lease of its address stay.
func TestRouteKept(t *testing.T) {
	h := newTestHost(t)
	rules, err := ruleset.Open()
	require.NoError(t, err)
	defer rules.Close()
	owner := names.Owner{Network: "net", ID: "a", IfName: "eth0"}
	require.NoError(t, rules.Add(t.Context(), &ruleset.Elements{Owner: owner, Announced: []ruleset.Route{
		{Address: netip.MustParsePrefix("10.1.0.2/32"), Table: 100, Protocol: 91, Link: 1},
	}}))
	require.NoError(t, os.MkdirAll(filepath.Join(h.dataDir, "net"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(h.dataDir, "net", "10.1.0.2"), []byte("a\r\neth0"), 0o600))
	s := newSearch(Target{ID: "a", Attachments: []Attachment{{Network: "net", IfName: "eth0",
		Config: []byte(`{"name": "net", "plugins": [{"type": "bridge", "ipam": {"type": "host-local", "dataDir": "` + h.dataDir + `"}}, {"type": "routes", "table": 100}]}`)}}})
	for _, kept := range []bool{true, false} {
		found, err := s.find(t.Context())
		require.NoError(t, err)
		require.Len(t, found, 3)
		s.routes.kept = kept
		elements, err := s.elements.remove(t.Context())
		require.NoError(t, err)
		leases, err := s.leases.remove(t.Context())
		require.NoError(t, err)
		require.Equal(t, kept, len(elements)+len(leases) == 0)
	}
}
