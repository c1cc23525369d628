package bandwidth

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/testing/plugintest"
)

const (
	static  = `, "ingressRate": 8000000, "ingressBurst": 800000, "egressRate": 16000000, "egressBurst": 400000`
	runtime = `, "runtimeConfig": {"bandwidth": {"ingressRate": 80000, "ingressBurst": 80000, "egressRate": 160000, "egressBurst": 160000}}`
)

// outcome is the observable effect of a life with the plugin.
type outcome struct {
	Add       uint
	Result    string
	Added     []string
	Again     uint
	Check     uint
	Deleted   []string
	Del, Del2 uint
}

// live runs ADD, ADD, CHECK, DEL, DEL.
func live(h *testHost, run runner, conf string, env []string) outcome {
	var o outcome
	var result string
	result, o.Add = run(h, "ADD", conf, env...)
	o.Added = h.state()
	if o.Add == 0 {
		o.Result = anonymous(h, result)
		_, o.Again = run(h, "ADD", conf, env...)
		_, o.Check = run(h, "CHECK", plugintest.WithPrevResult(h.T, conf, result), env...)
	}
	_, o.Del = run(h, "DEL", conf, env...)
	o.Deleted = h.state()
	_, o.Del2 = run(h, "DEL", conf, env...)
	return o
}

// anonymous returns a result without the MAC of the ifb, which is random.
func anonymous(h *testHost, result string) string {
	name := ifbName(testNetwork, testContainer)
	if link, err := netlink.LinkByName(name); err == nil {
		require.Contains(h, result, link.Attrs().HardwareAddr.String())
		result = strings.ReplaceAll(result, link.Attrs().HardwareAddr.String(), "MAC")
	}
	var v any
	require.NoError(h, json.Unmarshal([]byte(result), &v))
	data, err := json.MarshalIndent(v, "", " ")
	require.NoError(h, err)
	return string(data)
}

func TestAsTheReference(t *testing.T) {
	for _, test := range []struct {
		name string
		conf func(*testHost) string
		env  []string
		add  uint
	}{
		{name: "both directions", conf: fixed(static)},
		{name: "ingress", conf: fixed(`, "ingressRate": 800, "ingressBurst": 8000`)},
		{name: "egress", conf: fixed(`, "egressRate": 800, "egressBurst": 8000`)},
		{name: "runtime", conf: fixed(runtime)},
		{name: "configuration before runtime", conf: fixed(static + runtime)},
		{name: "zero before runtime", conf: fixed(`, "ingressRate": 0` + runtime)},
		{name: "null before runtime", conf: fixed(`, "ingressRate": null` + runtime)},
		{name: "null at runtime", conf: fixed(`, "runtimeConfig": {"bandwidth": null, "mac": 1}`)},
		{name: "no limits", conf: fixed(``)},
		{name: "bits that make no byte", conf: fixed(`, "ingressRate": 8007, "ingressBurst": 8007`)},
		{name: "fast", conf: fixed(`, "ingressRate": 80000000000, "ingressBurst": 800000000`)},
		{name: "capability", conf: fixed(`, "capabilities": {"bandwidth": true}` + runtime)},
		{name: "rate alone", conf: fixed(`, "ingressRate": 800`), add: 999},
		{name: "burst alone", conf: fixed(`, "egressBurst": 800`), add: 999},
		{name: "rate alone at runtime", conf: fixed(`, "runtimeConfig": {"bandwidth": {"egressRate": 8}}`), add: 999},
		{name: "burst of 4 GiB", conf: fixed(`, "egressRate": 800, "egressBurst": 34359738360`), add: 999},
		{name: "rate below a byte", conf: fixed(`, "egressRate": 7, "egressBurst": 8`), add: 999},
		{name: "burst below a byte", conf: fixed(`, "ingressRate": 8, "ingressBurst": 7`), add: 999},
		{name: "interface missing", conf: fixed(static), env: []string{"CNI_IFNAME=eth1"}, add: 999},
		{name: "interface no veth", conf: fixed(static), env: []string{"CNI_IFNAME=lo"}, add: 999},
		{name: "namespace missing", conf: fixed(static), env: []string{"CNI_NETNS=/run/netns/none"}, add: 999},
		{name: "not chained", conf: func(h *testHost) string { return h.configWith("1.0.0", static) }, add: 999},
		{name: "no interfaces", conf: withPrevious(`{"cniVersion": "1.0.0"}`), add: 999},
		{name: "foreign interfaces", conf: withPrevious(`{"cniVersion": "1.0.0", "interfaces": [{"name": "vethother"}]}`), add: 999},
		{name: "veth inside", conf: withPrevious(`{"cniVersion": "1.0.0", "interfaces": [{"name": "vethtest", "sandbox": "/x"}]}`), add: 999},
		{name: "version 0.2.0", conf: versioned("0.2.0", `{"cniVersion": "0.2.0"}`), add: 1},
		{name: "version 0.3.1", conf: versioned("0.3.1", `{"cniVersion": "0.3.1", "interfaces": [{"name": "vethtest"}]}`)},
		{name: "version 0.4.0", conf: versioned("0.4.0", `{"cniVersion": "0.4.0", "interfaces": [{"name": "vethtest"}]}`)},
		{name: "version 1.1.0", conf: versioned("1.1.0", `{"cniVersion": "1.1.0", "interfaces": [{"name": "vethtest", "mtu": 1400}], "routes": [{"dst": "0.0.0.0/0", "mtu": 1300}]}`)},
	} {
		t.Run(test.name, func(t *testing.T) {
			run := func(name string, run runner) (o outcome) {
				require.True(t, t.Run(name, func(t *testing.T) {
					h := newTestHost(t)
					o = live(h, run, test.conf(h), test.env)
				}))
				return o
			}
			want, got := run("theirs", theirs), run("ours", ours)
			require.Equal(t, test.add, want.Add)
			tolerate(t, test.add, &want)
			require.Equal(t, want, got)
		})
	}
}

// tolerate removes intended differences from the reference's outcome: what a
// failed ADD leaves, a DEL that does not delete because the ADD was refused,
// and CHECK in a version without it.
func tolerate(t *testing.T, add uint, o *outcome) {
	if add != 0 {
		o.Del, o.Del2 = 0, 0
		o.Added, o.Deleted = []string{}, []string{}
	}
	if strings.HasSuffix(t.Name(), "version_0.3.1") {
		require.Equal(t, uint(1), o.Check)
		o.Check = 0
	}
}

func fixed(extra string) func(*testHost) string {
	return func(h *testHost) string { return h.config(extra) }
}

func withPrevious(result string) func(*testHost) string { return versioned("1.0.0", result) }

func versioned(version, result string) func(*testHost) string {
	return func(h *testHost) string { return h.configWith(version, static+`, "prevResult": `+result) }
}

// TestEachDeletesTheOthers: each implementation checks and deletes what the
// other added.
func TestEachDeletesTheOthers(t *testing.T) {
	for name, pair := range map[string][2]runner{"ours deletes": {theirs, ours}, "theirs deletes": {ours, theirs}} {
		t.Run(name, func(t *testing.T) {
			h := newTestHost(t)
			conf := h.config(static)
			result, code := pair[0](h, "ADD", conf)
			require.Zero(t, code, result)
			conf = plugintest.WithPrevResult(t, conf, result)
			out, code := pair[1](h, "CHECK", conf)
			require.Zero(t, code, out)
			out, code = pair[1](h, "DEL", conf)
			require.Zero(t, code, out)
			require.NotContains(t, strings.Join(h.state(), "\n"), "ifb ")
		})
	}
}
