package flannel_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/testing/fakeplugin"
	"github.com/allocnet/allocnet/internal/testing/plugintest"
)

func text(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return string(data)
}

// binaryHost returns a host with a binary, which behaves as given, and a configuration that
// delegates to it.
func binaryHost(t *testing.T, binary, version string, on map[string]fakeplugin.Behaviour) (h *testHost, conf object, log string) {
	h = newHost(t)
	require.NoError(t, fakeplugin.Install(h.plugins, binary))
	log = filepath.Join(t.TempDir(), "calls")
	fake := fakeplugin.Config{Log: log, On: on}
	return h, h.conf("cniVersion", version, "delegate", object{"type": binary, "mode": "mode of " + binary, "master": "up0", "fake": fake}), log
}

const macvlanResult = `{"interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"10.9.0.2/24","version":"4","interface":0}]}`

// TestBinary: other delegates run as binaries, with the derived configuration. They get
// the result of ADD if their version has that. A fake binary stands in, because not every
// kernel has links of the type ipvlan.
func TestBinary(t *testing.T) {
	for _, test := range []struct {
		binary, version string
		withResult      bool
	}{
		{"macvlan", "1.1.0", true}, {"macvlan", "0.4.0", true}, {"macvlan", "0.3.1", false},
		{"ipvlan", "1.1.0", true}, {"ipvlan", "0.4.0", true}, {"ipvlan", "0.3.1", false},
	} {
		version, withResult := test.version, test.withResult
		t.Run(test.binary+" "+version, func(t *testing.T) {
			h, conf, log := binaryHost(t, test.binary, version, map[string]fakeplugin.Behaviour{
				"ADD": {Result: json.RawMessage(`{"cniVersion":"` + version + `",` + macvlanResult[1:])},
			})
			result := h.must("ADD", "a", conf, "")
			h.subnets("")
			commands := []string{"ADD"}
			h.must("CHECK", "a", conf, result)
			if withResult { // the version has CHECK
				commands = append(commands, "CHECK")
			}
			h.must("DEL", "a", conf, result)
			h.must("DEL", "a", conf, result) // from the result alone
			commands = append(commands, "DEL", "DEL")
			calls, err := fakeplugin.Calls(log)
			require.NoError(t, err)
			require.Len(t, calls, len(commands))
			for i, c := range calls {
				require.Equal(t, []string{commands[i], "a", "eth0"}, []string{c.Command, c.ID, c.IfName})
				var given struct {
					Name, Type   string
					Master, Mode string
					CNIVersion   string
					MTU          int
					IPAM         struct{ Ranges [][]struct{ Subnet string } }
					PrevResult   json.RawMessage
				}
				require.NoError(t, json.Unmarshal(c.Stdin, &given))
				require.Equal(t, []string{"net", test.binary, "up0", "mode of " + test.binary, version},
					[]string{given.Name, given.Type, given.Master, given.Mode, given.CNIVersion})
				require.Equal(t, "10.9.0.0/24", given.IPAM.Ranges[0][0].Subnet)
				require.Equal(t, withResult && i > 0, len(given.PrevResult) > 0)
				if i < len(calls)-1 {
					require.Equal(t, 1450, given.MTU)
					require.Len(t, given.IPAM.Ranges, 2)
				}
			}
			h.requireNothing()
		})
	}
}

// TestFailedBinary: the errors of a binary keep their codes. After a failed ADD the
// configuration stays for the DEL, and after a failed DEL for the next one.
func TestFailedBinary(t *testing.T) {
	h, conf, log := binaryHost(t, "macvlan", "1.1.0", map[string]fakeplugin.Behaviour{
		"ADD": {Code: types.ErrTryAgainLater, Msg: "busy"}, "DEL": {Code: 123, Msg: "cannot", Only: 1},
		"STATUS": {Code: types.ErrLimitedConnectivity, Msg: "alone"},
	})
	_, err := h.call("STATUS", "", conf, "")
	require.EqualValues(t, types.ErrLimitedConnectivity, plugintest.Code(err))
	_, err = h.call("ADD", "a", conf, "")
	require.EqualValues(t, types.ErrTryAgainLater, plugintest.Code(err))
	h.subnets("")
	_, err = h.call("DEL", "a", conf, "")
	require.EqualValues(t, 123, plugintest.Code(err))
	require.Equal(t, []string{"a"}, h.files())
	h.must("DEL", "a", conf, "")
	commands, err := fakeplugin.Commands(log)
	require.NoError(t, err)
	require.Equal(t, []string{"macvlan STATUS", "macvlan ADD", "macvlan DEL", "macvlan DEL"}, commands)
	h.requireNothing()
}

// TestNoBinary: the delegate is not installed.
func TestNoBinary(t *testing.T) {
	h, conf, _ := binaryHost(t, "macvlan", "1.1.0", nil)
	require.NoError(t, os.Remove(filepath.Join(h.plugins, "macvlan")))
	for _, command := range []string{"ADD", "DEL", "STATUS"} {
		_, err := h.call(command, "a", conf, "")
		require.ErrorContains(t, err, `find plugin "macvlan": it is not in`, command)
	}
}
