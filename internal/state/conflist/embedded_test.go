package conflist

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/policy"
)

func indented(t *testing.T, n *Network) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, json.Indent(&b, n.Bytes, "", "  "))
	b.WriteByte('\n')
	return b.String()
}

func TestEmbedded(t *testing.T) {
	tests := []struct {
		golden  string
		options EmbeddedOptions
	}{
		{"testdata/embedded-default.json", EmbeddedOptions{StateDir: "/run/allocnet"}},
		{"testdata/embedded-binaries.json", EmbeddedOptions{StateDir: "/run/allocnet", ForBinaries: true}},
		{"testdata/embedded-ipv6.json", EmbeddedOptions{
			StateDir: "/state/",
			Subnets:  []netip.Prefix{netip.MustParsePrefix("fd00:1::/126")},
			MTU:      1400,
		}},
		{"testdata/embedded-routes.json", EmbeddedOptions{StateDir: "/run/allocnet", Routes: EmbeddedRoutes{
			Table: 100, Subnets: true, Cluster: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")},
		}}},
	}
	for _, tt := range tests {
		t.Run(tt.golden, func(t *testing.T) {
			n, err := Embedded(tt.options)
			require.NoError(t, err)
			want, err := os.ReadFile(tt.golden)
			require.NoError(t, err)
			require.Equal(t, string(want), indented(t, n))
			require.Equal(t, EmbeddedName, n.Name)
			require.Empty(t, n.File)
			types := []string{"loopback", "ptp", "firewall", "portmap"}
			if tt.options.ForBinaries {
				types = []string{"loopback", "tuning", "ptp", "tuning", "firewall", "portmap"}
			}
			if tt.options.Routes.Table != 0 {
				types = append(types, "routes")
			}
			capabilities := []string{"ipRanges", "ips", "mac", "portMappings"}
			if !tt.options.ForBinaries {
				types, capabilities = append(types, "policy"), append(capabilities[:3:3], "policy", "portMappings")
			}
			require.Equal(t, types, n.PluginTypes())
			require.Equal(t, []string{"host-local"}, n.IPAMTypes())
			require.Equal(t, capabilities, n.Capabilities())
			requireSelfContained(t, n)
		})
	}
}

// TestEmbeddedPolicy: the policy is that of the plugin, and is never left out silently.
func TestEmbeddedPolicy(t *testing.T) {
	p := &policy.Policy{Presets: []policy.Preset{policy.NoMetadata}}
	n, err := Embedded(EmbeddedOptions{StateDir: "/s", Policy: p})
	require.NoError(t, err)
	require.Contains(t, indented(t, n), `"policy": {
        "presets": [
          "no-metadata"
        ]
      },
      "type": "policy"`)
	for _, o := range []EmbeddedOptions{{StateDir: "/s", Policy: &policy.Policy{}}, {StateDir: "/s", Policy: &policy.Policy{}, ForBinaries: true}, {StateDir: "/s", ForBinaries: true}} {
		n, err = Embedded(o)
		require.NoError(t, err)
		require.NotContains(t, indented(t, n), `"presets"`)
	}
	_, err = Embedded(EmbeddedOptions{StateDir: "/s", Policy: p, ForBinaries: true})
	require.ErrorContains(t, err, "plugin binaries cannot enforce network policies")
	_, err = Embedded(EmbeddedOptions{StateDir: "/s", Policy: &policy.Policy{Presets: []policy.Preset{"x"}}})
	require.ErrorContains(t, err, `presets[0]: "x" is unknown`)
}

func TestEmbeddedRejects(t *testing.T) {
	subnets := func(texts ...string) EmbeddedOptions {
		o := EmbeddedOptions{StateDir: "/run/allocnet"}
		for _, s := range texts {
			o.Subnets = append(o.Subnets, netip.MustParsePrefix(s))
		}
		return o
	}
	cluster := func(file, text string) EmbeddedOptions {
		routes := EmbeddedRoutes{Table: 100, Cluster: []netip.Prefix{netip.MustParsePrefix(text)}}
		return EmbeddedOptions{StateDir: "/s", SubnetsFrom: file, Routes: routes}
	}
	tests := []struct {
		name    string
		options EmbeddedOptions
		want    string
	}{
		{"no state directory", EmbeddedOptions{}, `state directory "" is not an absolute path`},
		{"relative state directory", EmbeddedOptions{StateDir: "state"}, `state directory "state" is not an absolute path`},
		{"MTU below IPv6's", EmbeddedOptions{StateDir: "/s", MTU: 1279}, "MTU 1279 is out of range: choose 0 or 1280 to 65535"},
		{"negative MTU", EmbeddedOptions{StateDir: "/s", MTU: -1}, "MTU -1 is out of range"},
		{"zero prefix", EmbeddedOptions{StateDir: "/s", Subnets: make([]netip.Prefix, 1)}, `subnet "invalid Prefix": not a valid prefix`},
		{"two of a family", subnets("10.0.0.0/8", "fd00::/64", "172.16.0.0/12"), `subnets "10.0.0.0/8" and "172.16.0.0/12" are both IPv4`},
		{"host bits", subnets("10.0.0.1/24"), `subnet "10.0.0.1/24": has host bits set: the network is 10.0.0.0/24`},
		{"small IPv4", subnets("10.0.0.0/31"), `subnet "10.0.0.0/31": too small: /30 is the smallest`},
		{"small IPv6", subnets("fd00::/127"), `subnet "fd00::/127": too small: /126 is the smallest`},
		{"mapped", subnets("::ffff:10.0.0.0/120"), "write it as the IPv4 prefix of 10.0.0.0"},
		{"everything", subnets("0.0.0.0/0"), `subnet "0.0.0.0/0": not a range of ordinary unicast addresses`},
		{"multicast", subnets("ff02::/64"), `subnet "ff02::/64": not a range`},
		{"loopback", subnets("127.0.0.0/16"), `subnet "127.0.0.0/16": not a range`},
		{"link local", subnets("fe80::/64"), `subnet "fe80::/64": not a range`},
		{"table main", EmbeddedOptions{StateDir: "/s", Routes: EmbeddedRoutes{Table: 254}}, "routes: table 254 is one in which the host looks"},
		{"protocol of BIRD", EmbeddedOptions{StateDir: "/s", Routes: EmbeddedRoutes{Table: 100, Protocol: 12}}, "routes: protocol 12 belongs to a routing daemon"},
		{"host bits of the cluster", cluster("", "10.80.1.0/16"), `routes: cluster network "10.80.1.0/16": has host bits set`},
		{"mapped cluster", cluster("", "::ffff:10.0.0.0/104"), "write it as the IPv4 prefix of 10.0.0.0"},
		{"cluster beside flannel's", cluster("/env", "10.0.0.0/8"), `routes: the cluster networks are those of "/env"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Embedded(tt.options)
			require.ErrorContains(t, err, tt.want)
			require.ErrorContains(t, err, `embedded network "allocnet"`)
		})
	}
}

func TestEmbeddedSmallestSubnet(t *testing.T) {
	n, err := Embedded(EmbeddedOptions{
		StateDir: "/s",
		Subnets:  []netip.Prefix{netip.MustParsePrefix("192.0.2.0/30")},
		MTU:      68,
	})
	require.NoError(t, err)
	require.Contains(t, string(n.Bytes), `"ranges":[[{"subnet":"192.0.2.0/30"}]],"reclaimOnBoot":true,"routes":[{"dst":"0.0.0.0/0"}]`)
}
