package engine

import (
	"encoding/json"
	"net"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"
)

// TestEncodeResult: every field, and what a plugin should not have returned.
func TestEncodeResult(t *testing.T) {
	network := net.IPNet{IP: net.IPv4(192, 0, 2, 7), Mask: net.CIDRMask(24, 32)}
	network6 := net.IPNet{IP: net.ParseIP("2001:db8::7"), Mask: net.CIDRMask(64, 128)}
	for name, r := range map[string]*types100.Result{
		"empty": {},
		"all": {
			CNIVersion: "1.0.0",
			Interfaces: []*types100.Interface{
				{Name: "eth0"},
				{Name: `"<&>"`, Mac: "02:00:00:00:00:01", Mtu: 1500, Sandbox: "/s", SocketPath: "/p", PciID: "0000:00:00.0"},
			},
			IPs: []*types100.IPConfig{
				{Address: network},
				{Address: network6, Gateway: net.ParseIP("2001:db8::1"), Interface: types100.Int(0)},
			},
			Routes: []*types.Route{
				{Dst: network},
				{Dst: network6, GW: net.IPv4(192, 0, 2, 1).To4(), MTU: 1, AdvMSS: 2, Priority: 1 << 31, Table: types100.Int(0), Scope: types100.Int(253)},
			},
			DNS: types.DNS{Nameservers: []string{"192.0.2.53"}, Domain: "d", Search: []string{"a", "b"}, Options: []string{"o"}},
		},
		"null":                {Interfaces: []*types100.Interface{nil}},
		"null address":        {IPs: []*types100.IPConfig{nil}},
		"null route":          {Routes: []*types.Route{nil}},
		"no address at all":   {IPs: []*types100.IPConfig{{}}},
		"gateway, no address": {IPs: []*types100.IPConfig{{Address: network, Gateway: net.IP{1}}}},
		"route by no address": {Routes: []*types.Route{{Dst: network, GW: net.IP{1, 2}}}},
	} {
		t.Run(name, func(t *testing.T) {
			want, wantErr := json.Marshal(r)
			got, err := EncodeResult(r)
			require.Equal(t, wantErr, err)
			require.Equal(t, string(want), string(got))
		})
	}
}

// FuzzEncodeResult: what can be read is written as its own MarshalJSON writes it.
func FuzzEncodeResult(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.1.0","interfaces":[{"name":"\u2028<"}],"ips":[{"address":"10.0.0.1/8","interface":-3}],"routes":[{"dst":"::/0","table":7}],"dns":{"domain":"x"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r types100.Result
		if json.Unmarshal(data, &r) != nil {
			return
		}
		want, wantErr := json.Marshal(&r)
		got, err := EncodeResult(&r)
		require.Equal(t, wantErr == nil, err == nil)
		if err == nil {
			require.JSONEq(t, string(want), string(got)) // but for the digits that a float64 has not
		}
	})
}
