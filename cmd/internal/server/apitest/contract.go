package apitest

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/require"

	"github.com/allocnet/allocnet"
	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// Contract tests the behaviour that every allocnet.Service has. c has the networks Net,
// which is the default, Embedded and Failing, and the skipped file Broken. netns creates a network
// namespace.
func Contract(t *testing.T, c allocnet.Service, netns func(name string) string) {
	t.Run("lifecycle", func(t *testing.T) { lifecycle(t, c, netns) })
	t.Run("updates", func(t *testing.T) { updates(t, c, netns) })
	t.Run("policies", func(t *testing.T) { policies(t, c, netns) })
	t.Run("limits", func(t *testing.T) { limits(t, c, netns) })
	t.Run("attachments", func(t *testing.T) { attachments(t, c, netns) })
	t.Run("picked ports", func(t *testing.T) { pickedPorts(t, c, netns) })
	t.Run("errors", func(t *testing.T) { refusals(t, c, netns) })
	t.Run("sweeps", func(t *testing.T) { sweeps(t, c, netns) })
	t.Run("networks", func(t *testing.T) { networks(t, c) })
}

func lifecycle(t *testing.T, c allocnet.Service, netns func(string) string) {
	ctx := t.Context()
	a := configurator.Allocation{ID: "web_1.a", Netns: netns("web"), Ports: []portmap.Port{{Label: "http", Value: 8080, To: 80}}}
	status, err := c.Setup(ctx, a)
	require.NoError(t, err)
	require.NotEmpty(t, status.Address)
	require.Len(t, status.Ports, 2)
	require.True(t, status.Created)
	again, err := c.Setup(ctx, a)
	require.NoError(t, err)
	require.False(t, again.Created)
	status.Created = false
	require.Equal(t, status, again)
	a.MustBeNew = true
	for range 2 { // also for a repeated request
		_, err = c.Setup(ctx, a)
		require.ErrorIs(t, err, configurator.ErrExists)
	}
	require.NoError(t, c.Check(ctx, configurator.Allocation{ID: a.ID}))

	record, err := c.Get(t.Context(), a.ID)
	require.NoError(t, err)
	require.Equal(t, configurator.PhaseReady, record.Phase)
	require.Equal(t, status, record.Status)
	list, err := c.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, a.Netns, list[0].Netns)

	require.NoError(t, c.CheckOnly(ctx, configurator.Allocation{ID: a.ID}))
	_, err = c.Audit(ctx, configurator.Allocation{ID: a.ID})
	require.NoError(t, err)
	_, err = c.Force(ctx, configurator.Allocation{ID: a.ID})
	require.ErrorIs(t, err, configurator.ErrSetUp)
	gone, err := c.TeardownGone(ctx, a.ID)
	require.NoError(t, err)
	require.False(t, gone)

	for range 2 {
		require.NoError(t, c.Teardown(ctx, configurator.Allocation{ID: a.ID}))
	}
	for _, look := range []func(context.Context, configurator.Allocation) ([]configurator.Leftover, error){c.Audit, c.Force} {
		left, err := look(ctx, configurator.Allocation{ID: a.ID})
		require.NoError(t, err)
		require.Empty(t, left)
	}
	list, err = c.List(t.Context())
	require.NoError(t, err)
	require.Empty(t, list)

	status, err = c.Setup(ctx, a)
	require.NoError(t, err)
	require.True(t, status.Created)
	require.NoError(t, c.Teardown(ctx, a))
}

