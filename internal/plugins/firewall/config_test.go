package firewall

import (
	"context"
	"fmt"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugins/sdk"
)

func TestConfiguration(t *testing.T) {
	tests := map[string]struct {
		keys, unknown string
		backend       backend
		admin         string
	}{
		"nothing":         {"", "", zoned{zone: "trusted"}, "CNI-ADMIN"},
		"all":             {`"iptablesAdminChainName": "MINE", "firewalldZone": "x", "ingressPolicy": "open",`, "", zoned{zone: "x"}, "MINE"},
		"iptables":        {`"backend": "iptables",`, "", iptablesBackend{}, "CNI-ADMIN"},
		"any other":       {`"backend": "x",`, "", zoned{zone: "trusted"}, "CNI-ADMIN"},
		"firewalld":       {`"backend": "firewalld",`, "", zoned{zone: "trusted", required: true}, "CNI-ADMIN"},
		"unknown":         {`"color": "red",`, "color", zoned{zone: "trusted"}, "CNI-ADMIN"},
		"unknown, legacy": {`"backend": "iptables", "color": "red",`, "color", iptablesBackend{}, "CNI-ADMIN"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := New([]byte(conf(test.keys)))
			if test.unknown == "" {
				require.NoError(t, err)
			} else {
				var unknown *sdk.UnknownKeyError
				require.ErrorAs(t, err, &unknown)
				require.Equal(t, test.unknown, unknown.Key)
			}
			require.Equal(t, test.backend, p.(*firewall).backend)
			require.Equal(t, test.admin, p.(*firewall).AdminChain)
		})
	}
}

func TestConfigurationThatIsNone(t *testing.T) {
	_, err := New([]byte(`{"backend": 1}`))
	var coded *types.Error
	require.ErrorAs(t, err, &coded)
	require.EqualValues(t, types.ErrDecodingFailure, coded.Code)
}

func TestWhatIsRefused(t *testing.T) {
	noBridge := `{"cniVersion": "1.1.0", "name": "net", "type": "firewall", "ingressPolicy": "isolated",
		"prevResult": {"cniVersion": "1.1.0", "interfaces": %s, "ips": [{"address": "10.1.0.2/24"}]}}`
	tests := map[string]struct{ conf, want string }{
		"no result":      {`{"cniVersion": "1.1.0", "name": "net", "type": "firewall"}`, "missing prevResult"},
		"null":           {`{"cniVersion": "1.1.0", "name": "net", "type": "firewall", "prevResult": null}`, "missing prevResult"},
		"unknown policy": {conf(`"ingressPolicy": "none",`, "10.1.0.2/24"), `unknown ingress policy: "none"`},
		"rules":          {conf(`"ingressPolicy": "published", "backend": "iptables",`, "10.1.0.2/24"), `ingressPolicy "published" needs allocnet's tables: remove "backend": "iptables"`},
		"no interfaces":  {fmt.Sprintf(noBridge, `[]`), "the first interface of prevResult is not a bridge"},
		"no interface":   {fmt.Sprintf(noBridge, `[null]`), "the first interface of prevResult is not a bridge"},
		"no name":        {fmt.Sprintf(noBridge, `[{"name": ""}]`), "the first interface of prevResult is not a bridge"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := New([]byte(test.conf))
			require.NoError(t, err)
			call := &sdk.CmdArgs{Host: &sdk.Host{}} // refused before it is used
			_, err = p.Add(context.Background(), call)
			require.ErrorContains(t, err, test.want)
			require.EqualValues(t, types.ErrInternal, sdk.AsReference(err).Code, "as the reference plugin")
			require.ErrorContains(t, p.Check(context.Background(), call), test.want)
		})
	}
}
