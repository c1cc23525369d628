package netpolicy

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/netlink/rtnl"
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
		"isolate":         `"isolate" is neither a file nor a list of presets; the presets are isolated, egress-only, no-metadata, no-host, published-only, no-private`,
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
		"egress deny alloc:a sctp egress.rules[0]", "egress deny metadata any preset no-metadata",
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
	explain := func(from, to netip.Addr, flow policy.Flow) []Reason {
		reasons, err := h.Explain(from, to, flow)
		require.NoError(t, err)
		return reasons
	}
	require.Equal(t, []Reason{
		{"egress", "web", "net", policy.Allow, "default"}, {"egress", "web", "", policy.Allow, "egress.rules[0]"}, {"ingress", "db", "", policy.Allow, "sql"},
	}, explain(web, db, tcp(5432)))
	require.Nil(t, Denial(explain(web, db, tcp(5432))))
	denial := Denial(explain(web, db, tcp(22)))
	require.Equal(t, &Reason{"ingress", "db", "", policy.Deny, "default"}, denial)
	require.Equal(t, "allocation db", denial.Policy())
	denial = Denial(explain(web, addr("169.254.169.254"), tcp(80)))
	require.Equal(t, "network net", denial.Policy())
	require.Equal(t, "preset no-metadata", denial.Rule)
	require.Equal(t, "default", Denial(explain(web, addr("10.1.0.4"), tcp(80))).Rule, "labels in a network without policies select no allocation")
	require.Empty(t, explain(addr("10.1.0.4"), addr("192.0.2.1"), tcp(80)))
	require.NotNil(t, Denial(explain(addr("10.1.0.5"), addr("192.0.2.1"), tcp(80))))
	require.Equal(t, "host", explain(addr("127.0.0.1"), db, tcp(22))[0].Rule)
	require.Equal(t, []string{"10.1.0.3 (allocation db)", "127.0.0.1 (host)", "192.0.2.1"},
		[]string{h.Describe(db), h.Describe(addr("127.0.0.1")), h.Describe(addr("192.0.2.1"))})

	closed, err := New([]allocnet.Record{
		record("a", "10.1.0.2/16", `{"plugins":[{"type":"policy","policy":{"presets":["no-host"]}}]}`, nil, nil),
		record("b", "10.1.0.3/16", open, nil, nil), record("c", "10.2.0.3/16", open, nil, nil),
	})
	require.NoError(t, err)
	for to, want := range map[string]string{"10.1.0.3": "", "198.51.100.1": "", "10.2.0.3": "preset no-host", "127.0.0.1": "preset no-host"} {
		rule := ""
		reasons, err := closed.Explain(addr("10.1.0.2"), addr(to), tcp(80))
		require.NoError(t, err)
		if d := Denial(reasons); d != nil {
			rule = d.Rule
		}
		require.Equal(t, want, rule, to)
	}

	const published = `{"plugins":[{"type":"policy","policy":{"presets":["published-only"]}}]}`
	admitting, err := New([]allocnet.Record{
		record("a", "10.1.0.2/16", published, nil, nil), record("b", "10.1.0.3/16", published, nil, mustParse(t, `{"ingress":{"default":"deny"}}`)),
		record("c", "10.2.0.3/16", open, nil, nil),
	})
	require.NoError(t, err)
	for from, want := range map[string]string{
		"10.1.0.3": "", "127.0.0.1": "", "10.1.0.9": "preset published-only", "198.51.100.1": "preset published-only", "10.2.0.3": "preset published-only",
	} {
		rule := ""
		reasons, err := admitting.Explain(addr(from), addr("10.1.0.2"), tcp(80))
		require.NoError(t, err)
		if d := Denial(reasons); d != nil {
			rule = d.Rule
		}
		require.Equal(t, want, rule, from)
	}
	require.Equal(t, "preset published-only", admitting.denial(policy.Ingress, addr("10.1.0.2"), addr("198.51.100.1"), tcp(80)).Rule)
	require.Equal(t, "default", admitting.denial(policy.Ingress, addr("10.1.0.3"), addr("198.51.100.1"), tcp(80)).Rule, "also through a host port")

	_, err = New([]allocnet.Record{record("a", "10.1.0.2/16", `{"plugins":[{"type":"policy","policy":{"x":1}}]}`, nil, nil)})
	require.ErrorContains(t, err, `allocation "a": network "net": `)
}

