package integration

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/testbed"
	"github.com/allocnet/allocnet/internal/testing/testhost"
	"github.com/allocnet/allocnet/portmap"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden is a configuration and an allocation with these ports.
// testdata/golden/<name>.txt contains the result and the rules.
type golden struct {
	main  string
	f     testbed.Families
	ports []portmap.Port
	// change edits the plugins, which are indexed by type.
	change func(plugins map[string]map[string]any)
	more   []map[string]any // plugins at the end of the chain
}

var goldens = map[string]golden{
	"bridge": {main: "bridge", f: testbed.V4Only, ports: []portmap.Port{{Value: 8080, To: 80}}},
	"bridge-host-ips": {main: "bridge", f: testbed.Dual, ports: []portmap.Port{
		{Value: 8080, To: 80, HostIP: "127.0.0.1", Protocols: []string{"tcp"}},
		{Value: 8080, To: 80, HostIP: testhost.Host4.Addr().String(), Protocols: []string{"tcp"}},
		{Value: 8080, To: 80, HostIP: testhost.Host6.Addr().String(), Protocols: []string{"sctp"}},
		{Value: 9090, HostIP: "0.0.0.0", Protocols: []string{"udp"}},
		{Value: 9090, HostIP: "::", Protocols: []string{"tcp"}},
	}},
	"ptp": {main: "ptp", f: testbed.Dual, ports: []portmap.Port{{Value: 8080, To: 80}, {Value: 8081, Protocols: []string{"sctp"}}}},
	"no-snat": {
		main: "bridge", f: testbed.Dual, ports: []portmap.Port{{Value: 8080, To: 80, Protocols: []string{"tcp"}}},
		change: func(plugins map[string]map[string]any) {
			plugins["portmap"]["snat"], plugins["bridge"]["ipMasq"] = false, false
		},
	},
	"masquerade-all": {
		main: "bridge", f: testbed.Dual, ports: []portmap.Port{{Value: 8080, To: 80, Protocols: []string{"tcp"}}},
		change: func(plugins map[string]map[string]any) { plugins["portmap"]["masqAll"] = true },
	},
	"isolated": {
		main: "bridge", f: testbed.Dual,
		change: func(plugins map[string]map[string]any) { plugins["firewall"]["ingressPolicy"] = "isolated" },
	},
	"bandwidth-tuning": {main: "ptp", f: testbed.V4Only, more: []map[string]any{
		{"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000},
		{"type": "tuning", "mtu": 1400, "mac": chosenMAC, "sysctl": map[string]string{"net.core.somaxconn": "500"}},
	}},
}

// TestGolden compares all rules and the result of the native engine with text.
func TestGolden(t *testing.T) {
	privhost.Require(t, "nft")
	for name, g := range goldens {
		t.Run(name, func(t *testing.T) {
			got := g.text(t)
			file := filepath.Join("testdata", "golden", name+".txt")
			if *update {
				require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err, "-update writes it")
			require.Equal(t, string(want), got)
		})
	}
}

// text returns the result and the rules of a Setup on a fresh host.
func (g golden) text(t *testing.T) string {
	h := newHost(t, configurator.EngineNative)
	plugins := append(testbed.Chain(g.main, g.f, ""), g.more...)
	if g.change != nil {
		byType := map[string]map[string]any{}
		for _, p := range plugins {
			byType[p["type"].(string)] = p
		}
		g.change(byType)
	}
	h.Network("net", plugins...)
	h.OneSlot() // which has the first address
	a := h.Alloc("golden")
	a.Ports = g.ports
	h.SetUp(a)
	h.WithoutSlots()
	r, err := h.Get(t.Context(), a.ID)
	require.NoError(t, err)
	require.Equal(t, configurator.EngineNative, r.Engine)
	var b bytes.Buffer
	b.WriteString("# CNI result\n")
	require.NoError(t, json.Indent(&b, r.Networks[0].Result, "", "  "))
	for _, command := range []string{"nft list table ip allocnet", "nft list table ip6 allocnet", "iptables -S", "ip6tables -S"} {
		fmt.Fprintf(&b, "\n# %s\n", command)
		fields := strings.Fields(command)
		out, err := exec.Command(fields[0], fields[1:]...).Output()
		if g.f.V6 == "" && strings.Contains(command, "ip6 ") {
			require.Error(t, err, "no table without an address")
			out, err = []byte("no table\n"), nil
		}
		require.NoError(t, err, command)
		b.WriteString(sorted(string(out)))
	}
	text := strings.ReplaceAll(b.String(), h.Container(a), a.ID)
	text = strings.ReplaceAll(text, names.Owner{Network: "net", ID: h.Container(a), IfName: "eth0"}.Veth(), names.Owner{Network: "net", ID: a.ID, IfName: "eth0"}.Veth())
	h.TearDown(a)
	return anyMAC.ReplaceAllStringFunc(text, func(mac string) string {
		if strings.Contains(mac, chosenMAC) {
			return mac
		}
		return `"mac": "(any)"`
	})
}

// chosenMAC is the MAC that a configuration requests. All other MACs are
// random.
const chosenMAC = "02:00:00:00:00:07"

var anyMAC = regexp.MustCompile(`"mac": "[^"]*"`)

// contacted matches the elements of the sets to which packets add, and of the
// map of shared host ports: they depend on other tests on the same host.
var contacted = regexp.MustCompile(`(?s)(\n\t(?:set contacted\w*|map standby_ports) \{[^}]*?)\n\t\telements = \{.*?\}`)

// sorted sorts the elements of sets, one on each line, because the kernel lists
// them in any order.
func sorted(rules string) string {
	rules = contacted.ReplaceAllString(rules, "$1")
	elements := regexp.MustCompile(`(?s)elements = \{ .*? \}\n`)
	return elements.ReplaceAllStringFunc(rules, func(list string) string {
		list = strings.TrimSuffix(strings.TrimPrefix(list, "elements = { "), " }\n")
		lines := regexp.MustCompile(`,\s+`).Split(list, -1)
		slices.Sort(lines)
		return "elements = { " + strings.Join(lines, ",\n\t\t\t     ") + " }\n"
	})
}
