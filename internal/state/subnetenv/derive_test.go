package subnetenv

import (
	"errors"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"
)

func parsed(t *testing.T, text string) Env {
	env, err := ParseEnv("subnet.env", []byte(text))
	require.NoError(t, err)
	return env
}

// derive reads a configuration and returns the one that is derived from it.
func derive(conf string, env Env) ([]byte, error) {
	c, err := ParseConf([]byte(conf))
	if err != nil {
		return nil, err
	}
	return c.Derive(env)
}

const v4IPAM = `"ipam":{"ranges":[[{"subnet":"10.1.17.0/24"}]],"routes":[{"dst":"10.1.0.0/16"}],"type":"host-local"}`

const dualIPAM = `"ipam":{"ranges":[[{"subnet":"10.1.17.0/24"}],[{"subnet":"fc00::/64"}]],` +
	`"routes":[{"dst":"10.1.0.0/16"},{"dst":"192.168.0.0/16"},{"dst":"fc00::/48"}],"type":"host-local"}`

const dualExcept = `"ipMasqExcept":["10.1.0.0/16","192.168.0.0/16","fc00::/48"]`

func TestDerive(t *testing.T) {
	for name, c := range map[string]struct{ env, conf, want string }{
		"defaults": {v4Env, `{"name":"net","type":"flannel"}`,
			`{"ipMasq":false,` + v4IPAM + `,"isGateway":true,"mtu":1472,"name":"net","type":"bridge"}`},
		"version": {v4Env, `{"name":"net","type":"flannel","cniVersion":"1.0.0","unknown":1}`,
			`{"cniVersion":"1.0.0","ipMasq":false,` + v4IPAM + `,"isGateway":true,"mtu":1472,"name":"net","type":"bridge"}`},
		"of a list": {v4Env, `{"type":"flannel","cniVersion":"","delegate":null,"ipam":null,"runtimeConfig":null}`,
			`{"ipMasq":false,` + v4IPAM + `,"isGateway":true,"mtu":1472,"type":"bridge"}`},
		"dual stack without flannel's masquerading": {dualEnv, `{"type":"flannel"}`,
			`{"ipMasq":true,` + dualExcept + `,` + dualIPAM + `,"isGateway":true,"mtu":1450,"type":"bridge"}`},
		"ptp": {dualEnv, `{"type":"flannel","delegate":{"type":"ptp","ipMasqBackend":null}}`,
			`{"ipMasq":true,"ipMasqBackend":null,` + dualExcept + `,` + dualIPAM + `,"mtu":1450,"type":"ptp"}`},
		"ipvlan": {dualEnv, `{"type":"flannel","delegate":{"type":"ipvlan","master":"eth0"}}`,
			`{"ipMasq":true,` + dualIPAM + `,"master":"eth0","mtu":1450,"type":"ipvlan"}`},
		"what the delegate has itself": {dualEnv,
			`{"type":"flannel","delegate":{"bridge":"b0","isGateway":false,"ipMasq":false,"mtu":1e3,"cniVersion":"0.4.0"}}`,
			`{"bridge":"b0","cniVersion":"0.4.0","ipMasq":false,` + dualIPAM + `,"isGateway":false,"mtu":1e3,"type":"bridge"}`},
		"masquerading by the delegate as well": {v4Env, `{"type":"flannel","delegate":{"ipMasq":true}}`,
			`{"ipMasq":true,"ipMasqExcept":["10.1.0.0/16"],` + v4IPAM + `,"isGateway":true,"mtu":1472,"type":"bridge"}`},
		"own exceptions": {dualEnv, `{"type":"flannel","delegate":{"ipMasqExcept":[]}}`,
			`{"ipMasq":true,"ipMasqExcept":[],` + dualIPAM + `,"isGateway":true,"mtu":1450,"type":"bridge"}`},
		"arguments of capabilities": {v4Env,
			`{"type":"flannel","capabilities":{"mac":true},"runtimeConfig":{"mac":"02:00:00:00:00:01"},"delegate":{"runtimeConfig":{"x":1}}}`,
			`{"capabilities":{"mac":true},"ipMasq":false,` + v4IPAM + `,"isGateway":true,"mtu":1472,` +
				`"runtimeConfig":{"mac":"02:00:00:00:00:01"},"type":"bridge"}`},
		"own IPAM configuration": {v4Env,
			`{"type":"flannel","ipam":{"type":"my-ipam","dataDir":"/d","ranges":[],"subnet":"1.1.1.0/24",` +
				`"routes":[{"dst":"10.96.0.0/12"},{"dst":"0.0.0.0/0","gw":"10.1.17.20","x":1}]}}`,
			`{"ipMasq":false,"ipam":{"dataDir":"/d","ranges":[[{"subnet":"10.1.17.0/24"}]],` +
				`"routes":[{"dst":"10.96.0.0/12"},{"dst":"0.0.0.0/0","gw":"10.1.17.20"},{"dst":"10.1.0.0/16"}],` +
				`"subnet":"1.1.1.0/24","type":"my-ipam"},"isGateway":true,"mtu":1472,"type":"bridge"}`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := derive(c.conf, parsed(t, c.env))
			require.NoError(t, err)
			require.Equal(t, c.want, string(got))
		})
	}
}

