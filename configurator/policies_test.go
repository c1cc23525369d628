package configurator

import (
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/allocnet/allocnet/internal/state/record"
	"github.com/allocnet/allocnet/internal/testing/privhost"
	"github.com/allocnet/allocnet/internal/testing/skip"
	"github.com/allocnet/allocnet/policy"
	"github.com/allocnet/allocnet/portmap"
)

// TestSweepOfTheSetUp: an allocation that was set up after GC has listed the records keeps its
// labels and its policy, also if its container has another ID.
func TestSweepOfTheSetUp(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"policy","capabilities":{"policy":true}}`)
	a := h.alloc("c")
	a.ID, a.ContainerID, a.Interface, a.Labels = "c.eth0", "c", "eth0", map[string]string{"app": "web"}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	members, err := h.policies.Members("")
	require.NoError(t, err)
	require.Len(t, members, 1)
	require.NoError(t, h.sweepMember(t.Context(), members[0]))
	left, err := h.policies.Members("")
	require.NoError(t, err)
	require.Equal(t, members, left)
	require.NoError(t, h.Check(t.Context(), a))

	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: a.ID}))
	h.requireNoRecords()
	left, err = h.policies.Members("")
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestSetupWhilePoliciesAreLocked: a Setup returns soon after its deadline while another process holds the lock
// of the policies, also in the removal of what its ADD has made.
func TestSetupWhilePoliciesAreLocked(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"policy","capabilities":{"policy":true}}`)
	a := h.alloc("a")
	s, err := h.policies.Exclusive(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	ended := make(chan error, 1)
	go func() { _, err := h.Setup(ctx, a); ended <- err }()
	select {
	case err = <-ended:
		s.Unlock()
	case <-time.After(time.Minute):
		s.Unlock()
		<-ended
		t.Fatal("it waits for the lock")
	}
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: a.ID}))
	h.requireNoRecords()
}

// TestPolicyAfterFailedDEL: a DEL that fails leaves nothing of the allocation in the store of
// policies and in the kernel, so Teardown succeeds.
func TestPolicyAfterFailedDEL(t *testing.T) {
	o := &atStep{name: StepDel}
	h, _ := nativeHost(t, "1.0.0", `{"type":"policy","capabilities":{"policy":true}}`)
	h.cfg.Observer = o
	h.Configurator = h.restarted()
	keep, a := h.alloc("keep"), h.alloc("a")
	a.Labels, a.Policy = map[string]string{"app": "web"}, &policy.Policy{Presets: []policy.Preset{policy.Isolated}}
	keep.Labels, keep.Policy = a.Labels, a.Policy
	for _, one := range []Allocation{keep, a} {
		_, err := h.Setup(t.Context(), one)
		require.NoError(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.do = cancel
	require.NoError(t, h.Teardown(ctx, Allocation{ID: "a", Wait: true}))
	require.Error(t, ctx.Err())
	members, err := h.policies.Members("")
	require.NoError(t, err)
	require.Len(t, members, 1)
	require.Equal(t, "keep", members[0].Owner.ID)
	require.NoError(t, h.Check(t.Context(), keep))
	o.do = func() {}
	requireNothingOwned(t, "a")
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "keep"}))
	h.requireNoRecords()
}

// TestLiveWithoutRecord: neither GC with its ID nor Recover changes what the kernel has for an allocation
// whose record, members of policies, or whole state directory, was lost. GC without its ID removes everything.
func TestLiveWithoutRecord(t *testing.T) {
	loseRecord := func(dir string) error { return os.Remove(filepath.Join(dir, "allocs", "a.json")) }
	loseMembers := func(dir string) error {
		members, err := filepath.Glob(filepath.Join(dir, "policies", "members", "*.json"))
		for _, one := range members {
			err = errors.Join(err, os.Remove(one))
		}
		return errors.Join(err, loseRecord(dir))
	}
	for name, c := range map[string]struct {
		lose                     func(dir string) error
		container, interfaceName string
		live                     string
		short                    bool // tried with -short, too
	}{
		"record":                      {loseRecord, "", "", "a", false},
		"all":                         {os.RemoveAll, "", "", "a", true},
		"members":                     {loseMembers, "", "", "a", true},
		"record, interface":           {loseRecord, "", "lan0", "a", false},
		"all, interface":              {os.RemoveAll, "", "lan0", "a", false},
		"record, container":           {loseRecord, "c", "lan0", "a", true},
		"all, container that is live": {os.RemoveAll, "c", "lan0", "c", true},
	} {
		for i, main := range []string{"bridge", "ptp"} {
			t.Run(name+" "+main, func(t *testing.T) {
				if !c.short {
					skip.InShort(t)
				}
				skip.InTurn(t, i, 2)
				h, leases := nativeHost(t, "1.0.0")
				h.file("net.conflist", `{"cniVersion":"1.1.0","name":"net","plugins":[
					{"type":"`+main+`","ipMasq":true,"ipam":{"type":"host-local","dataDir":"`+leases+`","subnet":"10.77.0.0/24"}},
					{"type":"portmap","capabilities":{"portMappings":true}},
					{"type":"policy","capabilities":{"policy":true},"policy":{"presets":["no-metadata"]}}]}`)
				t.Cleanup(func() { removeBridge(t, "cni0") })
				a := h.alloc("a")
				a.ContainerID, a.Interface = c.container, c.interfaceName
				a.Ports = []portmap.Port{{Value: 8080, To: 80}}
				a.Policy = &policy.Policy{Presets: []policy.Preset{policy.Isolated}}
				_, err := h.Setup(t.Context(), a)
				require.NoError(t, err)
				require.NoError(t, c.lose(h.cfg.StateDir))
				h.Configurator = h.restarted()
				before, held := rulesOf(t), leaseHolders(t, leases)
				report, err := h.GC(t.Context(), []string{c.live})
				require.NoError(t, err)
				require.Empty(t, report.Removed)
				require.Equal(t, before, rulesOf(t))
				require.Equal(t, held, leaseHolders(t, leases))
				_, err = h.Recover(t.Context())
				require.NoError(t, err)
				require.Equal(t, before, rulesOf(t))

				owner := cmp.Or(c.container, "a")
				report, err = h.GC(t.Context(), nil)
				require.NoError(t, err)
				require.Equal(t, []string{owner}, report.Removed)
				requireNothingOwned(t, owner)
				require.NotContains(t, rulesOf(t), "chain policy_")
				require.Empty(t, leaseHolders(t, leases))
			})
		}
	}
}

