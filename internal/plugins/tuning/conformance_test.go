package tuning

import (
	"encoding/json"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/plugintest"
)

const everything = `, "mac": "0a:00:00:00:00:99", "mtu": 1300, "promisc": true, "allmulti": true, "txQLen": 20,
	"sysctl": {"net.core.somaxconn": "77", "net/ipv4/conf/all/accept_redirects": "0", "net.ipv4.conf.IFNAME.arp_ignore": "2"}`

// outcome is the observable effect of a life with the plugin.
type outcome struct {
	Before         []string
	Add            uint
	Result         any
	Added          []string
	Check          uint
	Del, Del2      uint
	Deleted, Twice []string
}

// live runs ADD, CHECK, DEL, DEL.
func live(h *testHost, run runner, conf string, env []string) outcome {
	o := outcome{Before: h.state()}
	var result string
	result, o.Add = run(h, "ADD", conf, env...)
	o.Added = h.state()
	if o.Add == 0 {
		require.NoError(h, json.Unmarshal([]byte(result), &o.Result), result)
		_, o.Check = run(h, "CHECK", plugintest.WithPrevResult(h.T, conf, result), env...)
	}
	_, o.Del = run(h, "DEL", conf, env...)
	o.Deleted = h.state()
	_, o.Del2 = run(h, "DEL", conf, env...)
	o.Twice = h.state()
	return o
}

func TestAsTheReference(t *testing.T) {
	for _, test := range []struct {
		name  string
		extra string
		conf  func(*testHost) string // instead of extra
		env   []string
		allow string
		add   uint
	}{
		{name: "nothing"},
		{name: "everything", extra: everything},
		{name: "mac", extra: `, "mac": "0a:00:00:00:00:99"`},
		{name: "mtu", extra: `, "mtu": 1280`},
		{name: "promisc", extra: `, "promisc": true`},
		{name: "allmulti off", extra: `, "allmulti": false`},
		{name: "allmulti on", extra: `, "allmulti": true`},
		{name: "txQLen", extra: `, "txQLen": 0`},
		{name: "interface's sysctl", extra: `, "sysctl": {"net.ipv4.conf.IFNAME.accept_redirects": "0"}`},
		{name: "empty values", extra: `, "mac": "", "mtu": 0, "promisc": false, "allmulti": null, "txQLen": null, "sysctl": null`},
		{name: "CNI_ARGS", extra: `, "mac": "0a:00:00:00:00:01"`, env: []string{"CNI_ARGS=IgnoreUnknown=1;X=y;MAC=0a:00:00:00:00:02"}},
		{name: "runtimeConfig before CNI_ARGS", extra: `, "runtimeConfig": {"mac": "0a:00:00:00:00:03", "ips": 1}`, env: []string{"CNI_ARGS=MAC=0a:00:00:00:00:02"}},
		{name: "args before runtimeConfig", extra: `, "runtimeConfig": {"mac": "0a:00:00:00:00:03"}, "args": {"cni": {"mac": "0a:00:00:00:00:04", "ips": []}, "x": 1}`},
		{name: "args before all", extra: everything + `, "args": {"cni": {"mac": "", "mtu": 1290, "promisc": false, "allmulti": false, "txQLen": 30,
			"sysctl": {"net.core.somaxconn": "78", "net.ipv4.ip_unprivileged_port_start": "80"}}}`},
		{name: "args alone", extra: `, "args": {"cni": {"mtu": 1290, "promisc": true, "allmulti": true, "txQLen": 30}}`},
		{name: "null args", extra: `, "mtu": 1290, "args": {"cni": null}`},
		{name: "allowed", extra: everything, allow: " ^net.core \n\n^net.ipv4.conf.(all|IFNAME).[a-z_]*$"},
		{name: "not allowed", extra: everything, allow: "^net.core", add: 999},
		{name: "allowed before a bad pattern", extra: `, "sysctl": {"net.core.somaxconn": "77"}`, allow: "somax\n("},
		{name: "bad pattern", extra: `, "sysctl": {"net.core.somaxconn": "77"}`, allow: "(\nsomax", add: 999},
		{name: "empty allowlist", extra: `, "sysctl": {"net.core.somaxconn": "77"}`, allow: "\n", add: 999},
		{name: "unknown CNI_ARGS", env: []string{"CNI_ARGS=X=y"}, add: 999},
		{name: "bad CNI_ARGS", env: []string{"CNI_ARGS=X"}, add: 999},
		{name: "bad mac", extra: `, "mac": "0a:00"`, add: 999},
		{name: "multicast mac", extra: `, "mac": "01:00:5e:00:00:01"`, add: 999},
		{name: "mtu too small", extra: `, "mtu": 1`, add: 999},
		{name: "negative mtu", extra: `, "mtu": -1`, add: 999},
		{name: "kernel sysctl", extra: `, "sysctl": {"kernel.hostname": "x"}`, add: 999},
		{name: "sysctl out of net", extra: `, "sysctl": {"net/../kernel/hostname": "x"}`, add: 999},
		{name: "sysctl unknown", extra: `, "sysctl": {"net.core.unknown": "1"}`, add: 999},
		{name: "sysctl value", extra: `, "sysctl": {"net.core.somaxconn": "x"}`, add: 999},
		{name: "sysctl twice", extra: `, "sysctl": {"net.core.somaxconn": "1", "net.core.somaxconn": "1"}`, add: 999},
		{name: "interface missing", extra: `, "mtu": 1280`, env: []string{"CNI_IFNAME=none"}, add: 999},
		{name: "interface invalid", extra: `, "mtu": 1280`, env: []string{"CNI_IFNAME=../x"}, add: 4},
		{name: "container invalid", extra: `, "mtu": 1280`, env: []string{"CNI_CONTAINERID=../x"}, add: 4},
		{name: "namespace missing", extra: `, "mtu": 1280`, env: []string{"CNI_NETNS=/run/netns/none"}, add: 999},
		{name: "not chained", conf: func(h *testHost) string { return h.configWith("1.0.0", everything) }, add: 999},
		{name: "version 0.4.0", conf: func(h *testHost) string {
			return h.configWith("0.4.0", everything+`, "prevResult": {"cniVersion": "0.4.0", "interfaces": [{"name": "eth0.100", "sandbox": "/x"}],
				"ips": [{"version": "4", "address": "10.1.0.2/24"}]}`)
		}},
		{name: "version 1.1.0", conf: func(h *testHost) string {
			return h.configWith("1.1.0", everything+`, "prevResult": {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0.100", "sandbox": "/x"}],
				"routes": [{"dst": "0.0.0.0/0", "mtu": 1300}]}`)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			run := func(name string, run runner) (o outcome) {
				require.True(t, t.Run(name, func(t *testing.T) {
					h := newTestHost(t)
					if test.allow != "" {
						h.allow(test.allow)
					}
					conf := h.config(test.extra)
					if test.conf != nil {
						conf = test.conf(h)
					}
					o = live(h, run, conf, test.env)
				}))
				return o
			}
			want, got := run("theirs", theirs), run("ours", ours)
			require.Equal(t, test.add, want.Add)
			requireSame(t, test.add, want, got)
		})
	}
}

