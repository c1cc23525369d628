package static

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/plugintest"
	"github.com/allocnet/allocnet/internal/testing/refplugins"
)

// A call is one operation as both implementations get it, and its expected
// outcome. text is a part of both error messages, or "" for success. code is
// the native plugin's code.
type call struct {
	command, conf, args string
	text                string
	code                uint
}

func (c call) environ() []string {
	return []string{"CNI_COMMAND=" + c.command, "CNI_PATH=/none", "CNI_CONTAINERID=one", "CNI_IFNAME=eth0",
		"CNI_NETNS=/none", "CNI_NETNS_OVERRIDE=1", "CNI_ARGS=" + c.args}
}

func (c call) native(t testing.TB) (string, error) {
	t.Helper()
	e := &sdk.Exec{
		Plugins: map[string]sdk.Factory{"static": New},
		Host:    &sdk.Host{Log: hclog.NewNullLogger()},
		Lenient: true,
	}
	return plugintest.Native(t, e, "static", c.conf, c.environ())
}

// conf returns a configuration as bridge passes it. rest follows the key ipam.
func conf(ipam string, rest ...string) string { return confOf("1.0.0", ipam, rest...) }

func confOf(version, ipam string, rest ...string) string {
	return fmt.Sprintf(`{"cniVersion": %q, "name": "blue", "type": "bridge", "bridge": "br0",
		"ipam": {"type": "static"%s}%s}`, version, comma(ipam), comma(rest...))
}

func comma(parts ...string) string {
	var b strings.Builder
	for _, part := range parts {
		if part != "" {
			b.WriteString(", " + part)
		}
	}
	return b.String()
}

const (
	ten  = `"addresses": [{"address": "10.1.0.5/24", "gateway": "10.1.0.254"}]`
	dual = `"addresses": [{"address": "10.1.0.5/24", "gateway": "10.1.0.254"}, {"address": "fd00::5/64"}]`
)

func prev(ips string) string {
	return `"prevResult": {"cniVersion": "1.0.0", "ips": [` + ips + `]}`
}

func add(conf string, args ...string) call {
	return call{command: "ADD", conf: conf, args: strings.Join(args, ";")}
}

func (c call) fails(text string, code uint) call {
	c.text, c.code = text, code
	return c
}

