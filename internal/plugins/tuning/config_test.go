package tuning

import (
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

func TestSysctlFile(t *testing.T) {
	for _, test := range []struct{ key, ifName, want string }{
		{"net.core.somaxconn", "eth0", "/proc/sys/net/core/somaxconn"},
		{"net/core/somaxconn", "eth0", "/proc/sys/net/core/somaxconn"},
		{"net.ipv4.conf.IFNAME.arp_ignore", "eth0.1", "/proc/sys/net/ipv4/conf/eth0.1/arp_ignore"},
		{"net.ipv4.conf.IFNAME.IFNAME", "a..b", "/proc/sys/net/ipv4/conf/a..b/IFNAME"},
		{"net/../kernel.hostname", "eth0", "/proc/sys/net/kernel/hostname"},
		{"net.IFNAME.kernel.hostname", "..", ""},
		{"net.ipv4.IFNAME.core.somaxconn", "..", ""},
		{"net.ipv4.IFNAME.tcp_rmem", "../../vm", ""},
		{"net", "eth0", ""},
		{"net.", "eth0", ""},
		{"", "eth0", ""},
		{"network.x", "eth0", ""},
		{"kernel.hostname", "eth0", ""},
		{"/net.core", "eth0", "/proc/sys/net/core"},
		{"IFNAME.core", "net", "/proc/sys/net/core"},
	} {
		got, err := sysctl{key: test.key}.file(test.ifName)
		require.Equal(t, test.want, got, test.key)
		require.Equal(t, test.want == "", err != nil, test.key)
	}
}

func TestUnknownKey(t *testing.T) {
	p, err := New([]byte(`{"later": 1, "mtu": 1300, "sysctl": {"net.b": "1", "net.a": "2"}}`))
	var unknown *sdk.UnknownKeyError
	require.ErrorAs(t, err, &unknown)
	require.Equal(t, "later", unknown.Key)
	require.Equal(t, 1300, p.(*tuning).MTU, "the rest is understood")
	require.Equal(t, sysctls{list: []sysctl{{"net.b", "1"}, {"net.a", "2"}}}, p.(*tuning).Sysctl)
}

func TestKnownKeys(t *testing.T) {
	p, err := New([]byte(`{"cniVersion": "1.0.0", "name": "n", "type": "tuning", "capabilities": {"mac": true}, "ipam": {},
		"dns": {}, "args": {"cni": {"ips": [], "mtu": 2}, "x": 1}, "runtimeConfig": {"mac": "x", "bandwidth": {}},
		"prevResult": {}, "cni.dev/valid-attachments": [], "dataDir": "/d", "sysctl": {}, "mac": "", "promisc": true,
		"mtu": 1, "allmulti": true, "txQLen": 1}`))
	require.NoError(t, err)
	require.Equal(t, "/d", p.(*tuning).DataDir)
	p, err = New([]byte(`{}`))
	require.NoError(t, err)
	require.Equal(t, "/run/cni/tuning", p.(*tuning).DataDir)
}

func TestUndecodable(t *testing.T) {
	for _, conf := range []string{
		``, `[]`, `{"mtu": "1"}`, `{"sysctl": {"a": 1}}`, `{"sysctl": []}`, `{"x": 1, "promisc": 1}`, `{"runtimeConfig": {"mac": 1}}`,
		`{"args": {"cni": {"mac": 1}}}`, `{"args": {"cni": {"sysctl": "x"}}}`, `{"args": 1}`,
	} {
		_, err := New([]byte(conf))
		var coded *types.Error
		require.ErrorAs(t, err, &coded, conf)
		require.Equal(t, types.ErrDecodingFailure, coded.Code)
	}
}

func TestSettings(t *testing.T) {
	for conf, want := range map[string]string{
		`{"mac": "0a:00:00:00:00"}`:                        "mac: address 0a:00:00:00:00: invalid MAC address",
		`{"mac": "00:00:00:00:00:00"}`:                     "mac: all bytes are zero",
		`{"mac": "ff:ff:ff:ff:ff:ff"}`:                     "mac: a group address: the first byte must be even",
		`{"mtu": -1}`:                                      "mtu -1 is out of range",
		`{"mtu": 4294967297}`:                              "mtu 4294967297 is out of range",
		`{"txQLen": -1}`:                                   "txQLen -1 is out of range",
		`{"txQLen": 4294967297}`:                           "txQLen 4294967297 is out of range",
		`{"mtu": 1, "args": {"cni": {"mtu": -1}}}`:         "mtu -1 is out of range",
		`{"mac": "x", "args": {"cni": {"mac": ""}}}`:       "",
		`{"mtu": 2147483647, "txQLen": 2147483647}`:        "",
		`{"sysctl": {"a": "1", "b": null}, "mac": null}`:   "",
		`{"mac": "0A-00-00-00-00-01", "txQLen": 0}`:        "",
		`{"args": {"cni": {"sysctl": null, "mtu": null}}}`: "",
	} {
		p, err := New([]byte(conf))
		require.NoError(t, err, conf)
		_, err = p.(*tuning).settings("")
		if want == "" {
			require.NoError(t, err, conf)
		} else {
			require.EqualError(t, err, want)
		}
	}
}

func FuzzNew(f *testing.F) {
	f.Add([]byte(`{"mtu": 1, "sysctl": {"net.core.somaxconn": "1", "net.core.somaxconn": "2"}, "mac": "0a:00:00:00:00:01"}`), "MAC=x", "eth0")
	f.Add([]byte(`{"x": 1, "args": {"cni": {"sysctl": {"net/IFNAME/x": ""}}}, "runtimeConfig": {"mac": "x"}}`), "", "..")
	f.Add([]byte(`{"sysctl": null, "allmulti": true, "txQLen": -1}`), "IgnoreUnknown=1;A=b", "a/b")
	f.Fuzz(func(t *testing.T, conf []byte, args, ifName string) {
		p, err := New(conf)
		if err != nil && !sdk.IsUnknownKey(err) {
			var coded *types.Error
			require.ErrorAs(t, err, &coded)
			return
		}
		s, err := p.(*tuning).settings(args)
		if err != nil {
			return
		}
		for _, one := range s.sysctls {
			file, err := one.file(ifName)
			if err == nil {
				require.True(t, strings.HasPrefix(file, sysctlRoot), file)
				require.NotContains(t, strings.Split(file, "/"), "..")
			}
		}
	})
}

func FuzzAllowlist(f *testing.F) {
	f.Add("^net.core.x$\n(", "net.core.x")
	f.Fuzz(func(t *testing.T, text, key string) {
		patterns := parseAllowlist(text)
		for _, p := range patterns {
			require.NotEmpty(t, strings.TrimSpace(p))
		}
		if ok, _ := allowed(key, patterns); ok {
			require.NotEmpty(t, patterns)
		}
	})
}