// TestDeriveErrors: what the reference plugin refuses is refused, and what would become
// a path.
func TestDeriveErrors(t *testing.T) {
	for conf, want := range map[string]struct {
		code uint
		text string
	}{
		`[]`:                                        {types.ErrDecodingFailure, "network configuration cannot be read"},
		`{"delegate":"bridge"}`:                     {types.ErrDecodingFailure, "network configuration cannot be read"},
		`{"ipam":{"routes":[{"dst":"x"}]}}`:         {types.ErrDecodingFailure, `"routes" of "ipam" cannot be read`},
		`{"delegate":{"type":7}}`:                   {types.ErrInvalidNetworkConfig, `"delegate": "type" is not a string`},
		`{"delegate":{"type":null}}`:                {types.ErrInvalidNetworkConfig, `"delegate": "type" is not a string`},
		`{"delegate":{"type":"../x"}}`:              {types.ErrInvalidNetworkConfig, `type "../x" is not a file name`},
		`{"delegate":{"type":"flannel"}}`:           {types.ErrInvalidNetworkConfig, `the type is "flannel" itself`},
		`{"delegate":{"name":"x"}}`:                 {types.ErrInvalidNetworkConfig, `"delegate" has the key "name", which flannel sets`},
		`{"delegate":{"ipam":{}}}`:                  {types.ErrInvalidNetworkConfig, `"delegate" has the key "ipam", which flannel sets`},
		`{"ipam":{"type":"a/b"}}`:                   {types.ErrInvalidNetworkConfig, `type "a/b" is not a file name`},
		`{"dataDir":""}`:                            {types.ErrInvalidNetworkConfig, `"dataDir" is "", not an absolute path`},
		`{"subnetFile":"subnet.env"}`:               {types.ErrInvalidNetworkConfig, `"subnetFile" is "subnet.env", not an absolute path`},
		`{"dataDir":"/a\u0000b","subnetFile":"/e"}`: {types.ErrInvalidNetworkConfig, `"dataDir" is "/a\x00b", not an absolute path`},
	} {
		_, err := derive(conf, parsed(t, v4Env))
		var coded *types.Error
		require.True(t, errors.As(err, &coded), conf)
		require.Equal(t, want.code, coded.Code, conf)
		require.ErrorContains(t, err, want.text, conf)
	}
}

func TestParseConf(t *testing.T) {
	c, err := ParseConf([]byte(`{}`))
	require.NoError(t, err)
	require.Equal(t, []string{"/run/flannel/subnet.env", "/var/lib/cni/flannel"}, []string{c.SubnetFile, c.DataDir})
	c, err = ParseConf([]byte(`{"subnetFile":"/e","dataDir":"/d"}`))
	require.NoError(t, err)
	require.Equal(t, []string{"/e", "/d"}, []string{c.SubnetFile, c.DataDir})
}