var conformance = map[string]call{
	"one":  add(conf(ten)),
	"dual": add(conf(dual)),
	"none": add(conf("")),
	"all": add(conf(dual+`, "routes": [{"dst": "0.0.0.0/0"},
		{"dst": "10.9.0.0/16", "gw": "10.1.0.9", "mtu": 1400, "advmss": 1300, "priority": 7, "table": 50, "scope": 0}],
		"dns": {"nameservers": ["10.0.0.53"], "domain": "d", "search": ["a", "b"], "options": ["rotate"]}`, `"dns": 5`)),
	"two of a family":   add(conf(`"addresses": [{"address": "10.1.0.5/24"}, {"address": "10.1.0.6/24"}]`)),
	"version":           add(conf(`"name": "x", "addresses": [{"version": "4", "address": "10.1.0.5/24"}]`)),
	"mapped":            add(conf(`"addresses": [{"address": "::ffff:10.1.0.5/120"}]`)),
	"env":               add(conf(""), "IP=10.1.0.7/24"),
	"env, blank":        add(conf(ten), "IP=;GATEWAY="),
	"env and conf":      add(conf(dual), "IgnoreUnknown=true;FOO=1;IP=10.2.0.7/24, fd01::7/64;GATEWAY=10.2.0.1, fd01::1"),
	"gateway of conf":   add(conf(`"addresses": [{"address": "10.1.0.5/24"}]`), "GATEWAY=10.1.0.1"),
	"several gateways":  add(conf(""), "IP=10.2.0.7/24,10.2.0.8/25;GATEWAY=10.2.0.1,10.2.0.200"),
	"args":              add(conf(dual, `"args": {"cni": {"ips": ["10.3.0.1/16", "fd03::1/64"]}}`), "IP=10.2.0.7/24"),
	"args, empty":       add(conf(dual, `"args": {"cni": {"ips": []}}`)),
	"runtimeConfig":     add(conf(dual, `"args": {"cni": {"ips": ["10.3.0.1/16"]}}`, `"runtimeConfig": {"ips": ["10.4.0.1/16"], "mac": "x"}`)),
	"runtime, bad conf": add(conf(`"addresses": [{"address": "nonsense"}]`, `"runtimeConfig": {"ips": ["10.4.0.1/16"]}`)),
	"version 0.2.0":     add(confOf("0.2.0", dual)),
	"version 1.1.0":     add(confOf("1.1.0", dual)),

	"old version, two": add(confOf("0.2.0", dual), "IP=10.2.0.7/24").
		fails("CNI version 0.2.0 does not support more than 1 address per family", 7),
	"old version, two of runtimeConfig": add(confOf("0.2.0", dual, `"runtimeConfig": {"ips": ["10.4.0.1/16", "10.4.0.2/16"]}`)).
		fails("CNI version 0.2.0 does not support more than 1 address per family", 7),
	"no prefix":               add(conf(`"addresses": [{"address": "10.1.0.5"}]`)).fails("expected to be in CIDR notation, got: '10.1.0.5'", 7),
	"no address":              add(conf(`"addresses": [{}]`)).fails("expected to be in CIDR notation, got: ''", 7),
	"env, no prefix":          add(conf(ten), "IP=10.1.0.5").fails("expected to be in CIDR notation, got: '10.1.0.5'", 7),
	"env, bad gateway":        add(conf(ten), "GATEWAY=x").fails("invalid gateway address: x", 7),
	"env, unknown":            add(conf(ten), "FOO=bar").fails("FOO=bar", 4),
	"args, no prefix":         add(conf(ten, `"args": {"cni": {"ips": ["10.1.0.5"]}}`)).fails("in CIDR notation, got: '10.1.0.5'", 7),
	"runtimeConfig no prefix": add(conf(ten, `"runtimeConfig": {"ips": ["10.1.0.5"]}`)).fails("in CIDR notation, got: '10.1.0.5'", 7),
	"no ipam":                 add(`{"cniVersion": "1.0.0", "name": "blue"}`).fails("ipam", 7),
	"not a list":              add(conf(`"addresses": 5`)).fails("addresses", 6),
	"not a gateway":           add(conf(`"addresses": [{"address": "10.1.0.5/24", "gateway": "x"}]`)).fails("invalid IP address: x", 6),

	"DEL":                      {command: "DEL", conf: conf(dual)},
	"DEL, bad conf":            {command: "DEL", conf: conf(`"addresses": [{"address": "x"}]`), args: "nonsense"},
	"CHECK":                    {command: "CHECK", conf: conf(dual, prev(`{"address": "10.1.0.5/24", "gateway": "10.1.0.254"}, {"address": "fd00::5/64"}`))},
	"CHECK, no gateway wanted": {command: "CHECK", conf: conf(dual, prev(`{"address": "fd00::5/64", "gateway": "fd00::1"}`))},
	"CHECK, other addresses":   {command: "CHECK", conf: conf(dual, prev(`{"address": "10.1.0.9/24"}`))},
	"CHECK, other gateway":     {command: "CHECK", conf: conf(dual, prev(`{"address": "10.1.0.5/24", "gateway": "10.1.0.1"}`)), text: "10.1.0.5", code: 999},
	"CHECK, missing gateway":   {command: "CHECK", conf: conf(dual, prev(`{"address": "10.1.0.5/24"}`)), text: "10.1.0.5", code: 999},
	"CHECK, nothing to see":    {command: "CHECK", conf: conf(dual), text: "equired prevResult missing", code: 7},
	"CHECK, bad arguments":     {command: "CHECK", conf: conf(dual, prev("")), args: "IP=x", text: "CIDR", code: 7},
}

