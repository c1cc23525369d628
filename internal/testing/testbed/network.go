package testbed

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/internal/testing/testhost"
)

// Network writes a conflist.
func (h *Host) Network(name string, plugins ...map[string]any) {
	h.T.Helper()
	h.NetworkOf("1.0.0", name, plugins...)
}

// NetworkOf writes a conflist with a version of the specification.
func (h *Host) NetworkOf(version, name string, plugins ...map[string]any) {
	h.T.Helper()
	data, err := json.Marshal(map[string]any{"cniVersion": version, "name": name, "plugins": plugins})
	require.NoError(h.T, err)
	require.NoError(h.T, os.WriteFile(filepath.Join(h.ConfDir, name+".conflist"), data, 0o600))
	h.open[name] = !slices.ContainsFunc(plugins, func(p map[string]any) bool { return !slices.Contains(openPlugins, p["type"]) })
}

// openPlugins are the plugins whose networks let the host reach an allocation, and the reverse: policies may not,
// and the server of an allocation in a VRF listens elsewhere.
var openPlugins = []any{"loopback", "bridge", "ptp", "firewall", "portmap", "bandwidth", "tuning"}

// Families are the subnets of a test network.
type Families struct{ V4, V6 string }

// IPAM returns an IPAM configuration with a range of each family.
func (f Families) IPAM() map[string]any {
	var ranges, routes []any
	if f.V4 != "" {
		ranges = append(ranges, []any{map[string]any{"subnet": f.V4}})
		routes = append(routes, map[string]any{"dst": "0.0.0.0/0"})
	}
	if f.V6 != "" {
		ranges = append(ranges, []any{map[string]any{"subnet": f.V6}})
		routes = append(routes, map[string]any{"dst": "::/0"})
	}
	return map[string]any{"type": "host-local", "ranges": ranges, "routes": routes}
}

// The subnets of most test networks.
var (
	Dual   = Families{V4: "10.99.0.0/24", V6: "fd00:99::/64"}
	V4Only = Families{V4: "10.99.0.0/24"}
	V6Only = Families{V6: "fd00:99::/64"}
)

// Way is an engine and the backend in its networks. Without a backend, the
// native engine uses allocnet's own tables.
type Way struct {
	Engine  configurator.Engine
	Backend string
}

// String implements fmt.Stringer.
func (w Way) String() string { return strings.TrimSpace(string(w.Engine) + " " + w.Backend) }

// All engines and backends.
var (
	ExecTables   = Way{configurator.EngineExec, "iptables"}
	ExecNFT      = Way{configurator.EngineExec, "nftables"}
	Native       = Way{configurator.EngineNative, ""}
	NativeTables = Way{configurator.EngineNative, "iptables"}
	NativeNFT    = Way{configurator.EngineNative, "nftables"}
)

// Each runs a test for each engine and backend; with -short, as inShort says.
func Each(t *testing.T, ways []Way, test func(t *testing.T, w Way)) {
	t.Helper()
	ways = withPools(t, ways)
	for _, w := range ways {
		t.Run(w.String(), func(t *testing.T) {
			if testing.Short() && w != inShort(ways) {
				skip.InShort(t)
			}
			if w.Backend == "nftables" {
				privhost.Require(t, "nft")
			}
			test(t, w)
		})
	}
}

// inShort returns the way that -short runs: allocnet's own tables if they are among the ways, because the
// others start programs.
func inShort(ways []Way) Way {
	if slices.Contains(ways, Native) {
		return Native
	}
	return ways[0]
}

// EachElsewhere is [Each] for long tests: several run at a time, each on its own
// host, in parallel with later tests.
func EachElsewhere(t *testing.T, ways []Way, test func(t *testing.T, w Way)) {
	t.Helper()
	byName, order := map[string]Way{}, []string{}
	ways = withPools(t, ways)
	for _, w := range ways {
		if testing.Short() && w != inShort(ways) {
			t.Run(w.String(), func(t *testing.T) { skip.InShort(t) })
			continue
		}
		byName[w.String()] = w
		order = append(order, w.String())
	}
	testhost.EachElsewhere(t, order, func(t *testing.T, name string) { Each(t, []Way{byName[name]}, test) })
}

// Engines contains one way for each engine.
var Engines = []Way{ExecTables, Native}

// Chain returns a network of the kind that schedulers generate. backend is ""
// (the plugins choose), "iptables" or "nftables".
func Chain(main string, f Families, backend string) []map[string]any {
	first := map[string]any{"type": main, "ipMasq": true, "ipam": f.IPAM()}
	if main == "bridge" {
		first["bridge"], first["isGateway"], first["hairpinMode"] = "br-test", true, true
	}
	firewall := map[string]any{"type": "firewall"}
	portmap := map[string]any{"type": "portmap", "snat": true, "capabilities": map[string]bool{"portMappings": true}}
	if backend != "" {
		first["ipMasqBackend"], portmap["backend"], firewall["backend"] = backend, backend, "iptables"
	}
	return []map[string]any{{"type": "loopback"}, first, firewall, portmap}
}

// BridgeWithoutAddresses returns a chain that adds an interface without an
// address.
func BridgeWithoutAddresses() []map[string]any {
	return []map[string]any{
		{"type": "bridge", "bridge": "br-test"},
		{"type": "portmap", "snat": true, "capabilities": map[string]bool{"portMappings": true}},
	}
}
