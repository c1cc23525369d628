package plan

import (
	"encoding/json"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/internal/names"
	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/portmap"
)

// parseLoosely reads a result without the checks of engine.ParseResult.
func parseLoosely(text string) (*types100.Result, error) {
	r := &types100.Result{}
	return r, json.Unmarshal([]byte(text), r)
}

func TestInvalidAllocations(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*allocnet.Allocation)
		want   string
	}{
		"no ID":              {func(a *allocnet.Allocation) { a.ID = "" }, `ID ""`},
		"pattern":            {func(a *allocnet.Allocation) { a.Interface = "a%d" }, `interface "a%d"`},
		"ID with slash":      {func(a *allocnet.Allocation) { a.ID = "a/b" }, `ID "a/b"`},
		"ID with dots":       {func(a *allocnet.Allocation) { a.ID = ".." }, `ID ".."`},
		"ID with spaces":     {func(a *allocnet.Allocation) { a.ID = "a b" }, `ID "a b"`},
		"ID with newline":    {func(a *allocnet.Allocation) { a.ID = "a\n" }, `ID "a\n"`},
		"ID with NUL":        {func(a *allocnet.Allocation) { a.ID = "a\x00b" }, `ID "a\x00b"`},
		"ID of 10,000":       {func(a *allocnet.Allocation) { a.ID = strings.Repeat("x", 10000) }, "10000 characters"},
		"ID too long by one": {func(a *allocnet.Allocation) { a.ID = strings.Repeat("x", names.MaxID+1) }, "129 characters"},
		"no netns":           {func(a *allocnet.Allocation) { a.Netns = "" }, `netns ""`},
		"relative netns":     {func(a *allocnet.Allocation) { a.Netns = "run/netns/x" }, `netns "run/netns/x"`},
		"semicolon in key":   {func(a *allocnet.Allocation) { a.Args = map[string]string{"a;b": "c"} }, `key "a;b"`},
		"equals in key":      {func(a *allocnet.Allocation) { a.Args = map[string]string{"a=b": "c"} }, `key "a=b"`},
		"empty key":          {func(a *allocnet.Allocation) { a.Args = map[string]string{"": "c"} }, `key ""`},
		"semicolon in value": {func(a *allocnet.Allocation) { a.SchedulerArgs = map[string]string{"a": "b;c"} }, `value "b;c" of "a"`},
		"equals in value":    {func(a *allocnet.Allocation) { a.Args = map[string]string{"a": "b=c"} }, `value "b=c" of "a"`},
		"no UTF-8 in args":   {func(a *allocnet.Allocation) { a.Args = map[string]string{"a": "\xff"} }, "UTF-8"},
		"no UTF-8 in netns":  {func(a *allocnet.Allocation) { a.Netns = "/run/\xff" }, "UTF-8"},
		"MAC":                {func(a *allocnet.Allocation) { a.MAC = "02:00" }, `mac "02:00"`},
		"group MAC":          {func(a *allocnet.Allocation) { a.MAC = "01:00:5e:00:00:01" }, `a group address: the first byte must be even`},
		"no MAC":             {func(a *allocnet.Allocation) { a.MAC = "00:00:00:00:00:00" }, `mac "00:00:00:00:00:00": all bytes are zero`},
		"long MAC":           {func(a *allocnet.Allocation) { a.MAC = "02:00:5e:10:00:00:00:01" }, `it has 8 bytes, not 6`},
		"no MAC in args":     {func(a *allocnet.Allocation) { a.Args = map[string]string{"MAC": "00:00:00:00:00:00"} }, `args: MAC "00:00:00:00:00:00"`},
		"group MAC in args":  {func(a *allocnet.Allocation) { a.SchedulerArgs = map[string]string{"MAC": "01:00:5e:00:00:01"} }, `a group address`},
		"NUL in scope":       {func(a *allocnet.Allocation) { a.Scope = "a\x00" }, `scope: must be at most 256 bytes of UTF-8 without control characters`},
		"IP":                 {func(a *allocnet.Allocation) { a.IPs = []string{"10.0.0.1/24", "10.0.0"} }, `"10.0.0"`},
		"rate alone":         {func(a *allocnet.Allocation) { a.Bandwidth = &allocnet.Bandwidth{IngressRate: 8000} }, "bandwidth: ingressRate and ingressBurst: a rate needs a burst"},
		"tiny rate":          {func(a *allocnet.Allocation) { a.Bandwidth = &allocnet.Bandwidth{EgressRate: 1, EgressBurst: 8} }, "bandwidth: egressRate and egressBurst: less than a byte"},
		"label of a namespace": {func(a *allocnet.Allocation) {
			a.Labels = map[string]string{"kubernetes.io.namespace.allocnet/metadata.name": "shop"}
		},
			`label "kubernetes.io.namespace.allocnet/metadata.name" is reserved for labels of namespaces`},
		"range": {func(a *allocnet.Allocation) { a.IPRanges = [][]allocnet.IPRange{{{Subnet: "10.0.0.0"}}} }, `subnet "10.0.0.0"`},
		"gateway": {func(a *allocnet.Allocation) {
			a.IPRanges = [][]allocnet.IPRange{{{Subnet: "10.0.0.0/8", Gateway: "x"}}}
		}, `"x"`},
	} {
		t.Run(name, func(t *testing.T) {
			a := allocnet.Allocation{ID: "ok", Netns: "/run/netns/ok"}
			require.NoError(t, Validate(&a))
			c.change(&a)
			err := Validate(&a)
			require.ErrorIs(t, err, allocnet.ErrInvalidAllocation)
			require.ErrorContains(t, err, c.want)
			require.Less(t, len(err.Error()), 1000)
		})
	}
}