func updates(t *testing.T, c allocnet.Service, netns func(string) string) {
	ctx := t.Context()
	tcp := func(value, to int) portmap.Port {
		return portmap.Port{Value: value, To: to, Protocols: []string{"tcp"}}
	}
	a := configurator.Allocation{ID: "changing", Netns: netns("changing"), Networks: []string{Embedded}, Ports: []portmap.Port{tcp(8080, 80), tcp(8081, 81)}, Labels: map[string]string{"app": "web", "tier": ""}}
	bad := a
	bad.Labels = map[string]string{"a b": "c"}
	_, err := c.Setup(ctx, bad)
	require.ErrorIs(t, err, configurator.ErrInvalidAllocation)
	require.ErrorContains(t, err, `label "a b"`)
	const namespace = "namespace.allocnet/team"
	bad.Labels = map[string]string{namespace: "a"}
	_, err = c.Setup(ctx, bad)
	require.ErrorIs(t, err, configurator.ErrInvalidAllocation)
	require.ErrorContains(t, err, "reserved for labels of namespaces")
	first, err := c.Setup(ctx, a)
	require.NoError(t, err)
	require.NotEmpty(t, first.Revision)
	second, err := c.Update(ctx, a.ID, configurator.Change{
		Revision: first.Revision, Unpublish: []portmap.Port{tcp(8081, 0)}, Publish: []portmap.Port{tcp(8082, 82)},
	})
	require.NoError(t, err)
	require.NotEqual(t, first.Revision, second.Revision)
	require.ElementsMatch(t, []portmap.Mapping{
		{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}, {HostPort: 8082, ContainerPort: 82, Protocol: "tcp"},
	}, second.Ports)
	record, err := c.Get(ctx, a.ID)
	require.NoError(t, err)
	require.Equal(t, second.Revision, record.Revision)
	require.Equal(t, second.Ports, record.Ports)

	_, err = c.Update(ctx, a.ID, configurator.Change{Revision: first.Revision, Publish: []portmap.Port{tcp(8083, 83)}})
	require.ErrorIs(t, err, configurator.ErrRevision)
	var stale *configurator.RevisionError
	require.ErrorAs(t, err, &stale)
	require.Equal(t, configurator.RevisionError{ID: a.ID, Wanted: first.Revision, Current: second.Revision}, *stale)
	_, err = c.Update(ctx, a.ID, configurator.Change{Publish: []portmap.Port{{Value: 70000}}})
	require.ErrorIs(t, err, configurator.ErrInvalidAllocation)
	_, err = c.Update(ctx, a.ID, configurator.Change{Labels: map[string]*string{namespace: new("a")}})
	require.ErrorIs(t, err, configurator.ErrInvalidAllocation)
	require.ErrorContains(t, err, "reserved for labels of namespaces")
	_, err = c.Update(ctx, "absent", configurator.Change{})
	require.ErrorIs(t, err, configurator.ErrNotFound)

	require.Equal(t, map[string]string{"app": "web", "tier": ""}, record.Labels)
	third, err := c.Update(ctx, a.ID, configurator.Change{Labels: map[string]*string{"app": new("db"), "tier": nil, "example.com/zone": new("1"), "none": nil}})
	require.NoError(t, err)
	require.NotEqual(t, second.Revision, third.Revision)
	require.Equal(t, second.Ports, third.Ports)
	record, err = c.Get(ctx, a.ID)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"app": "db", "example.com/zone": "1"}, record.Labels)
	for key, value := range map[string]*string{"-": new("x"), "a": new("no space"), "no/way/": nil} {
		_, err = c.Update(ctx, a.ID, configurator.Change{Labels: map[string]*string{key: value}})
		require.ErrorIs(t, err, configurator.ErrInvalidAllocation, key)
		require.ErrorContains(t, err, key)
	}

	_, err = c.Setup(ctx, a)
	require.ErrorIs(t, err, configurator.ErrDifferent)
	a.Ports, a.Labels = []portmap.Port{tcp(8082, 82), tcp(8080, 80)}, record.Labels
	again, err := c.Setup(ctx, a)
	require.NoError(t, err)
	require.False(t, again.Created)
	require.NoError(t, c.Teardown(ctx, a))
}

