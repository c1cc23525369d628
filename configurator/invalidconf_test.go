package configurator

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
)

// TestInvalidConfigurations: with an invalid value of a configuration, Setup makes one attempt, and
// the error has the CNI code for an invalid configuration.
func TestInvalidConfigurations(t *testing.T) {
	const ipam = `"ipam":{"type":"host-local","dataDir":"LEASES","subnet":"10.77.0.0/24"}`
	bridge := func(keys string) string { return `{"type":"bridge","bridge":"brtest",` + keys + ipam + `}` }
	ptp := func(keys string) string { return `{"type":"ptp",` + keys + ipam + `}` }
	after := func(plugin string) string { return ptp("") + "," + plugin }
	for plugins, want := range map[string]string{
		ptp(`"mtu":70000,`):                              "mtu 70000 is not between 68 and 65535",
		bridge(`"mtu":70000,`):                           "mtu 70000",
		bridge(`"mtu":7,`):                               "mtu 7",
		bridge(`"vlan":5000,`):                           "invalid VLAN ID 5000",
		bridge(`"vlanTrunk":[{"id":5000}],`):             "trunk id",
		bridge(`"hairpinMode":true,"promiscMode":true,`): "promiscuous",
		ptp(`"ipMasq":true,"ipMasqBackend":"x",`):        "unknown ipmasq backend",
		`{"type":"bridge","bridge":"br%d"}`:              "interface name contains %",
		`{"type":"ptp"}`:                                 "an IPAM plugin is needed",
		strings.Replace(ptp(""), `"subnet"`, `"routes":[{"dst":"0.0.0.0/0","priority":-1}],"subnet"`, 1): "priority -1",
		after(`{"type":"portmap","markMasqBit":40}`):                                                     "markMasqBit is 40",
		after(`{"type":"portmap","backend":"x"}`):                                                        "unrecognized backend",
		after(`{"type":"bandwidth","ingressRate":8000}`):                                                 "a rate needs a burst",
		after(`{"type":"tuning","mtu":-1}`):                                                              "mtu -1",
		after(`{"type":"tuning","mac":"x"}`):                                                             "mac",
		after(`{"type":"tuning","sysctl":{"kernel.x":"1"}}`):                                             "not below net",
		bridge("") + `,{"type":"firewall","ingressPolicy":"x"}`:                                          "unknown ingress policy",
	} {
		t.Run(want, func(t *testing.T) {
			h, leases := nativeHost(t, "1.0.0")
			h.file("net.conflist", fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","plugins":[%s]}`, strings.ReplaceAll(plugins, "LEASES", leases)))
			_, err := h.Setup(t.Context(), h.alloc("a"))
			require.ErrorContains(t, err, want)
			var coded *types.Error
			require.ErrorAs(t, err, &coded)
			require.EqualValues(t, types.ErrInvalidNetworkConfig, coded.Code)
			require.Empty(t, h.slept, "no second attempt")
		})
	}
}

// TestCheckOfAnInvalidConfiguration: an invalid configuration says nothing about the network.
func TestCheckOfAnInvalidConfiguration(t *testing.T) {
	h := newTestHost(t)
	h.network("net", "1.0.0", adds(behaviours{"CHECK": {Code: 7, Msg: "bad key"}}))
	a := h.alloc("a")
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	err = h.CheckOnly(t.Context(), a)
	require.ErrorIs(t, err, ErrNotChecked)
	require.NotErrorIs(t, err, ErrUnhealthy)
	require.ErrorContains(t, err, "bad key")
}
