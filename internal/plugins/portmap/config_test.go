package portmap_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugins/portmap"
	"github.com/allocnet/allocnet/internal/plugins/sdk"
	"github.com/allocnet/allocnet/internal/testing/skip"
)

var invalidTests = []struct {
	name   string
	config object
	want   string
}{
	{"both marks", object{"markMasqBit": 1, "externalSetMarkChain": "X"}, "externalSetMarkChain and markMasqBit"},
	{"mark bit", object{"markMasqBit": 32}, "markMasqBit is 32"},
	{"negative mark bit", object{"markMasqBit": -1}, "markMasqBit is -1"},
	{"backend", object{"backend": "pf"}, `unrecognized backend "pf"`},
	{"empty backend", object{"backend": ""}, `unrecognized backend ""`},
	{"chain for nftables", object{"backend": "nftables", "externalSetMarkChain": "X"}, "[externalSetMarkChain] are for iptables only"},
	{"conditions for nftables", object{"backend": "nftables", "conditionsV4": []string{"-d", "1.2.3.4"}}, "[conditionsV4] are for iptables only"},
	{"conditions for iptables", object{"backend": "iptables", "conditionsV6": []string{"ip6", "daddr"}}, "[conditionsV6] are for nftables only"},
	{"conditions for both", object{"conditionsV4": []string{"-d"}, "conditionsV6": []string{"ip6"}}, "[conditionsV6] are for nftables only"},
	{"container port", ports("8080->0/tcp"), "invalid container port number: 0"},
	{"container port too high", ports("8080->65536/tcp"), "invalid container port number: 65536"},
	{"host port", ports("-1->80/tcp"), "invalid host port number: -1"},
	{"host port too high", ports("65536->80/tcp"), "invalid host port number: 65536"},
	{"protocol", ports("8080->80/icmp"), `port mapping 0: invalid protocol: "icmp"`},
	{"no protocol", ports("8080->80/tcp", "8081->80/"), `port mapping 1: invalid protocol: ""`},
	{"host IP", ports("1.2.3:8080->80/tcp"), `invalid host IP`},
	{"no result", object{"prevResult": nil}, "missing prevResult"},
}

// TestInvalid: configurations that the reference plugin refuses are refused
// with the same code. DEL accepts them, so that the DELs of previous plugins
// run.
func TestInvalid(t *testing.T) {
	h := newTestHost(t)
	two := h.allocation(2)
	for i, test := range invalidTests {
		t.Run(test.name, func(t *testing.T) {
			skip.InTurn(t, i, 3)
			two := two.with(ports("8080->80/tcp")).with(test.config)
			_, err := two.call(h.native, "ADD")
			require.ErrorContains(t, err, test.want)
			_, referenceErr := two.call(h.reference, "ADD")
			require.Error(t, referenceErr)
			require.Equal(t, code(referenceErr), code(err))
			_, err = two.call(h.native, "CHECK")
			require.ErrorContains(t, err, test.want)
			two.do("DEL")
			require.NotContains(t, h.rules(), "alloc-2")
		})
	}
}

func TestNew(t *testing.T) {
	_, err := portmap.New([]byte(`{`))
	require.EqualValues(t, 6, code(err))
	_, err = portmap.New([]byte(`{"snat": "no"}`))
	require.EqualValues(t, 6, code(err))
	_, err = portmap.New([]byte(`{"runtimeConfig": {"portMappings": 1}}`))
	require.EqualValues(t, 6, code(err))

	conf, err := json.Marshal(object{"snat": true, "hostPort": 1})
	require.NoError(t, err)
	p, err := portmap.New(conf)
	require.True(t, sdk.IsUnknownKey(err))
	require.ErrorContains(t, err, "hostPort")
	require.NotNil(t, p)
}