// limits change together with other parts of an allocation.
func limits(t *testing.T, c allocnet.Service, netns func(string) string) {
	ctx := t.Context()
	conflist, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "shaped", "plugins": []any{
		map[string]any{"type": "ptp", "ipam": map[string]any{"type": "host-local", "dataDir": t.TempDir(), "subnet": "10.79.0.0/24"}},
		map[string]any{"type": "bandwidth", "capabilities": map[string]bool{"bandwidth": true}},
	}})
	require.NoError(t, err)
	slow := configurator.Bandwidth{IngressRate: 8_000_000, IngressBurst: 800_000, EgressRate: 16_000_000, EgressBurst: 400_000}
	a := configurator.Allocation{ID: "limited", Netns: netns("limited"), Conflists: []json.RawMessage{conflist}, Bandwidth: &slow}
	first, err := c.Setup(ctx, a)
	require.NoError(t, err)
	record, err := c.Get(ctx, a.ID)
	require.NoError(t, err)
	require.Equal(t, &slow, record.Bandwidth)

	sending := configurator.Bandwidth{EgressRate: 1_600_000, EgressBurst: 80_000}
	second, err := c.Update(ctx, a.ID, configurator.Change{Revision: first.Revision, Bandwidth: &sending, Labels: map[string]*string{"app": new("web")}})
	require.NoError(t, err)
	require.NotEqual(t, first.Revision, second.Revision)
	record, err = c.Get(ctx, a.ID)
	require.NoError(t, err)
	require.Equal(t, &configurator.Bandwidth{EgressRate: 1_600_000, EgressBurst: 80_000}, record.Bandwidth)
	require.Equal(t, map[string]string{"app": "web"}, record.Labels)
	require.NoError(t, c.CheckOnly(ctx, configurator.Allocation{ID: a.ID}))

	_, err = c.Update(ctx, a.ID, configurator.Change{Revision: first.Revision, Bandwidth: &slow})
	require.ErrorIs(t, err, configurator.ErrRevision)
	_, err = c.Update(ctx, a.ID, configurator.Change{Bandwidth: &configurator.Bandwidth{IngressRate: 8000}})
	require.ErrorIs(t, err, configurator.ErrInvalidAllocation)
	require.ErrorContains(t, err, "a rate needs a burst")
	_, err = c.Setup(ctx, a)
	require.ErrorIs(t, err, configurator.ErrDifferent)
	_, err = c.Update(ctx, a.ID, configurator.Change{Bandwidth: &configurator.Bandwidth{}})
	require.NoError(t, err)
	record, err = c.Get(ctx, a.ID)
	require.NoError(t, err)
	require.Nil(t, record.Bandwidth)
	a.Bandwidth, a.Labels = nil, record.Labels
	again, err := c.Setup(ctx, a)
	require.NoError(t, err)
	require.False(t, again.Created)
	require.NoError(t, c.Teardown(ctx, a))
}