// requireSame compares the outcomes. If ADD fails, only the codes must be
// equal: the reference plugin leaves its changes, and fails a DEL because of
// arguments that it does not need.
func requireSame(t *testing.T, add uint, want, got outcome) {
	t.Helper()
	if add == types.ErrInvalidEnvironmentVariables {
		require.Equal(t, add, got.Del)
		got.Del, got.Del2 = 0, 0
	}
	if add != 0 {
		want = outcome{Before: want.Before, Add: add, Added: want.Before, Deleted: want.Before, Twice: want.Before}
	}
	require.Equal(t, want, got)
}

// TestEachDeletesTheOthers: each implementation checks and deletes what the
// other added.
func TestEachDeletesTheOthers(t *testing.T) {
	for name, pair := range map[string][2]runner{"ours deletes": {theirs, ours}, "theirs deletes": {ours, theirs}} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			conf := h.config(everything)
			before := h.state()[0]
			result, code := pair[0](h, "ADD", conf)
			require.Zero(t, code, result)
			require.NotEqual(t, before, h.state()[0])
			require.Len(t, h.backups(), 1)
			conf = plugintest.WithPrevResult(t, conf, result)
			out, code := pair[1](h, "CHECK", conf)
			require.Zero(t, code, out)
			out, code = pair[1](h, "DEL", conf)
			require.Zero(t, code, out)
			require.Equal(t, before, h.state()[0])
			require.Empty(t, h.backups())
		})
	}
}