// TestConformance: the reference plugin and the native one return the same
// results.
func TestConformance(t *testing.T) {
	refplugins.Path(t, "static")
	for name, c := range conformance {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, wantErr := plugintest.Reference(t, "static", c.conf, c.environ())
			got, gotErr := c.native(t)
			if c.text != "" {
				require.ErrorContains(t, wantErr, c.text, "reference")
				require.ErrorContains(t, gotErr, c.text)
				require.EqualValues(t, 999, plugintest.Code(wantErr), "reference")
				require.Equal(t, c.code, plugintest.Code(gotErr))
				return
			}
			require.NoError(t, wantErr, "reference")
			require.NoError(t, gotErr)
			if want != "" || got != "" {
				require.JSONEq(t, want, got)
			}
		})
	}
}

// TestUnknownKeys: only unknown keys inside ipam are reported.
func TestUnknownKeys(t *testing.T) {
	for ipam, key := range map[string]string{
		ten:                       "",
		ten + `, "futuristic": 1`: "futuristic",
		`"addresses": [{"address": "10.1.0.5/24", "label": "x"}]`:  "label",
		ten + `, "routes": [{"dst": "0.0.0.0/0", "nexthops": []}]`: "nexthops",
		ten + `, "dns": {"servers": []}`:                           "servers",
	} {
		p, err := New([]byte(conf(ipam, `"vlan": 7`)))
		require.NotNil(t, p)
		if key == "" {
			require.NoError(t, err)
			continue
		}
		var unknown *sdk.UnknownKeyError
		require.ErrorAs(t, err, &unknown)
		require.Equal(t, key, unknown.Key)
		result, err := p.Add(t.Context(), &sdk.CmdArgs{})
		require.NoError(t, err)
		require.Equal(t, "10.1.0.5/24", result.IPs[0].Address.String())
	}
}

// TestRefuses: configurations are refused on which the reference plugin panics,
// or which make it return an invalid result.
func TestRefuses(t *testing.T) {
	for _, ipam := range []string{`"addresses": [null]`, `"routes": [null]`, `"routes": [{}]`} {
		p, err := New([]byte(conf(ipam)))
		require.NoError(t, err)
		_, err = p.Add(t.Context(), &sdk.CmdArgs{})
		require.EqualValues(t, types.ErrInvalidNetworkConfig, plugintest.Code(err), "%s: %v", ipam, err)
	}
}

func TestStatus(t *testing.T) {
	for ipam, code := range map[string]uint{ten: 0, `"addresses": [{"address": "x"}]`: types.ErrPluginNotAvailable} {
		p, err := New([]byte(confOf("1.1.0", ipam)))
		require.NoError(t, err)
		err = p.Status(t.Context(), &sdk.CmdArgs{})
		if code == 0 {
			require.NoError(t, err)
			continue
		}
		require.Equal(t, code, plugintest.Code(err))
		require.NoError(t, p.GC(t.Context(), &sdk.CmdArgs{}))
	}
}

// FuzzAdd: no configuration makes the plugin panic, and every result of an
// accepted configuration can be encoded.
func FuzzAdd(f *testing.F) {
	for _, c := range conformance {
		f.Add(c.conf, c.args)
	}
	f.Fuzz(func(t *testing.T, text, args string) {
		p, err := New([]byte(text))
		if p == nil {
			require.Error(t, err)
			return
		}
		c := &sdk.CmdArgs{Args: args}
		_ = p.Check(t.Context(), c)
		result, err := p.Add(t.Context(), c)
		if err != nil {
			return
		}
		for _, ip := range result.IPs {
			require.Contains(t, []int{4, 16}, len(ip.Address.IP))
			require.NotNil(t, ip.Address.IP.Mask(ip.Address.Mask))
		}
		_, err = json.Marshal(result)
		require.NoError(t, err)
	})
}