// policies are part of the request, change while the allocation is set up, and are refused with
// the place of a fault.
func policies(t *testing.T, c allocnet.Service, netns func(string) string) {
	ctx := t.Context()
	parse := func(text string) *policy.Policy {
		p, err := policy.Parse([]byte(text))
		require.NoError(t, err)
		return p
	}
	wrong := &policy.Policy{Egress: &policy.Direction{Rules: []policy.Rule{{}, {Services: []policy.Service{{Protocol: "tcp", Ports: "x"}}}}}}
	a := configurator.Allocation{ID: "policed", Netns: netns("policed"), Networks: []string{Embedded}, Policy: wrong}
	_, err := c.Setup(ctx, a)
	require.ErrorIs(t, err, configurator.ErrInvalidAllocation)
	require.ErrorContains(t, err, "egress.rules[1].services[0].ports")

	a.Policy = parse(`{"presets":["no-metadata"],"ingress":{"default":"deny","rules":[{"name":"web","peers":[{"labels":{"app":"web"}},
		{"expressions":[{"key":"tier","operator":"NotIn","values":["a"]}]},{"cidr":"10.0.0.0/8"},{"allocation":"b"},{"name":"host"}],
		"services":[{"protocol":"tcp","ports":"1-2"},{"protocol":"icmp","type":8}]}]}}`)
	first, err := c.Setup(ctx, a)
	require.NoError(t, err)
	record, err := c.Get(ctx, a.ID)
	require.NoError(t, err)
	require.Equal(t, a.Policy, record.Policy)
	again, err := c.Setup(ctx, a)
	require.NoError(t, err)
	require.False(t, again.Created)

	_, err = c.Update(ctx, a.ID, configurator.Change{Policy: wrong})
	require.ErrorIs(t, err, configurator.ErrInvalidAllocation)
	require.ErrorContains(t, err, "egress.rules[1].services[0].ports")
	other := parse(`{"egress":{"rules":[{"action":"deny","peers":[{"labels":{}}]}]}}`)
	second, err := c.Update(ctx, a.ID, configurator.Change{Revision: first.Revision, Policy: other})
	require.NoError(t, err)
	require.NotEqual(t, first.Revision, second.Revision)
	list, err := c.List(ctx)
	require.NoError(t, err)
	of := slices.IndexFunc(list, func(r configurator.Record) bool { return r.ID == a.ID }) // others are still being removed
	require.NotEqual(t, -1, of)
	require.Equal(t, other, list[of].Policy)
	_, err = c.Setup(ctx, a)
	require.ErrorIs(t, err, configurator.ErrDifferent)
	_, err = c.Update(ctx, a.ID, configurator.Change{Labels: map[string]*string{"app": new("db")}})
	require.NoError(t, err)
	record, err = c.Get(ctx, a.ID)
	require.NoError(t, err)
	require.Equal(t, other, record.Policy, "a change without a policy leaves it")
	_, err = c.Update(ctx, a.ID, configurator.Change{Policy: &policy.Policy{}})
	require.NoError(t, err)
	record, err = c.Get(ctx, a.ID)
	require.NoError(t, err)
	require.Nil(t, record.Policy)
	a.Policy, a.Labels = &policy.Policy{}, record.Labels
	again, err = c.Setup(ctx, a)
	require.NoError(t, err, "it means the same as none")
	require.False(t, again.Created)
	require.NoError(t, c.Teardown(ctx, a))
}

// attachments are refused unless they can be changed.
func attachments(t *testing.T, c allocnet.Service, netns func(string) string) {
	ctx := t.Context()
	a := configurator.Allocation{ID: "attaching", Netns: netns("attaching"), Networks: []string{Embedded}}
	first, err := c.Setup(ctx, a)
	require.NoError(t, err)
	for name, attempt := range map[string]struct {
		id, network string
		options     configurator.AttachOptions
		want        error
	}{
		"absent":          {"absent", Embedded, configurator.AttachOptions{}, configurator.ErrNotFound},
		"unknown network": {a.ID, "unknown", configurator.AttachOptions{}, configurator.ErrUnknownNetwork},
		"attached":        {a.ID, Embedded, configurator.AttachOptions{Interface: "more"}, configurator.ErrInvalidAllocation},
		"other revision":  {a.ID, Embedded, configurator.AttachOptions{Revision: "other"}, configurator.ErrRevision},
	} {
		_, err := c.Attach(ctx, attempt.id, attempt.network, attempt.options)
		require.ErrorIs(t, err, attempt.want, name)
	}
	for name, attempt := range map[string]struct {
		id, interfaceName, revision string
		want                        error
	}{
		"absent":            {"absent", "eth1", "", configurator.ErrNotFound},
		"no such interface": {a.ID, "eth7", "", configurator.ErrNotFound},
		"first network":     {a.ID, "eth0", first.Revision, configurator.ErrCannotUpdate},
		"other revision":    {a.ID, "eth0", "other", configurator.ErrRevision},
	} {
		_, err := c.Detach(ctx, attempt.id, attempt.interfaceName, attempt.revision)
		require.ErrorIs(t, err, attempt.want, name)
	}
	require.NoError(t, c.Teardown(ctx, a))
}

