package netpolicy

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/policy"
)

func mustParse(t *testing.T, text string) *policy.Policy {
	t.Helper()
	p, err := policy.Parse([]byte(text))
	require.NoError(t, err)
	return p
}

func TestRead(t *testing.T) {
	file := filepath.Join(t.TempDir(), "p.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"egress":{"default":"deny"}}`), 0o600))
	want := mustParse(t, `{"egress":{"default":"deny"}}`)
	for text, wanted := range map[string]*policy.Policy{
		file: want, "none": {}, "no-metadata": {Presets: []policy.Preset{policy.NoMetadata}},
		"egress-only,no-private": {Presets: []policy.Preset{policy.EgressOnly, policy.NoPrivate}},
		"-":                      mustParse(t, `{"ingress":{"default":"deny"}}`),
	} {
		got, err := Read(text, strings.NewReader(`{"ingress":{"default":"deny"}}`))
		require.NoError(t, err, text)
		require.Equal(t, wanted, got, text)
	}
	for text, want := range map[string]string{
		"isolate":         `"isolate" is neither a file nor a list of presets; the presets are isolated, egress-only, no-metadata, no-host, no-private`,
		"isolated,x":      "neither a file",
		file + "x":        "no such file",
		"-":               `standard input: parse policy: egress: unknown field "defalt"`,
		filepath.Dir("/"): "is a directory",
	} {
		_, err := Read(text, strings.NewReader(`{"egress":{"defalt":"deny"}}`))
		require.ErrorContains(t, err, want, text)
	}
	for _, p := range Presets {
		require.True(t, IsPreset(string(p.Name)))
		require.NoError(t, (&policy.Policy{Presets: []policy.Preset{p.Name}}).Validate())
	}
}

func TestRules(t *testing.T) {
	p := mustParse(t, `{"presets":["no-metadata"],"ingress":{"default":"deny","rules":[{"name":"web","peers":[{"labels":{"app":"web"}}],
		"services":[{"protocol":"tcp","ports":"80"},{"protocol":"udp","ports":"1-2"}]}]},
		"egress":{"rules":[{"action":"deny","peers":[{"name":"world"},{"allocation":"a"},{"cidr":"10.0.0.0/8"},{"cidr":"11.0.0.0/8"}],"services":[{"protocol":"sctp"}]}]}}`)
	var lines []string
	for _, r := range Rules(p) {
		lines = append(lines, strings.Join([]string{r.Direction, string(r.Verdict), r.Peer, r.Service, r.Rule}, " "))
	}
	require.Equal(t, []string{
		"ingress allow label:app=web tcp/80 web", "ingress allow label:app=web udp/1-2 web", "ingress allow host any host", "ingress deny any any default",
		"egress deny alloc:a sctp egress.rules[0]", "egress deny metadata any preset no-metadata", "egress deny metadata any preset no-metadata",
		"egress deny 10.0.0.0/8, 11.0.0.0/8 sctp egress.rules[0]", "egress deny world sctp egress.rules[0]", "egress allow any any default",
	}, lines)
}

// record returns an allocation with an address in a network; conflist is its configuration.
func record(id, address, conflist string, labels map[string]string, p *policy.Policy) allocnet.Record {
	return allocnet.Record{
		ID: id, Labels: labels, Policy: p, Networks: []allocnet.NetworkRecord{{Network: "net", Config: json.RawMessage(conflist)}},
		Status: &allocnet.Status{Interfaces: []allocnet.Interface{
			{Network: "net", Name: "veth1", Addresses: []allocnet.Address{{Address: "10.1.0.1/16"}}},
			{Network: "net", Name: "eth0", Sandbox: "/n", Addresses: []allocnet.Address{{Address: address}}},
		}},
	}
}

func TestExplain(t *testing.T) {
	const open, general = `{"plugins":[{"type":"ptp"},{"type":"policy"}]}`, `{"plugins":[{"type":"policy","policy":{"presets":["no-metadata"]}}]}`
	h, err := New([]allocnet.Record{
		record("web", "10.1.0.2/16", general, map[string]string{"app": "web"}, mustParse(t, `{"egress":{"default":"deny","rules":[{"peers":[{"labels":{"app":"db"}}]}]}}`)),
		record("db", "10.1.0.3/16", open, map[string]string{"app": "db"}, mustParse(t, `{"ingress":{"default":"deny","rules":[{"name":"sql","peers":[{"allocation":"web"}],"services":[{"protocol":"tcp","ports":"5432"}]}]}}`)),
		record("plain", "10.1.0.4/16", `{"plugins":[{"type":"ptp"}]}`, map[string]string{"app": "db"}, nil),
		record("hidden", "10.1.0.5/16", "", nil, mustParse(t, `{"egress":{"default":"deny"}}`)),
	})
	require.NoError(t, err)
	addr := netip.MustParseAddr
	tcp := func(port uint16) policy.Flow { return policy.Flow{Protocol: 6, Port: port} }
	web, db := addr("10.1.0.2"), addr("10.1.0.3")
	require.Equal(t, []Reason{
		{"egress", "web", "net", policy.Allow, "default"}, {"egress", "web", "", policy.Allow, "egress.rules[0]"}, {"ingress", "db", "", policy.Allow, "sql"},
	}, h.Explain(web, db, tcp(5432)))
	require.Nil(t, Denial(h.Explain(web, db, tcp(5432))))
	denial := Denial(h.Explain(web, db, tcp(22)))
	require.Equal(t, &Reason{"ingress", "db", "", policy.Deny, "default"}, denial)
	require.Equal(t, "allocation db", denial.Policy())
	denial = Denial(h.Explain(web, addr("169.254.169.254"), tcp(80)))
	require.Equal(t, "network net", denial.Policy())
	require.Equal(t, "preset no-metadata", denial.Rule)
	require.Equal(t, "default", Denial(h.Explain(web, addr("10.1.0.4"), tcp(80))).Rule, "labels in a network without policies select nobody")
	require.Empty(t, h.Explain(addr("10.1.0.4"), addr("192.0.2.1"), tcp(80)))
	require.NotNil(t, Denial(h.Explain(addr("10.1.0.5"), addr("192.0.2.1"), tcp(80))))
	require.Equal(t, "host", h.Explain(addr("127.0.0.1"), db, tcp(22))[0].Rule)
	require.Equal(t, []string{"10.1.0.3 (allocation db)", "127.0.0.1 (host)", "192.0.2.1"},
		[]string{h.Describe(db), h.Describe(addr("127.0.0.1")), h.Describe(addr("192.0.2.1"))})

	closed, err := New([]allocnet.Record{
		record("a", "10.1.0.2/16", `{"plugins":[{"type":"policy","policy":{"presets":["no-host"]}}]}`, nil, nil),
		record("b", "10.1.0.3/16", open, nil, nil), record("c", "10.2.0.3/16", open, nil, nil),
	})
	require.NoError(t, err)
	for to, want := range map[string]string{"10.1.0.3": "", "198.51.100.1": "", "10.2.0.3": "preset no-host", "127.0.0.1": "preset no-host"} {
		rule := ""
		if d := Denial(closed.Explain(addr("10.1.0.2"), addr(to), tcp(80))); d != nil {
			rule = d.Rule
		}
		require.Equal(t, want, rule, to)
	}

	_, err = New([]allocnet.Record{record("a", "10.1.0.2/16", `{"plugins":[{"type":"policy","policy":{"x":1}}]}`, nil, nil)})
	require.ErrorContains(t, err, `allocation "a": network "net": `)
}
