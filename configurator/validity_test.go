package configurator

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/testing/privhost"
)

// TestReadyIsWhatSetupSays: Ready and Networks refuse the configurations that every Setup refuses, for the same
// reason, and no others.
func TestReadyIsWhatSetupSays(t *testing.T) {
	const (
		bridge  = `{"type":"bridge","bridge":"brvalid","isGateway":true,"ipam":{IPAM,"subnet":"10.79.0.0/24"}}`
		ptp     = `{"type":"ptp","ipam":{IPAM,"ranges":[[{"subnet":"10.79.0.0/24"}],[{"subnet":"fd00:79::/64"}]],"routes":ROUTES}}`
		gateway = `{"type":"bridge","bridge":"brvalid","isDefaultGateway":true,"ipam":{IPAM,"ranges":[[{"subnet":"10.79.0.0/24"}],[{"subnet":"fd00:79::/64"}]],"routes":ROUTES}}`
	)
	routes := func(plugin, list string) string { return strings.Replace(plugin, "ROUTES", list, 1) }
	for name, tt := range map[string]struct{ plugins, refusal string }{
		"bridge":                              {bridge, ""},
		"addresses as strings":                {`{"type":"bridge","bridge":"brvalid","ipam":{"type":"static","addresses":["10.79.0.2/24"]}}`, "addresses"},
		"address without a prefix":            {`{"type":"bridge","bridge":"brvalid","ipam":{"type":"static","addresses":[{"address":"10.79.0.2"}]}}`, "CIDR notation"},
		"no gateway":                          {`{"type":"ptp","ipam":{"type":"static","addresses":[{"address":"10.79.0.2/24"}]}}`, "no gateway for 10.79.0.2/24"},
		"static":                              {`{"type":"ptp","ipam":{"type":"static","addresses":[{"address":"10.79.0.2/24","gateway":"10.79.0.1"}]}}`, ""},
		"no subnet":                           {`{"type":"bridge","bridge":"brvalid","ipam":{IPAM,"subnet":"usePodCidr"}}`, "usePodCidr"},
		"no ranges":                           {`{"type":"bridge","bridge":"brvalid","ipam":{IPAM}}`, "no IP ranges"},
		"no ipam":                             {`{"type":"ptp"}`, "no ipam.type"},
		"rate without a burst":                {bridge + `,{"type":"bandwidth","ingressRate":8000}`, "a rate needs a burst"},
		"rate and burst":                      {bridge + `,{"type":"bandwidth","ingressRate":8000,"ingressBurst":80000}`, ""},
		"MAC":                                 {bridge + `,{"type":"tuning","mac":"02:00"}`, "02:00"},
		"ingress policy":                      {bridge + `,{"type":"firewall","ingressPolicy":"closed"}`, "closed"},
		"mark":                                {bridge + `,{"type":"portmap","markMasqBit":40}`, "markMasqBit is 40"},
		"default route of bridge and IPAM":    {routes(gateway, `[{"dst":"0.0.0.0/0"}]`), "two routes lead to 0.0.0.0/0 via 10.79.0.1"},
		"default route of IPv6":               {routes(gateway, `[{"dst":"::/0"}]`), "two routes lead to ::/0 via fd00:79::1"},
		"default route with a gateway":        {routes(gateway, `[{"dst":"0.0.0.0/0","gw":"10.79.0.1"}]`), ""},
		"default routes of both families":     {routes(ptp, `[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]`), ""},
		"two default routes":                  {routes(ptp, `[{"dst":"0.0.0.0/0"},{"dst":"0.0.0.0/0","gw":"10.79.0.1"}]`), "two routes lead to 0.0.0.0/0"},
		"two default routes of IPv6":          {routes(ptp, `[{"dst":"::/0"},{"dst":"::/0"}]`), "two routes lead to ::/0"},
		"default routes with other metrics":   {routes(ptp, `[{"dst":"0.0.0.0/0"},{"dst":"0.0.0.0/0","priority":100}]`), ""},
		"default routes with other tables":    {routes(ptp, `[{"dst":"0.0.0.0/0"},{"dst":"0.0.0.0/0","table":100}]`), ""},
		"tuning alone":                        {`{"type":"tuning","mtu":1400}`, "no prevResult"},
		"bandwidth alone":                     {`{"type":"bandwidth"}`, "no prevResult"},
		"firewall alone":                      {`{"type":"firewall"}`, "missing prevResult"},
		"portmap alone":                       {`{"type":"portmap"}`, "missing prevResult"},
		"policy alone":                        {`{"type":"policy"}`, "missing prevResult"},
		"routes alone":                        {`{"type":"routes","table":100}`, "missing prevResult"},
		"loopback before tuning":              {`{"type":"loopback"},` + bridge + `,{"type":"tuning","mtu":1400}`, ""},
		"unknown key, which needs the binary": {`{"type":"bridge","bridge":"brvalid","novel":1,"ipam":{"type":"host-local","subnet":"usePodCidr"}}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t, func(c *Config) { c.Engine, c.Network, c.Retry.Attempts = EngineNative, "net", 1 })
			t.Cleanup(func() {
				if link, err := netlink.LinkByName("brvalid"); err == nil {
					require.NoError(t, netlink.LinkDel(link))
				}
				privhost.FlushRuleset(t)
			})
			plugins := strings.ReplaceAll(tt.plugins, "IPAM", `"type":"host-local","dataDir":"`+t.TempDir()+`"`)
			h.file("net.conflist", `{"cniVersion":"1.0.0","name":"net","plugins":[`+plugins+`]}`)
			ready := h.Ready(t.Context())
			networks, _ := h.Networks(t.Context())
			require.NotEmpty(t, networks)
			if name == "unknown key, which needs the binary" {
				require.Empty(t, networks[0].Invalid)
				return
			}
			a := h.alloc("a")
			_, err := h.Setup(t.Context(), a)
			if tt.refusal == "" {
				require.NoError(t, ready)
				require.Empty(t, networks[0].Invalid)
				require.NoError(t, err)
				require.NoError(t, h.Teardown(t.Context(), a))
				return
			}
			require.ErrorContains(t, err, tt.refusal)
			require.ErrorContains(t, ready, tt.refusal)
			require.Contains(t, networks[0].Invalid, tt.refusal)
		})
	}
}

// TestReadyWithArguments: capability arguments and a result of other plugins complete configurations.
func TestReadyWithArguments(t *testing.T) {
	h := newTestHost(t, func(c *Config) { c.Engine, c.Networks = EngineNative, []string{"ranges"} })
	h.file("1.conflist", `{"cniVersion":"1.0.0","name":"ranges","plugins":[{"type":"bridge","bridge":"brvalid","capabilities":{"ipRanges":true},"ipam":{"type":"host-local"}}]}`)
	h.file("2.conflist", `{"cniVersion":"1.0.0","name":"tune","plugins":[{"type":"tuning","mtu":1400}]}`)
	require.NoError(t, h.Ready(t.Context()))
	tune := Allocation{Networks: []string{"tune"}}
	require.ErrorContains(t, h.ReadyFor(t.Context(), tune), "no prevResult")
	tune.PrevResult = json.RawMessage("{}")
	require.NoError(t, h.ReadyFor(t.Context(), tune))
}