// pickedPorts: ports without a number get one, which stays.
func pickedPorts(t *testing.T, c allocnet.Service, netns func(string) string) {
	ctx, tcp := t.Context(), []string{"tcp"}
	a := configurator.Allocation{ID: "picking", Netns: netns("picking"), Networks: []string{Embedded}, Ports: []portmap.Port{{Label: "http", To: 80, Protocols: tcp}}}
	first, err := c.Setup(ctx, a)
	require.NoError(t, err)
	number := first.Ports[0].HostPort
	require.Equal(t, []portmap.Mapping{{Label: "http", HostPort: number, ContainerPort: 80, Protocol: "tcp"}}, first.Ports)
	all := configurator.DefaultDynamicPorts
	require.True(t, all.First <= number && number <= all.Last, number)
	again, err := c.Setup(ctx, a)
	require.NoError(t, err)
	require.False(t, again.Created)
	require.Equal(t, first.Ports, again.Ports)
	updated, err := c.Update(ctx, a.ID, configurator.Change{Publish: []portmap.Port{{To: 81, Protocols: tcp}}})
	require.NoError(t, err)
	require.Len(t, updated.Ports, 2)
	require.NotContains(t, []int{0, number}, updated.Ports[1].HostPort)
	require.Equal(t, 81, updated.Ports[1].ContainerPort)
	require.NoError(t, c.Teardown(ctx, a))
}

func refusals(t *testing.T, c allocnet.Service, netns func(string) string) {
	ctx := t.Context()
	for _, id := range []string{"../x", "a/b", ".", "..", "...", "-a", "ä", "a b", "%2e", "a?b", "a#b"} {
		_, err := c.Setup(ctx, configurator.Allocation{ID: id, Netns: "/run/netns/x"})
		require.ErrorIs(t, err, configurator.ErrInvalidAllocation, id)
		require.ErrorIs(t, c.Check(ctx, configurator.Allocation{ID: id}), configurator.ErrInvalidAllocation, id)
		require.ErrorIs(t, c.Teardown(ctx, configurator.Allocation{ID: id}), configurator.ErrInvalidAllocation, id)
		_, err = c.Get(t.Context(), id)
		require.ErrorIs(t, err, configurator.ErrInvalidAllocation, id)
	}
	_, err := c.Get(t.Context(), "nobody")
	require.ErrorIs(t, err, configurator.ErrNotFound)
	require.ErrorIs(t, c.Check(ctx, configurator.Allocation{ID: "nobody"}), configurator.ErrNotFound)

	first := configurator.Allocation{ID: "first", Netns: netns("first"), Ports: []portmap.Port{{Value: 53}}}
	_, err = c.Setup(ctx, first)
	require.NoError(t, err)
	first.Ports[0].Value = 54
	_, err = c.Setup(ctx, first)
	require.ErrorIs(t, err, configurator.ErrDifferent)

	second := configurator.Allocation{ID: "second", Netns: netns("second"), Ports: []portmap.Port{{Value: 53}}}
	_, err = c.Setup(ctx, second)
	var conflict *portmap.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, "first", conflict.OtherID)
	require.Equal(t, 53, conflict.Mapping.HostPort)

	second.Ports[0].Value = 70000
	_, err = c.Setup(ctx, second)
	var port *portmap.PortError
	require.ErrorIs(t, err, configurator.ErrInvalidAllocation)
	require.ErrorAs(t, err, &port)
	require.Equal(t, "value", port.Field)

	second.Ports, second.Networks = nil, []string{Failing}
	_, err = c.Setup(ctx, second)
	var plugin *types.Error
	require.ErrorAs(t, err, &plugin)
	require.Equal(t, types.Error{Code: 7, Msg: "no good"}, *plugin)

	second.Networks = []string{"nowhere"}
	_, err = c.Setup(ctx, second)
	require.ErrorIs(t, err, configurator.ErrUnknownNetwork)

	second.Networks, second.Capabilities = nil, map[string]json.RawMessage{"nobodys": json.RawMessage("1")}
	_, err = c.Setup(ctx, second)
	var unserved *configurator.UnservedError
	require.ErrorIs(t, err, configurator.ErrUnserved)
	require.ErrorAs(t, err, &unserved)
	require.Equal(t, &configurator.UnservedError{ID: "second", Capabilities: []string{"nobodys"}, Networks: []string{Net}}, unserved)

	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = c.Setup(ended, first)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, c.Teardown(ctx, first))
}