// TestExplainOnBridge: a bridge does not pass some packets of an allocation
// with a policy, whatever its rules are. Routed networks have no such
// exception.
func TestExplainOnBridge(t *testing.T) {
	const conflist = `{"plugins":[{"type":"policy"}]}`
	bridged := func(r allocnet.Record) allocnet.Record {
		r.Status.Interfaces = append([]allocnet.Interface{{Network: "net", Name: "br0"}}, r.Status.Interfaces...)
		return r
	}
	some := mustParse(t, `{"egress":{"rules":[{"action":"deny","peers":[{"cidr":"192.0.2.7/32"}]}]}}`)
	noHost := mustParse(t, `{"egress":{"rules":[{"name":"nohost","action":"deny","peers":[{"name":"host"}]}]}}`)
	h, err := New([]allocnet.Record{
		record("closed4", "10.3.0.2/22", conflist, nil, noHost), record("closed6", "fd00:3::2/64", conflist, nil, noHost),
		bridged(record("a4", "10.1.0.2/22", conflist, nil, some)), bridged(record("a6", "fd00:1::2/64", conflist, nil, some)),
		bridged(record("open4", "10.1.0.3/22", conflist, nil, mustParse(t, `{}`))), bridged(record("open6", "fd00:1::3/64", conflist, nil, nil)),
		record("routed4", "10.2.0.2/22", conflist, nil, some), record("routed6", "fd00:2::2/64", conflist, nil, some),
	})
	require.NoError(t, err)
	h.local = rtnl.HostAddressesOf(netip.MustParsePrefix("fe80::77/64"), netip.MustParsePrefix("10.9.9.1/24"), netip.MustParsePrefix("fd00:9::1/64"))
	udp, discovery := policy.Flow{Protocol: 17, Port: 9}, policy.Flow{Protocol: 58, Port: 135}
	explain := func(from, to string, flow policy.Flow) string {
		reasons, err := h.Explain(netip.MustParseAddr(from), netip.MustParseAddr(to), flow)
		switch {
		case errors.Is(err, ErrUndecided):
			return "undecided"
		case err != nil:
			return "error"
		}
		var list []string
		for _, r := range reasons {
			list = append(list, r.Allocation+" "+r.Direction+" "+string(r.Verdict)+" "+r.Rule)
		}
		return strings.Join(list, "; ")
	}
	for _, c := range []struct {
		from, to string
		flow     policy.Flow
		want     string
	}{
		{"fd00:1::2", "fe80::1", udp, "a6 egress deny bridge: no link-local"},
		{"fd00:1::2", "fe80::77", udp, "a6 egress deny bridge: no link-local"},
		{"fe80::1", "fd00:1::2", udp, "a6 ingress deny bridge: no link-local"},
		{"fd00:1::2", "ff0e::1", udp, "a6 egress deny bridge: no multicast or broadcast"},
		{"fd00:1::2", "ff02::1", discovery, ""},
		{"fd00:1::2", "fd00:1::9", discovery, ""},
		{"fd00:2::2", "fe80::1", discovery, ""},
		{"fd00:2::2", "2001:db8::1", discovery, "routed6 egress allow default"}, // not on the link
		{"10.1.0.2", "224.0.0.1", udp, "a4 egress deny bridge: no multicast or broadcast"},
		{"10.1.0.2", "240.0.0.1", udp, "a4 egress deny bridge: no multicast or broadcast"},
		{"10.1.0.2", "255.255.255.255", udp, "a4 egress deny bridge: no multicast or broadcast"},
		{"10.1.0.2", "10.1.3.255", udp, "a4 egress deny bridge: no multicast or broadcast"},
		{"10.1.0.2", "10.1.0.255", udp, "a4 egress allow default"},
		{"10.1.0.2", "169.254.9.9", udp, "a4 egress allow default"},
		{"169.254.9.9", "10.1.0.2", udp, "a4 ingress allow default"},
		{"fd00:1::3", "fe80::77", udp, ""},
		{"fd00:1::3", "fe80::1", udp, "undecided"},
		{"10.1.0.3", "10.1.3.255", udp, "undecided"},
		{"10.1.0.3", "10.1.0.2", udp, "open4 egress allow default; a4 ingress allow default"},
		{"10.2.0.2", "10.2.3.255", udp, "routed4 egress allow default"},
		{"10.2.0.2", "239.1.2.3", udp, "routed4 egress allow default"},
		{"fd00:2::2", "fe80::1", udp, "routed6 egress allow default"},
		{"239.1.2.3", "10.2.0.2", udp, "error"},
		{"10.3.0.2", "10.9.9.1", udp, "closed4 egress deny nohost"},
		{"10.3.0.2", "10.9.9.255", udp, "closed4 egress deny nohost"},
		{"10.3.0.2", "255.255.255.255", udp, "closed4 egress deny nohost"},
		{"10.3.0.2", "239.1.2.3", udp, "closed4 egress deny nohost"},
		{"10.3.0.2", "10.9.8.255", udp, "closed4 egress allow default"},
		{"fd00:3::2", "fd00:9::", udp, "closed6 egress deny nohost"},
		{"fd00:3::2", "ff02::1", udp, "closed6 egress deny nohost"},
		{"fd00:3::2", "fd00:9::2", udp, "closed6 egress allow default"},
	} {
		require.Equal(t, c.want, explain(c.from, c.to, c.flow), "%s to %s", c.from, c.to)
	}
	require.False(t, rtnl.Broadcast(netip.MustParsePrefix("10.1.0.2/31")).IsValid())
}
