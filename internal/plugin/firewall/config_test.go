package firewall

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet/internal/plugin"
)

// nowhere lets firewalld not run.
func nowhere(t *testing.T) {
	marks := firewalldMarks
	firewalldMarks = []string{filepath.Join(t.TempDir(), "firewalld.pid")}
	t.Cleanup(func() { firewalldMarks = marks })
}

func TestConfiguration(t *testing.T) {
	nowhere(t)
	tests := map[string]struct {
		keys, unknown string
		backend       backend
		admin         string
	}{
		"nothing":         {"", "", native{}, "CNI-ADMIN"},
		"all":             {`"iptablesAdminChainName": "MINE", "firewalldZone": "x", "ingressPolicy": "open",`, "", native{}, "MINE"},
		"iptables":        {`"backend": "iptables",`, "", iptablesBackend{}, "CNI-ADMIN"},
		"any other":       {`"backend": "x",`, "", native{}, "CNI-ADMIN"},
		"firewalld":       {`"backend": "firewalld",`, "backend", native{}, "CNI-ADMIN"},
		"unknown":         {`"color": "red",`, "color", native{}, "CNI-ADMIN"},
		"unknown, legacy": {`"backend": "iptables", "color": "red",`, "color", iptablesBackend{}, "CNI-ADMIN"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := New([]byte(conf(test.keys)))
			if test.unknown == "" {
				require.NoError(t, err)
			} else {
				var unknown *plugin.UnknownKeyError
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

func TestWhereFirewalldRunsTheBinaryDoesIt(t *testing.T) {
	nowhere(t)
	newConf := func(keys string) error { _, err := New([]byte(conf(keys))); return err }
	require.NoError(t, newConf(""))
	require.NoError(t, os.WriteFile(firewalldMarks[0], nil, 0o600))
	require.True(t, plugin.IsUnknownKey(newConf("")))
	require.NoError(t, newConf(`"backend": "iptables",`))
}

func TestFirewalldIsKnownByItsTable(t *testing.T) {
	nowhere(t)
	h := newHost(t)
	look := func() { firewalldTable = tableWatch{} }
	t.Cleanup(look)
	runs := func() bool { look(); return FirewalldRuns() }
	require.False(t, runs())
	h.run("nft", "add", "table", "ip", "firewalld")
	require.False(t, runs())
	h.run("nft", "add", "table", "inet", "firewalld")
	require.True(t, runs())
}

func TestWhatIsRefused(t *testing.T) {
	nowhere(t)
	noBridge := `{"cniVersion": "1.1.0", "name": "net", "type": "firewall", "ingressPolicy": "isolated",
		"prevResult": {"cniVersion": "1.1.0", "interfaces": %s, "ips": [{"address": "10.1.0.2/24"}]}}`
	tests := map[string]struct{ conf, want string }{
		"no result":      {`{"cniVersion": "1.1.0", "name": "net", "type": "firewall"}`, "missing prevResult"},
		"null":           {`{"cniVersion": "1.1.0", "name": "net", "type": "firewall", "prevResult": null}`, "missing prevResult"},
		"unknown policy": {conf(`"ingressPolicy": "none",`, "10.1.0.2/24"), `unknown ingress policy: "none"`},
		"no interfaces":  {fmt.Sprintf(noBridge, `[]`), "does not begin with a bridge"},
		"no interface":   {fmt.Sprintf(noBridge, `[null]`), "does not begin with a bridge"},
		"no name":        {fmt.Sprintf(noBridge, `[{"name": ""}]`), "does not begin with a bridge"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := New([]byte(test.conf))
			require.NoError(t, err)
			call := &plugin.Call{Host: &plugin.Host{}} // nothing is touched
			_, err = p.Add(context.Background(), call)
			require.ErrorContains(t, err, test.want)
			require.False(t, errors.As(err, new(*types.Error)), "code 999, as the reference plugin's")
			require.ErrorContains(t, p.Check(context.Background(), call), test.want)
		})
	}
}