func sweeps(t *testing.T, c allocnet.Service, netns func(string) string) {
	ctx := t.Context()
	paths := map[string]string{}
	for _, id := range []string{"a", "b", "c"} {
		paths[id] = netns("sweep-" + id)
		a := configurator.Allocation{ID: id, Netns: paths[id]}
		if id == "c" {
			a.Scope = "other"
		}
		_, err := c.Setup(ctx, a)
		require.NoError(t, err)
	}
	repaired, err := c.Repair(ctx)
	require.NoError(t, err)
	require.Equal(t, &configurator.RepairReport{Healthy: []string{"a", "b", "c"}, Repaired: []string{}, Broken: []string{}}, repaired)

	repaired, err = c.RepairScope(ctx, configurator.Scope{Name: "other"})
	require.NoError(t, err)
	require.Equal(t, &configurator.RepairReport{Healthy: []string{"c"}, Repaired: []string{}, Broken: []string{}}, repaired)
	removed, err := c.Recover(ctx)
	require.NoError(t, err)
	require.Equal(t, &configurator.RecoverReport{Removed: []string{}}, removed)
	removed, err = c.RecoverScope(ctx, configurator.Scope{Name: "other"})
	require.NoError(t, err)
	require.Equal(t, &configurator.RecoverReport{Removed: []string{}}, removed)

	for range 2 { // it does nothing
		planned, err := c.PlanGC(ctx, configurator.Scope{Live: []string{"a"}})
		require.NoError(t, err)
		requireCollected(t, "b", "", paths["b"], planned)
		require.Equal(t, []string{"a"}, planned.Kept)
	}
	report, err := c.GC(ctx, []string{"a"})
	require.NoError(t, err)
	requireCollected(t, "b", "", paths["b"], report)
	require.Equal(t, []string{"a"}, report.Kept)
	report, err = c.GCScope(ctx, configurator.Scope{Name: "other"})
	require.NoError(t, err)
	requireCollected(t, "c", "other", paths["c"], report)
	report, err = c.GC(ctx, nil)
	require.NoError(t, err)
	requireCollected(t, "a", "", paths["a"], report)
}

// requireCollected asserts that the report of a GC has one allocation with its record.
func requireCollected(t *testing.T, id, scope, netns string, report *configurator.GCReport) {
	t.Helper()
	require.Equal(t, []string{id}, report.Removed)
	require.Len(t, report.Records, 1)
	r := report.Records[0]
	require.Equal(t, []string{id, scope, netns}, []string{r.ID, r.Scope, r.Netns})
	require.Equal(t, configurator.PhaseReady, r.Phase)
	require.Nil(t, r.Status)
	require.False(t, r.Created.IsZero())
	for _, n := range r.Networks {
		require.Equal(t, configurator.NetworkRecord{Network: Net, Interface: "eth0"}, n)
	}
	require.Empty(t, report.Forced)
}

func networks(t *testing.T, c allocnet.Service) {
	require.NoError(t, c.Ready(t.Context()))
	require.NoError(t, c.ReadyFor(t.Context(), configurator.Allocation{Networks: []string{Failing}}))
	require.ErrorIs(t, c.ReadyFor(t.Context(), configurator.Allocation{Networks: []string{"nowhere"}}), configurator.ErrUnknownNetwork)
	valid, skipped := c.Networks(t.Context())
	var names []string
	for _, n := range valid {
		names = append(names, n.Name)
		require.Equal(t, n.Name == Net, n.Default)
	}
	require.Subset(t, names, []string{Net, Failing})
	require.Len(t, skipped, 1)
	require.Equal(t, Broken, filepath.Base(skipped[0].File))
	require.NotEmpty(t, skipped[0].Err.Error())
	require.NotContains(t, skipped[0].Err.Error(), skipped[0].File)
}