// TestLiveWithoutRecordOfAnotherNetwork: GC keeps a live allocation without a record also in a network that it
// does not search, but of which it runs the plugins because of another allocation.
func TestLiveWithoutRecordOfAnotherNetwork(t *testing.T) {
	h, leases := nativeHost(t, "1.0.0")
	h.file("other.conflist", `{"cniVersion":"1.1.0","name":"other","plugins":[
		{"type":"ptp","ipMasq":true,"ipam":{"type":"host-local","dataDir":"`+leases+`","subnet":"10.78.0.0/24"}}]}`)
	for _, id := range []string{"a", "b"} {
		a := h.alloc(id)
		a.Networks = []string{"other"}
		_, err := h.Setup(t.Context(), a)
		require.NoError(t, err)
	}
	require.NoError(t, os.Remove(filepath.Join(h.cfg.StateDir, "allocs", "a.json")))
	h.Configurator = h.restarted()
	before, held := rulesOf(t), leaseHolders(t, leases)
	_, err := h.GC(t.Context(), []string{"a", "b"})
	require.NoError(t, err)
	require.Equal(t, before, rulesOf(t))
	require.Equal(t, held, leaseHolders(t, leases))
	_, err = h.GC(t.Context(), nil)
	require.NoError(t, err)
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: "a", Networks: []string{"other"}}))
	require.Empty(t, leaseHolders(t, leases))
}

// rulesOf returns the ruleset of nftables without what packets change.
func rulesOf(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "--stateless", "list", "ruleset").CombinedOutput()
	require.NoError(t, err, string(out))
	return string(out)
}

// removeBridge deletes a bridge if it exists.
func removeBridge(t *testing.T, name string) {
	t.Helper()
	if link, err := netlink.LinkByName(name); err == nil {
		require.NoError(t, netlink.LinkDel(link))
	}
}

// TestPolicyOfFormerVersion: a policy whose rules a former version has made differently, so that it has another ID, is
// restored after a flush as it was, and replaced by a repair, also in the kernel.
func TestPolicyOfFormerVersion(t *testing.T) {
	h, _ := nativeHost(t, "1.0.0", `{"type":"policy","capabilities":{"policy":true}}`)
	a := h.alloc("a")
	services := []policy.Service{{Protocol: "tcp", Ports: "80"}, {Protocol: "tcp", Ports: "81"}}
	direction := &policy.Direction{Default: policy.Deny, Rules: []policy.Rule{{Services: services[:1]}, {Services: services[1:]}}}
	a.Policy = &policy.Policy{Ingress: direction}
	_, err := h.Setup(t.Context(), a)
	require.NoError(t, err)
	former, err := h.policies.Policies()
	require.NoError(t, err)
	require.Len(t, former, 1)
	a.Policy = &policy.Policy{Ingress: &policy.Direction{Default: policy.Deny, Rules: []policy.Rule{{Services: services}}}}
	h.changeRecord("a", func(r *record.Record) { r.Policy = a.Policy })
	require.Error(t, h.Check(t.Context(), a))
	privhost.FlushRuleset(t)
	report, err := h.Restore(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, report.Restored)
	listed, err := exec.Command("nft", "list", "ruleset").Output()
	require.NoError(t, err)
	require.Contains(t, string(listed), "goto policy_"+former[0])
	repaired, err := h.CheckAndRepair(t.Context(), "a")
	require.NoError(t, err)
	require.True(t, repaired)
	require.NoError(t, h.Check(t.Context(), a))
	now, err := h.policies.Policies()
	require.NoError(t, err)
	require.Len(t, now, 1)
	require.NotEqual(t, former, now)
	listed, err = exec.Command("nft", "list", "ruleset").Output()
	require.NoError(t, err)
	require.NotContains(t, string(listed), former[0])
	require.Contains(t, string(listed), now[0]+"_services_")
	require.NoError(t, h.Teardown(t.Context(), Allocation{ID: a.ID}))
	h.requireNoRecords()
}
