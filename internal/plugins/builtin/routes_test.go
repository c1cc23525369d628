package builtin_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRoutesOfAChain: whichever plugin of a chain removes the elements of a container first,
// the routes for routing daemons go with them, in DEL without a result and in GC.
func TestRoutesOfAChain(t *testing.T) {
	_, native := runners(t)
	defer os.RemoveAll("/var/lib/cni/networks")
	conf := func(keys object) object {
		all := object{"cniVersion": "1.1.0", "name": "net"}
		for key, value := range keys {
			all[key] = value
		}
		return all
	}
	bridge := conf(object{"type": "bridge", "bridge": "br0", "isGateway": true, "ipMasq": true, "ipam": hostLocal("10.9.0.0/24", "fd00:9::/64")})
	routes := conf(object{"type": "routes", "table": 100})
	table := func() string {
		out4, _ := exec.Command("ip", "-4", "route", "show", "table", "100").Output() // fails without the table
		out6, _ := exec.Command("ip", "-6", "route", "show", "table", "100").Output()
		return string(out4) + string(out6)
	}
	for name, remove := range map[string]func(a attachment, plugin object) error{
		"DEL": func(a attachment, plugin object) error { _, err := native.run("DEL", a, plugin); return err },
		"GC": func(_ attachment, plugin object) error {
			_, err := native.run("GC", attachment{}, with(plugin, "cni.dev/valid-attachments", []any{}))
			return err
		},
	} {
		for _, first := range []object{
			routes, bridge, conf(object{"type": "firewall"}),
			conf(object{"type": "portmap", "runtimeConfig": object{"portMappings": []object{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}}),
		} {
			t.Run(name+" of "+first["type"].(string), func(t *testing.T) {
				native.t = t
				a := sandboxed(t, "routes")
				result := native.add(a, bridge)
				native.add(a, with(routes, "prevResult", result))
				require.Equal(t, 2, strings.Count(table(), "dev br0 proto 91"))
				require.NoError(t, remove(a, first))
				require.Empty(t, table())
				require.NoError(t, remove(a, routes))
				require.NoError(t, remove(a, bridge))
				requireGone(t, a)
				removeBridge(t)
			})
		}
	}
}
