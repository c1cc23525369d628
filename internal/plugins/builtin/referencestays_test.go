package builtin_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

// TestRepairLeavesTheReference: a repair changes neither the links nor the rules inside that the reference plugins have made.
func TestRepairLeavesTheReference(t *testing.T) {
	reference, native := runners(t)
	defer os.RemoveAll("/var/lib/cni/networks")
	defer removeBridge(t)
	for _, conf := range []object{ptpOf("net", 9), bridgeOf("net", "br0", 9)} {
		conf = withRoutes(conf, object{"dst": "0.0.0.0/0", "priority": 50})
		t.Run(conf["type"].(string), func(t *testing.T) {
			reference.t, native.t = t, t
			a := sandboxed(t, "stays-"+conf["type"].(string))
			made := reference.add(a, conf)
			link := ""
			for _, itf := range made["interfaces"].([]any) {
				if itf := itf.(object); itf["sandbox"] == nil && itf["name"] != "br0" {
					link = itf["name"].(string)
				}
			}
			output(t, "ip", "link", "set", link, "address", "02:00:00:00:00:99")
			output(t, "ip", "link", "set", link, "mtu", "1400")
			look := func() string {
				inside := []string{"-n", filepath.Base(a.netns)}
				return output(t, "ip", "link", "show", link) + output(t, "ip", append(inside, "rule")...) + output(t, "ip", append(inside, "route", "show", "table", "all")...)
			}
			before := look()
			_, err := native.run(sdk.Repair, a, with(conf, "prevResult", clone(t, made)))
			require.NoError(t, err)
			require.Equal(t, before, look())
			_, err = reference.run("DEL", a, with(conf, "prevResult", made))
			require.NoError(t, err)
		})
	}
}
