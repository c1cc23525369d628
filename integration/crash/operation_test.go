package crash

import (
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/allocnet/allocnet/configurator"
	"github.com/allocnet/allocnet/internal/testing/faultinject"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// operation is an operation of the configurator, and the state in which it has
// work.
type operation struct {
	name    string
	request string
	prepare func(h *host)
	// fails selects the first point that fails. Points are counted after it. It
	// is nil for operations in which no call fails.
	fails func(faultinject.Point) bool
	// heals restores what only this operation restores, before the host is
	// compared.
	heals func(h *host)
}

var operations = []operation{
	{name: "setup", request: "setup"},
	{name: "setup again", request: "setup", prepare: func(h *host) { h.mustSetUp(h.a); h.unplug() }},
	{name: "retry", request: "setup", fails: isRule},
	{name: "teardown", request: "teardown", prepare: func(h *host) { h.mustSetUp(h.a); h.requireReachable(h.a) }},
	{name: inBackground, request: "background", prepare: func(h *host) { h.mustSetUp(h.a); h.requireReachable(h.a) }},
	{name: "repair", request: "repair", prepare: func(h *host) { h.mustSetUp(h.a); h.flush() }, heals: (*host).requireRepaired},
	{name: "recover", request: "recover", prepare: func(h *host) { h.crashBeforeReady(); h.requireReachable(h.a) }},
	{name: update, request: "update", prepare: func(h *host) { h.mustSetUp(h.a); h.requireReachable(h.a) }, heals: (*host).requireEitherPort},
	{name: limit, request: "limit", prepare: limited(sent), heals: (*host).requireEitherLimits},
	{name: limitMore, request: "limit", prepare: limited(received), heals: (*host).requireEitherLimits},
	{name: attach, request: "attach", prepare: func(h *host) { h.mustSetUp(h.a) }, heals: (*host).requireWholeAttachment},
	{name: detach, request: "detach", prepare: func(h *host) { h.mustSetUp(h.a); h.mustAttach() }, heals: (*host).requireWholeAttachment},
	{name: waitForPort, request: "setup", prepare: func(h *host) { h.mustSetUp(h.sharer) }, heals: (*host).requireOlder},
	{name: handOver, request: "teardown", prepare: func(h *host) { h.mustSetUp(h.a); h.mustSetUp(h.sharer) }, heals: (*host).requireNewer},
	{name: "gc", request: "gc", prepare: func(h *host) { h.mustSetUp(h.a); h.requireReachable(h.a) }},
}

// isRule reports whether a point creates rules. An ADD creates some after the
// allocation has links and addresses.
func isRule(p faultinject.Point) bool {
	return p.Kind == faultinject.NFTables || p.Kind == faultinject.Subprocess &&
		(strings.HasPrefix(p.Object, "firewall") || strings.HasPrefix(p.Object, "iptables") || strings.HasPrefix(p.Object, "nft"))
}

// unplug deletes the allocation's link, which only another ADD restores.
func (h *host) unplug() {
	h.t.Helper()
	s := h.open()
	defer s.Close()
	require.NoError(h.t, s.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	}))
}

// flush removes all rules of the host if Repair restores them.
func (h *host) flush() {
	h.t.Helper()
	if h.cell.engine != configurator.EngineExec && !h.cell.mixed {
		h.flushRules()
	}
}

func (h *host) requireRepaired() {
	h.t.Helper()
	report, err := h.Repair(h.ctx())
	require.NoError(h.t, err)
	require.Empty(h.t, report.Broken)
	require.NoError(h.t, h.Check(h.ctx(), h.a))
}

// change publishes another host port in place of that of an allocation, labels it, and changes its
// policy, if it has one.
func change(a configurator.Allocation) configurator.Change {
	other := a.Ports[0]
	other.Value = updatedPort
	c := configurator.Change{Unpublish: a.Ports, Publish: []portmap.Port{other}, Labels: map[string]*string{"updated": new("yes")}}
	if a.Policy != nil {
		c.Policy = servesOutside("updated")
	}
	return c
}

// requireEitherPort requires that either the host port from before an update leads to the
// allocation, or that from after it. Every other time, it then finishes the update and
// reverses it; the other times, it tears the allocation down as it is.
func (h *host) requireEitherPort() {
	h.t.Helper()
	changed := h.a
	changed.Ports = change(h.a).Publish
	before, after := h.answers(h.a), h.answers(changed)
	require.NotEqual(h.t, before, after, "before: %v, after: %v", before, after)
	h.updates++
	if h.updates%2 == 0 {
		require.NoError(h.t, h.Teardown(h.ctx(), h.a))
		_, err := h.Recover(h.ctx()) // a reservation may be stale until then
		require.NoError(h.t, err)
		return
	}
	_, err := h.Recover(h.ctx())
	require.NoError(h.t, err)
	require.NoError(h.t, h.CheckOnly(h.ctx(), h.a))
	updated := h.answers(changed)
	require.NotEqual(h.t, h.answers(h.a), updated)
	r, err := h.Get(h.ctx(), h.a.ID)
	require.NoError(h.t, err)
	require.Equal(h.t, updated, r.Labels["updated"] == "yes", "labels are those of the ports")
	if h.a.Policy != nil {
		require.Equal(h.t, map[bool]*policy.Policy{true: change(h.a).Policy, false: h.a.Policy}[updated], r.Policy, "and so is the policy")
	}
	_, err = h.Update(h.ctx(), h.a.ID, configurator.Change{Unpublish: changed.Ports, Publish: h.a.Ports, Labels: map[string]*string{"updated": nil}, Policy: h.a.Policy})
	require.NoError(h.t, err)
	h.requireReachable(h.a)
	require.False(h.t, h.answers(changed))
}

