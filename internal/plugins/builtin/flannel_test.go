package builtin_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/skip"
)

// flannelDir is the default directory of the saved configurations.
const flannelDir = "/var/lib/cni/flannel"

const (
	v4Subnets   = "FLANNEL_NETWORK=10.9.0.0/16\nFLANNEL_SUBNET=10.9.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	v6Subnets   = "FLANNEL_IPV6_NETWORK=fd00:9::/48\nFLANNEL_IPV6_SUBNET=fd00:9::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	dualSubnets = v4Subnets + v6Subnets
	masqSubnets = dualSubnets + "FLANNEL_IPMASQ=false\n"
)

// flannelConfigurations are run with both implementations. Those that fail must fail
// with both, with the same code, except that without subnets the native plugin reports
// that it is not available.
var flannelConfigurations = []struct {
	name, env string
	conf      object
}{
	{"IPv4", v4Subnets, object{"delegate": object{"bridge": "br0"}}},
	{"IPv6", v6Subnets, object{"delegate": object{"bridge": "br0"}}},
	{"dual stack", dualSubnets, object{"delegate": object{"bridge": "br0", "hairpinMode": true, "isDefaultGateway": true}}},
	{"delegate masquerades", masqSubnets, object{"delegate": object{"bridge": "br0"}}},
	{"named backend", masqSubnets, object{"delegate": object{"bridge": "br0", "ipMasqBackend": "iptables"}}},
	{"no gateway", v4Subnets, object{"delegate": object{"bridge": "br0", "isGateway": false, "mtu": 1400, "ipMasq": false}}},
	{"ptp", masqSubnets, object{"delegate": object{"type": "ptp"}}},
	{"version 0.3.1", v4Subnets, object{"cniVersion": "0.3.1", "delegate": object{"bridge": "br0"}}},
	{"routes and directory of leases", dualSubnets, object{"delegate": object{"bridge": "br0"},
		"ipam": object{"dataDir": "/var/lib/cni/networks", "routes": []object{{"dst": "10.96.0.0/12"}, {"dst": "::/0", "gw": "fd00:9::9"}}}}},
	{"runtimeConfig", v4Subnets, object{"delegate": object{"bridge": "br0", "runtimeConfig": object{"mac": "02:aa:00:00:00:01"}},
		"runtimeConfig": object{"mac": "02:aa:00:00:00:03"}}},
	{"unused keys", v4Subnets, object{"delegate": object{"bridge": "br0"}, "args": object{"cni": object{"mac": "02:aa:00:00:00:02"}},
		"dns": object{"nameservers": []string{"10.0.0.1"}}}},

	{"bad: no file of subnets", "", object{}},
	{"bad: no subnet", "FLANNEL_NETWORK=10.9.0.0/16\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n", object{}},
	{"bad: subnet", v4Subnets + "FLANNEL_SUBNET=10.9.0.1\n", object{}},
	{"bad: MTU", v4Subnets + "FLANNEL_MTU=-1\n", object{}},
	{"bad: type", v4Subnets, object{"delegate": object{"type": 7}}},
	{"bad: type null", v4Subnets, object{"delegate": object{"type": nil}}},
	{"bad: name", v4Subnets, object{"delegate": object{"name": "x"}}},
	{"bad: ipam of the delegate", v4Subnets, object{"delegate": object{"ipam": object{}}}},
	{"bad: routes", v4Subnets, object{"ipam": object{"routes": []object{{"dst": "x"}}}}},
	{"bad: delegate", v4Subnets, object{"delegate": "bridge"}},
	{"bad: configuration of the delegate", v4Subnets, object{"delegate": object{"bridge": "br0", "vlan": 5000}}},
}

// flannelConf completes a configuration, with a file of the subnets.
func flannelConf(t *testing.T, env string, conf object) object {
	t.Helper()
	file := filepath.Join(t.TempDir(), "subnet.env")
	if env != "" {
		require.NoError(t, os.WriteFile(file, []byte(env), 0o644))
	}
	conf = with(with(with(conf, "name", "net"), "type", "flannel"), "subnetFile", file)
	if conf["cniVersion"] == nil {
		conf["cniVersion"] = "0.4.0" // the newest that the reference plugin supports
	}
	return conf
}

// TestFlannelLikeTheReference is TestLikeTheReference for flannel. Neither leaves a
// file.
func TestFlannelLikeTheReference(t *testing.T) {
	reference, native := runners(t)
	for i, c := range flannelConfigurations {
		t.Run(c.name, func(t *testing.T) {
			skip.InTurn(t, i, 6)
			conf := flannelConf(t, c.env, c.conf)
			bad := strings.HasPrefix(c.name, "bad")
			want := lifecycle(t, reference, native, fmt.Sprintf("r-%d", i), "", conf)
			require.Equal(t, bad, strings.HasPrefix(want, "error"), want)
			if bad { // the reference plugin leaves it after a failed ADD
				require.NoError(t, os.RemoveAll(flannelDir))
			}
			require.Empty(t, list(flannelDir))
			got := lifecycle(t, native, reference, fmt.Sprintf("n-%d", i), "", conf)
			if c.env == "" || c.conf["delegate"] == nil && c.conf["ipam"] == nil {
				require.Equal(t, "error 999 error 50", want+" "+got)
				return
			}
			require.Equal(t, want, got)
			require.Empty(t, list(flannelDir))
		})
	}
}

// TestFlannelFile: both save the same configuration of the delegate, with the same
// mode. Only the native plugin adds the exceptions from masquerading.
func TestFlannelFile(t *testing.T) {
	reference, native := runners(t)
	removeBridge(t)
	t.Cleanup(func() { removeBridge(t) })
	for i, c := range flannelConfigurations {
		if strings.HasPrefix(c.name, "bad") {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			conf := flannelConf(t, c.env, c.conf)
			files := map[string]object{}
			for _, r := range []*runner{reference, native} {
				r.t = t
				a := sandboxed(t, fmt.Sprint("file-", r.name, i))
				withResult := withResult(t, conf, r.add(a, conf))
				path := filepath.Join(flannelDir, a.id)
				data, err := os.ReadFile(path)
				require.NoError(t, err)
				info, err := os.Lstat(path)
				require.NoError(t, err)
				require.Equal(t, os.FileMode(0o600), info.Mode())
				var file object
				require.NoError(t, json.Unmarshal(data, &file))
				files[r.name] = file
				require.Equal(t, []string{a.id}, list(flannelDir))
				_, err = r.run("DEL", a, withResult)
				require.NoError(t, err)
				require.Empty(t, list(flannelDir))
			}
			want, got := files["reference"], files["native"]
			if want["ipMasq"] == true {
				require.NotEmpty(t, got["ipMasqExcept"])
				delete(got, "ipMasqExcept")
			}
			require.Equal(t, want, got)
		})
	}
}