// TestLabelsOfNamespaces: a caller that knows the namespace can set its labels, at once and later.
func TestLabelsOfNamespaces(t *testing.T) {
	const key = "namespace.allocnet/team"
	require.NoError(t, Validate(&allocnet.Allocation{
		ID: "ok", Netns: "/run/netns/ok", Labels: map[string]string{key: "a"}, AllowReservedLabels: true,
	}))
	p := &Plan{Record: &record.Record{ID: "ok", Labels: map[string]string{key: "a"}}}
	for _, value := range []*string{new("b"), nil} {
		change := allocnet.Change{Labels: map[string]*string{key: value}}
		_, err := p.Aim(change, portmap.Options{})
		require.ErrorIs(t, err, allocnet.ErrInvalidAllocation)
		require.ErrorContains(t, err, `label "namespace.allocnet/team" is reserved for labels of namespaces`)
		change.AllowReservedLabels = true
		_, err = p.Aim(change, portmap.Options{})
		require.NoError(t, err)
	}
	aim, err := p.Aim(allocnet.Change{Labels: map[string]*string{"app": new("web")}}, portmap.Options{})
	require.NoError(t, err, "the label that the allocation has stays")
	require.Equal(t, map[string]string{key: "a", "app": "web"}, aim.Labels)
}

func TestArgs(t *testing.T) {
	a := allocnet.Allocation{
		Args:          map[string]string{"B": "job", "A": "job value", "Z": ""},
		SchedulerArgs: map[string]string{"B": "scheduler", "C": "3"},
	}
	require.Equal(t, [][2]string{{"IgnoreUnknown", "true"}, {"A", "job value"}, {"B", "scheduler"}, {"C", "3"}, {"Z", ""}}, CNIArgs(&a))
	require.Equal(t, [][2]string{{"IgnoreUnknown", "true"}}, CNIArgs(&allocnet.Allocation{}))
	require.Equal(t, [][2]string{{"IgnoreUnknown", "0"}}, CNIArgs(&allocnet.Allocation{Args: map[string]string{"IgnoreUnknown": "0"}}))
}

func TestCapabilityArgs(t *testing.T) {
	a := allocnet.Allocation{
		DNS:        &allocnet.DNS{Servers: []string{"10.0.0.1"}, Domain: "d", Searches: []string{"s"}, Options: []string{"o"}},
		Bandwidth:  &allocnet.Bandwidth{IngressRate: 1, IngressBurst: 2, EgressRate: 3, EgressBurst: 4},
		IPs:        []string{"10.0.0.5/24"},
		IPRanges:   [][]allocnet.IPRange{{{Subnet: "10.0.0.0/24", RangeStart: "10.0.0.2", RangeEnd: "10.0.0.9", Gateway: "10.0.0.1"}}},
		MAC:        "02:00:00:00:00:05",
		CgroupPath: "/kubepods/x",
	}
	got, err := CapabilityArgs(&a, []portmap.Mapping{{Label: "http", HostPort: 80, ContainerPort: 8080, Protocol: "tcp", HostIP: "192.0.2.1"}, {HostPort: 53, ContainerPort: 53, Protocol: "udp"}})
	require.NoError(t, err)
	text, err := json.Marshal(got)
	require.NoError(t, err)
	require.JSONEq(t, `{
		"portMappings": [{"hostPort":80,"containerPort":8080,"protocol":"tcp","hostIP":"192.0.2.1"},{"hostPort":53,"containerPort":53,"protocol":"udp"}],
		"dns": {"servers":["10.0.0.1"],"domain":"d","searches":["s"],"options":["o"]},
		"bandwidth": {"ingressRate":1,"ingressBurst":2,"egressRate":3,"egressBurst":4},
		"ips": ["10.0.0.5/24"],
		"ipRanges": [[{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.2","rangeEnd":"10.0.0.9","gateway":"10.0.0.1"}]],
		"mac": "02:00:00:00:00:05",
		"cgroupPath": "/kubepods/x"}`, string(text))

	none, err := CapabilityArgs(&allocnet.Allocation{}, nil)
	require.NoError(t, err)
	require.Empty(t, none)
}