// requireOlder requires, after a Setup that waits for a host port, that the older allocation still has it, and
// tears that one down.
func (h *host) requireOlder() {
	h.t.Helper()
	h.requireReachable(h.sharer)
	require.NoError(h.t, h.CheckOnly(h.ctx(), h.sharer))
	require.NoError(h.t, h.Teardown(h.ctx(), h.sharer))
}

// requireNewer finishes a Teardown every other time, and requires that the host port then leads to the allocation that
// has waited for it, which it tears down.
func (h *host) requireNewer() {
	h.t.Helper()
	h.updates++
	if h.updates%2 == 0 {
		require.NoError(h.t, h.Teardown(h.ctx(), h.a))
		h.requireReachable(h.sharer)
		require.NoError(h.t, h.CheckOnly(h.ctx(), h.sharer))
	}
	require.NoError(h.t, h.Teardown(h.ctx(), h.sharer))
}

// mustAttach attaches the subject to a second network.
func (h *host) mustAttach() {
	h.t.Helper()
	_, err := h.Attach(h.ctx(), h.a.ID, moreNetwork, configurator.AttachOptions{})
	require.NoError(h.t, err)
}

// requireWholeAttachment requires, after an Attach or Detach, that the first network is as before.
// Every other time, it then finishes the operation, so that the second network is there or is not;
// the other times, it tears the allocation down as it is.
func (h *host) requireWholeAttachment() {
	h.t.Helper()
	h.requireReachable(h.a)
	h.updates++
	if h.updates%2 == 0 {
		require.NoError(h.t, h.Teardown(h.ctx(), h.a))
		return
	}
	_, err := h.Recover(h.ctx())
	require.NoError(h.t, err)
	require.NoError(h.t, h.CheckOnly(h.ctx(), h.a))
	h.requireReachable(h.a)
	r, err := h.Get(h.ctx(), h.a.ID)
	require.NoError(h.t, err)
	s := h.open()
	defer s.Close()
	require.NoError(h.t, s.Do(func() error {
		_, err := netlink.LinkByName("eth1")
		require.Equal(h.t, len(r.Networks) == 2, err == nil, "%v: %v", r.Networks, err)
		rules, err := netlink.RuleList(netlink.FAMILY_ALL)
		rules = slices.DeleteFunc(rules, func(rule netlink.Rule) bool { return rule.Src == nil })
		require.Len(h.t, rules, 2*(len(r.Networks)-1), "the source rules of the second network")
		return err
	}))
	if len(r.Networks) == 2 {
		_, err = h.Detach(h.ctx(), h.a.ID, "eth1", "")
		require.NoError(h.t, err)
	}
}

// crashBeforeReady leaves a complete allocation that was not acknowledged.
func (h *host) crashBeforeReady() {
	h.t.Helper()
	ended := start(h.t, h.request("setup"), func(_ int, p faultinject.Point) faultinject.Verdict {
		return faultinject.Verdict{Kill: p.Call == "write" && strings.HasSuffix(p.Object, "/allocs/a.json")}
	})
	require.True(h.t, ended.Killed(), "%v", ended.Points())
	ended.requireGone(h.t)
}

// killing kills an operation at a point, counted after the failing point.
func (o *operation) killing(at int) faultinject.Decide {
	failed := 0
	return func(n int, p faultinject.Point) faultinject.Verdict {
		if o.fails != nil && failed == 0 {
			if !o.fails(p) {
				return faultinject.Verdict{}
			}
			failed = n
			return faultinject.Verdict{Errno: unix.ENOMEM}
		}
		return faultinject.Verdict{Kill: n-failed == at}
	}
}

// recovery is an operation after a crash.
type recovery struct {
	name string
	do   func(h *host)
}

var recoveries = []recovery{
	{"recover and teardown", func(h *host) {
		_, err := h.Recover(h.ctx())
		require.NoError(h.t, err)
		require.NoError(h.t, h.Teardown(h.ctx(), h.a))
	}},
	{"gc", func(h *host) {
		_, err := h.GC(h.ctx(), []string{h.bystander.ID})
		require.NoError(h.t, err)
	}},
	{"teardown", func(h *host) { require.NoError(h.t, h.Teardown(h.ctx(), h.a)) }},
	{"another allocation with the address, recover and teardown", func(h *host) {
		succeeded := h.succeed()
		_, err := h.Recover(h.ctx())
		require.NoError(h.t, err)
		require.NoError(h.t, h.Teardown(h.ctx(), h.a))
		if succeeded {
			require.NoError(h.t, h.Check(h.ctx(), h.successor), "what has the address now is whole")
			h.requireReachable(h.successor)
			require.NoError(h.t, h.Teardown(h.ctx(), h.successor))
		}
	}},
	{"setup and teardown", func(h *host) {
		h.mustSetUp(h.a)
		h.requireReachable(h.a)
		require.NoError(h.t, h.Teardown(h.ctx(), h.a))
	}},
}

// succeed sets up another allocation with the same addresses. It returns false
// if they are not free.
func (h *host) succeed() bool {
	h.t.Helper()
	_, err := h.Setup(h.ctx(), h.successor)
	if err != nil {
		require.ErrorContains(h.t, err, "77 is not available", "only that the address is not free")
		require.NotErrorIs(h.t, err, configurator.ErrIncomplete)
		return false
	}
	h.requireReachable(h.successor)
	return true
}
